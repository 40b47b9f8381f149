"""Base class of transforms, schedules and selectors: immutable values that are pytrees."""

from __future__ import annotations

import dataclasses
import functools
import numbers
import operator
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Self, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from fnopt.core._static import checked_static, is_static, static
from fnopt.errors import where, wrong_arguments
from fnopt.numerics import default_float

_BOUNDS: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "ge": (">=", operator.ge),
    "gt": (">", operator.gt),
    "le": ("<=", operator.le),
    "lt": ("<", operator.lt),
}


def hyper(
    *,
    default: Any = dataclasses.MISSING,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
    schedule: bool = False,
    infinite: bool = False,
) -> Any:
    """Declare a numeric hyper-parameter: a pytree leaf whose value is checked.

    Python ints are converted to floats, so that `jax.grad` can differentiate with respect to all
    hyper-parameters. Floating arrays are unchanged, and traced values aren't checked. `None` is
    allowed if `None` is the default.

    Args:
        default: The default value; without a default, the field is required.
        ge: Closed lower bound.
        gt: Open lower bound.
        le: Closed upper bound.
        lt: Open upper bound.
        schedule: Whether a `Schedule` is allowed in place of a number.
        infinite: Whether infinity is allowed, for example to disable a limit.

    Returns:
        A dataclass field.

    Example:
        >>> import fnopt
        >>> fnopt.scale_by_adam(b1=2)
        Traceback (most recent call last):
        ...
        ValueError: scale_by_adam: b1 = 2.0, expected b1 >= 0 and b1 < 1.
    """
    bounds = {"ge": ge, "gt": gt, "le": le, "lt": lt}
    metadata = {
        "hyper": True,
        "bounds": {k: v for k, v in bounds.items() if v is not None},
        "schedule": schedule,
        "infinite": infinite,
    }
    return dataclasses.field(default=default, metadata=metadata)


def _is_array(value: Any) -> bool:
    return isinstance(value, (jax.Array, np.ndarray)) and value.dtype != jnp.bool_


def as_number(value: Any) -> Any:
    """Convert numbers to Python floats and NumPy arrays to JAX arrays; return others unchanged."""
    # A bool is a `Real` in Python, but a flag instead of a hyper-parameter.
    if isinstance(value, numbers.Real) and not isinstance(value, (bool, np.bool_)):
        return float(value)
    if _is_array(value):
        value = jnp.asarray(value)
        if jnp.issubdtype(value.dtype, jnp.integer):
            return value.astype(default_float())
    return value


def _check_bounds(
    owner: str, name: str, value: Any, bounds: dict[str, float], infinite: bool
) -> None:
    if isinstance(value, Tracer):
        return
    array = np.asarray(value)
    if np.isnan(array).any():
        raise ValueError(f"{where()}{owner}: {name} = {value}, expected a number.")
    if not all(np.all(_BOUNDS[k][1](array, limit)) for k, limit in bounds.items()):
        rule = " and ".join(f"{name} {_BOUNDS[k][0]} {limit}" for k, limit in bounds.items())
        raise ValueError(f"{where()}{owner}: {name} = {value}, expected {rule}.")
    if not infinite and np.isinf(array).any():
        raise ValueError(f"{where()}{owner}: {name} = {value}, expected a finite number.")


def _checked_hyper(owner: str, field: dataclasses.Field[Any], value: Any) -> Any:
    value, meta = as_number(value), field.metadata
    if isinstance(value, float) or _is_array(value):
        _check_bounds(owner, field.name, value, meta["bounds"], meta["infinite"])
        return value
    if value is None and field.default is None:
        return value
    if isinstance(value, Schedule):
        if meta["schedule"]:
            return value
        raise TypeError(
            f"{where()}{owner}: {field.name} can't be scheduled, expected a number or an array."
        )
    allowed = "a number, an array or a fnopt Schedule"
    if not meta["schedule"]:
        allowed = "a number or an array"
    hint = ""
    if callable(value) and meta["schedule"]:
        hint = " Wrap a function as fnopt.schedule(fn)."
    elif any(map(_is_array, jax.tree.leaves(value))):
        hint = " Pass params to tx.init(params)."
    raise TypeError(
        f"{where()}{owner}: {field.name} = {brief(value)} is a {type(value).__name__}, "
        f"expected {allowed}.{hint}"
    )


def _checked_child(owner: str, field: dataclasses.Field[Any], value: Any) -> Any:
    if isinstance(value, (bool, str)) or (callable(value) and not isinstance(value, Value)):
        raise TypeError(
            f"{where()}{owner}: {field.name} = {value!r} is not numeric, expected a number; "
            "declare flags, names and functions with fnopt.static()."
        )
    return as_number(value)


def _leaf_key(leaf: Any) -> Any:
    """Compute a hashable key of a leaf, equal for equal leaves."""
    if isinstance(leaf, (jax.Array, np.ndarray)):
        array = np.asarray(leaf)  # raises an error for a tracer, which has no value
        return str(array.dtype), array.shape, array.tobytes()
    return type(leaf), repr(leaf)


def brief(value: Any) -> str:
    """Short text for a value: arrays as dtype and shape, functions as names."""
    if isinstance(value, (jax.Array, np.ndarray)):
        if value.ndim == 0 and not isinstance(value, Tracer):
            return f"{value.item():.6g}"
        return f"{value.dtype.name}{list(value.shape)}"
    if isinstance(value, tuple):
        return "(" + ", ".join(brief(v) for v in value) + ("," if len(value) == 1 else "") + ")"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k!r}: {brief(v)}" for k, v in value.items()) + "}"
    if callable(value) and hasattr(value, "__qualname__"):
        return value.__qualname__
    return repr(value)


_LINE_WIDTH = 96  # a line of a source file, indented by one level


def call_text(name: str, parts: list[str]) -> str:
    """Text of the call `name(a, b)`, on one line or with one argument per line."""
    flat = f"{name}({', '.join(parts)})"
    if len(flat) <= _LINE_WIDTH and "\n" not in flat:
        return flat
    inside = ",\n".join(parts).replace("\n", "\n    ")
    return f"{name}(\n    {inside},\n)"


def _raise_frozen(self: Value, name: str, value: Any) -> None:
    """`__setattr__` of all values: raise an error, because values are immutable."""
    owner = type(self).__name__
    if type(self)._has_own_init and name not in vars(self):
        raise dataclasses.FrozenInstanceError(
            f"{owner}.{name} = {brief(value)}: the arguments of an fnopt value are the fields of "
            f"the class. Omit __init__ and declare `{name}: fnopt.core.Scalar = fnopt.hyper()` for "
            f"a number, or `{name}: Any = fnopt.static()` for another value."
        )
    raise dataclasses.FrozenInstanceError(
        f"{owner}.{name} = {brief(value)}: values of fnopt are immutable. Make a new value with "
        f"dataclasses.replace(value, {name}=...), or call {owner} again. The state, and a jitted "
        "step that takes the optimizer as an argument, remain valid."
    )


# Attributes of a class with an empty body, in all versions of Python.
_EMPTY_CLASS_ATTRIBUTES = {
    *("__module__", "__doc__", "__slots__", "__qualname__", "__dict__", "__weakref__"),
    *("__firstlineno__", "__static_attributes__", "__annotations__"),
}


def _explain_wrong_arguments(cls: type) -> None:
    """Make the error for an unknown argument of a class name the correct argument."""
    init = cls.__init__

    @functools.wraps(init)
    def explained_init(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            init(self, *args, **kwargs)
        except TypeError:
            message = wrong_arguments(cls, args, kwargs) if type(self) is cls else None
            if message is None:
                raise
            raise TypeError(message) from None

    cls.__init__ = explained_init


@dataclass_transform(frozen_default=True, field_specifiers=(static, hyper, dataclasses.field))
class Value:
    """An immutable value that is also a pytree.

    A subclass becomes a frozen dataclass and is registered with JAX: fields declared with `static`
    are auxiliary data, all others are children. Values compare and hash by content, can be pickled,
    work with `dataclasses.replace`, and convert to and from a plain configuration. The `repr` of a
    value is the call that creates the value.

    Example:
        >>> import jax, fnopt
        >>> class ramp(fnopt.Schedule):
        ...     slope: float = 0.1
        ...     def __call__(self, count):
        ...         return self.slope * count
        >>> ramp() == ramp(0.1), jax.tree.leaves(ramp(2))
        (True, [2.0])
    """

    _leaf_names: ClassVar[tuple[str, ...]] = ()
    _static_names: ClassVar[tuple[str, ...]] = ()
    _has_own_init: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        is_empty = vars(cls).keys() <= _EMPTY_CLASS_ATTRIBUTES
        cls._has_own_init |= "__init__" in vars(cls)
        # The generated `__eq__` would fail for arrays, whose comparison isn't a bool, and the
        # generated `__repr__` would print all numbers of an array.
        dataclasses.dataclass(frozen=True, eq=False, repr=False)(cls)
        if "__init__" in cls.__dict__:
            _explain_wrong_arguments(cls)
        cls.__setattr__ = _raise_frozen
        fields = dataclasses.fields(cls)  # pyright: ignore[reportArgumentType]
        cls._leaf_names = tuple(f.name for f in fields if not is_static(f))
        cls._static_names = tuple(f.name for f in fields if is_static(f))
        # `jax.tree_util.register_dataclass` isn't used, because it unflattens by calling __init__.
        # JAX also unflattens with placeholders, which the checks of __post_init__ would reject.
        jax.tree_util.register_pytree_with_keys(
            cls, cls._flatten_with_keys, cls._unflatten, cls._flatten
        )
        name = config_name(cls)
        # cloudpickle first creates an empty class, which must not replace the complete class.
        registry[name] = registry.get(name, cls) if is_empty else cls

    def __post_init__(self) -> None:
        owner = type(self).__name__
        for field in dataclasses.fields(self):  # pyright: ignore[reportArgumentType]
            meta = field.metadata
            check = _checked_child
            if is_static(field):
                check = checked_static
            elif meta.get("hyper"):
                check = _checked_hyper
            self._set(field.name, check(owner, field, getattr(self, field.name)))

    def _set(self, name: str, value: Any) -> None:
        # `object.__setattr__`, because `__setattr__` of the immutable class raises an error.
        object.__setattr__(self, name, value)

    def _flatten(self) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        get = self.__getattribute__  # `map` calls it without a Python frame for every field
        return tuple(map(get, self._leaf_names)), tuple(map(get, self._static_names))

    def _flatten_with_keys(self) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        children, aux = self._flatten()
        keys = map(jax.tree_util.GetAttrKey, self._leaf_names)
        return tuple(zip(keys, children, strict=True)), aux

    @classmethod
    def _unflatten(cls, aux: tuple[Any, ...], children: Iterable[Any]) -> Self:
        self = object.__new__(cls)
        for name, value in zip(cls._leaf_names, children, strict=True):
            self._set(name, value)
        for name, value in zip(cls._static_names, aux, strict=True):
            self._set(name, value)
        return self

    def _content(self) -> tuple[Any, ...]:
        leaves, treedef = jax.tree.flatten(self)
        return treedef, tuple(map(_leaf_key, leaves))

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return self._content() == other._content()  # pyright: ignore[reportAttributeAccessIssue]

    def __hash__(self) -> int:
        return hash(self._content())

    def __repr__(self) -> str:
        names = [f.name for f in dataclasses.fields(self)]  # pyright: ignore[reportArgumentType]
        return call_text(type(self).__name__, [f"{n}={brief(getattr(self, n))}" for n in names])


registry: dict[str, type[Value]] = {}
"""All value classes, keyed by their name in a configuration."""


def config_name(cls: type) -> str:
    """Name of a class in a configuration: `fnopt.scale_by_adam`, or `module.Class` of a user."""
    module = "fnopt" if cls.__module__.split(".")[0] == "fnopt" else cls.__module__
    return f"{module}.{cls.__qualname__}"


class Schedule(Value):
    """A hyper-parameter that is a function of the step: `__call__(count) -> scalar`.

    `count` is the number of previous updates (an integer scalar; 0 in the first update). The result
    is a floating scalar.

    Example:
        >>> import fnopt
        >>> schedule = fnopt.linear_schedule(1.0, 0.0, transition_steps=4)
        >>> [float(schedule(i)) for i in (0, 1, 4, 9)]
        [1.0, 0.75, 0.0, 0.0]
    """

    def __call__(self, count: Any) -> jax.Array:
        """Return the value after `count` updates."""
        raise NotImplementedError(f"{type(self).__name__} must define __call__(self, count)")


Scalar = float | jax.Array
"""A numeric hyper-parameter: a Python number or an array (traced, or stacked for a sweep)."""

ScalarOrSchedule = float | jax.Array | Schedule
"""A numeric hyper-parameter that may change with the step."""

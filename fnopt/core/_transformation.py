"""The base class of optimizers: immutable values with pure functions `init` and `update`."""

from __future__ import annotations

import functools
import operator
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax.tree_util import tree_flatten, tree_leaves

from fnopt.core._extra_args import check_spelling, extra_arg_parameters, required_extra_args
from fnopt.core._leaves import check_real_gradients, floating_leaves, same_tree, without_gradient
from fnopt.core._slots import (
    abstract_to_zeros,
    first_count,
    first_slot,
    is_abstract,
    missing_count,
    scheduled,
)
from fnopt.core._value import Schedule, Value
from fnopt.errors import advice_for_attribute, error_scope, where
from fnopt.numerics import dtype_of, is_inexact
from fnopt.sharding import (
    is_on_explicit_mesh,
    place_state,
    reshard_like,
    step_with_divided_slots,
)

Tree = TypeVar("Tree")
AnyState = TypeVar("AnyState")


class EmptyState(NamedTuple):
    """State of a stateless transform."""


class Member(NamedTuple):
    """A transform inside an optimizer, with its name and its part of the state."""

    name: str
    tx: Transformation
    state: Any


def _wrap_init(init: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(init)
    def checked_init(self: Transformation, params: Any) -> Any:
        with error_scope(self._place) as outermost:
            if outermost and self.floating_alone:
                params = floating_leaves(params)
            if outermost and is_abstract(params):
                params = abstract_to_zeros(functools.partial(init, self), params)
            state = init(self, params)
            return place_state(state, params) if outermost else state

    return checked_init


class Transformation(Value):
    r"""An optimizer, or a part of an optimizer, as an immutable value.

    .. math:: (u_t, s_{t+1}) = \mathrm{update}(g_t, s_t, \theta_t), \qquad
              \theta_{t+1} = \theta_t + u_t

    `init(params)` makes the initial state. `update(updates, state, params, **extra_args)` converts
    gradients (or the updates of the previous transform) to updates, which are *added* to the
    params. Both functions are pure. A subclass becomes a frozen dataclass and a pytree. Numeric
    fields are leaves, so new values don't recompile a step. Fields declared with `fnopt.static` are
    compile-time constants. A transformation unpacks: `init, update = tx`.

    A subclass defines `update`. A subclass with state also defines `State`, a NamedTuple class, or
    `init`, annotated to return such a class. `update` then raises an error for the state of another
    optimizer. Slots of `State` are initialized to zero, in the dtype of the field `<slot>_dtype` if
    the transform has such a field. `fill` names other initial values, and `storage` names other
    fields.

    A required extra argument of `update` is keyword-only without a default; all other extra
    arguments are in `**extra_args`. Set `needs_params = True` if `update` reads the params. Set
    `wide_updates = True` if updates must not be rounded to the dtype of 16-bit params before
    `apply_updates` adds them.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> class sign_descent(fnopt.Transformation):
        ...     step: float = 0.5
        ...     def update(self, updates, state, params=None, **extra_args):
        ...         return fnopt.core.map_leaves(lambda g: -self.step * jnp.sign(g), updates), state
        >>> tx = sign_descent()
        >>> params = {"w": jnp.asarray([3.0, -4.0])}
        >>> updates, state = tx.update(params, tx.init(params), params)
        >>> fnopt.apply_updates(params, updates)
        {'w': Array([ 2.5, -3.5], dtype=float32)}
    """

    State: ClassVar[Any] = EmptyState
    # Initial values of slots that aren't zero at the start: a number, the name of the field with
    # the number, or "params" for a copy of the params.
    fill: ClassVar[Mapping[str, Any]] = {}
    # Names of the fields with the storage dtypes of slots, if they differ from `<slot>_dtype`.
    storage: ClassVar[Mapping[str, str]] = {}
    needs_params: ClassVar[bool] = False
    # Whether updates of 16-bit params stay in float32. The difference of two bfloat16 numbers isn't
    # always a bfloat16 number, so a transform that prescribes the new params needs wide updates.
    wide_updates: ClassVar[bool] = False
    # Whether `update` reads the step count. If not, a state has a count for schedules only.
    reads_step: ClassVar[bool] = True
    # Whether the structure of gradients may differ from params: `Rows` of a table, an example axis.
    other_gradients: ClassVar[bool] = False
    # Whether `init` warns of leaves that aren't floating arrays and leaves them out, instead of
    # raising an error.
    floating_alone: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name, example in (("fill", '{"nu": 1e-6}'), ("storage", '{"nu": "slot_dtype"}')):
            if callable(vars(cls).get(name)):
                raise TypeError(
                    f"{cls.__name__}.{name} is a method, expected a class attribute that maps "
                    f"names of slots to values, as in `{name} = {example}`."
                )
        # The methods are wrapped when a class is created, so that the checks and the error scope
        # also apply to subclasses of users.
        if "init" in cls.__dict__:
            cls.init = _wrap_init(cls.__dict__["init"])
        if "update" in cls.__dict__:
            cls.update = _wrap_update(cls.__dict__["update"])

    @property
    def _place(self) -> str:
        return type(self).__name__

    if not typing.TYPE_CHECKING:  # with `__getattr__`, type checkers would accept any attribute

        def __getattr__(self, name: str) -> Any:
            """Raise an AttributeError that names fnopt's replacement of the attribute."""
            owner = type(self).__name__
            raise AttributeError(
                f"{owner!r} object has no attribute {name!r}.{advice_for_attribute(name)}"
            )

    def __iter__(self) -> Iterator[Callable[..., Any]]:
        yield self.init
        yield self.update

    def __getitem__(self, i: int) -> Callable[..., Any]:
        return (self.init, self.update)[i]

    @_wrap_init
    def init(self, params: Any) -> Any:
        """Make the initial state, which consists of strongly typed arrays only.

        By default, the state is a zero `count` and the slots that the class `State` declares.
        """
        if self.State is None:  # a wrapper without a state
            return self._init_field("inner_state", params)
        return self.State(**{name: self._init_field(name, params) for name in self.State._fields})

    def _init_field(self, name: str, params: Any) -> Any:
        """Initial value of a field of the state."""
        return first_count(self) if name == "count" else first_slot(self, name, params)

    def update(
        self, updates: Tree, state: AnyState, params: Any = None, **extra_args: Any
    ) -> tuple[Tree, AnyState]:
        """Transform gradients into updates, and the state into the next state."""
        raise NotImplementedError(f"{type(self).__name__} must define update")

    def members(self, state: Any = None) -> tuple[Member, ...]:
        """Inner transforms, each with its part of `state`; wrappers override this method."""
        del state
        return ()

    def reads(self) -> Mapping[str, bool]:
        """Map the extra arguments that `update` itself reads to whether each is required.

        By default, the keys are the keyword-only parameters of `update`; `'*'` means all names. A
        transform that reads other names overrides this method. `fnopt.core.EXTRA_ARGS` lists the
        names that the library reads.
        """
        return extra_arg_parameters(type(self).update)

    def left_out(self, params: Any) -> Any:
        """Mask of the leaves that don't change and need no gradient, a tree of bools."""
        flags = jax.tree.map(lambda _: False, params)
        for member in self.members():
            flags = jax.tree.map(operator.or_, flags, member.tx.left_out(params))
        return flags

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the required extra arguments of this transform and its inner transforms."""
        own = {name for name, needed in self.reads().items() if needed}
        return tuple(sorted(own.union(*(m.tx.needs for m in self.members()))))

    def at(self, count: Any) -> Any:
        """Replace every scheduled hyper-parameter by its value at `count`."""
        if not scheduled(self):
            return self
        if count is None:
            raise missing_count(self)
        children, aux = self._flatten()
        values = [c(count) if isinstance(c, Schedule) else c for c in children]
        return self._unflatten(aux, tuple(values))


@functools.cache
def _state_type(cls: type[Transformation]) -> type | None:
    """Return the NamedTuple `State` of a class, or the annotated return type of `init`, or None."""
    if cls.State is not EmptyState:
        return cls.State
    if cls.init is Transformation.init:
        return EmptyState
    try:
        hint = typing.get_type_hints(cls.init).get("return")
    except NameError:  # a class that was defined inside a function can't be looked up by name
        return None
    return hint if isinstance(hint, type) and issubclass(hint, tuple) else None


def check_state(tx: Transformation, state: Any) -> None:
    """Raise a TypeError if `state` isn't of the class that `tx.init` returns."""
    expected = _state_type(type(tx))
    if expected is None or isinstance(state, expected):
        return
    if expected is EmptyState and not tree_leaves(state):  # another library's empty state
        return
    raise TypeError(
        f"{where()}the state is {_describe_state(state, expected)}. Use the state that "
        "init(params) of this optimizer returned. Restore a checkpoint into the structure of "
        "init(params); fnopt.tree.restore copies the leaves that fit."
    )


def _describe_state(state: Any, expected: type) -> str:
    if isinstance(state, tuple) and not hasattr(state, "_fields"):
        return f"a tuple of length {len(state)}, expected {expected.__name__}"
    cls, expected_name = type(state), expected.__name__
    library = cls.__module__.partition(".")[0]
    # Other libraries use the same class names, so a class of the same name needs its library.
    article = f"{library}'s" if cls.__name__ == expected_name else "a"
    return f"{article} {cls.__name__}, expected {expected_name}"


def _is_state(x: Any) -> bool:
    """Whether `x` is the state of a transform, or a tuple or dict of states."""
    if hasattr(x, "_fields"):  # params may be a NamedTuple, too, so the name of the class decides
        return type(x).__name__.endswith("State")
    parts = x.values() if isinstance(x, dict) else x
    return isinstance(x, (tuple, dict)) and bool(x) and all(map(_is_state, parts))


def _check_order(updates: Any, state: Any, params: Any) -> None:
    if _is_state(state):
        return
    for what, tree in {"updates": updates, "params": params}.items():
        if _is_state(tree):
            raise TypeError(
                f"{where()}update got a state as its {what}, expected "
                "update(updates, state, params): gradients, state, params, in this order."
            )


def _wrap_update(update: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(update)
    def checked_update(
        self: Transformation, updates: Any, state: Any, params: Any = None, **extra_args: Any
    ) -> tuple[Any, Any]:
        with error_scope(self._place) as outermost:
            if outermost:
                _check_order(updates, state, params)
                check_spelling(self, extra_args)
            check_state(self, state)
            # If the params are a single array, `partition` and `masked` pass None as params and
            # updates to the transforms that don't update this array. A method with required
            # arguments (Levenberg-Marquardt) gets no updates either, but needs the params.
            is_masked = not outermost and updates is None and not required_extra_args(update)
            if params is None and self.needs_params and not is_masked:
                raise ValueError(
                    f"{where()}update needs the params: call update(updates, state, params)."
                )
            # The outermost transform checks the trees, so members don't check them again.
            has_both = params is not None and updates is not None
            if outermost and has_both and not self.other_gradients:
                if not same_tree(updates, params):
                    params, extra_args = without_gradient(self, updates, params, extra_args)
                check_real_gradients(updates, params)
            if required_extra_args(update):
                _check_required(update, extra_args)
            step = functools.partial(update, self, **extra_args)
            if outermost and is_on_explicit_mesh(tree_leaves(updates)):
                step = functools.partial(step_with_divided_slots, step, self.init)
            new_updates, new_state = step(updates, state, params)
            if outermost:
                like = updates if params is None else params
                new_updates = _cast_like_params(self, new_updates, like)
            return new_updates, new_state

    return checked_update


def _cast_like_params(tx: Transformation, updates: Any, like: Any) -> Any:
    """Cast updates to the dtypes of the params, or of the gradients if there are no params.

    Between the members of a chain, updates are at least float32, because rounding to bfloat16 would
    discard a small weight decay. Updates of integer params, and trees of another structure, are
    returned unchanged. On explicit meshes the updates are resharded like the params.
    """
    leaves, treedef = tree_flatten(updates)
    like_leaves, like_treedef = tree_flatten(like)
    if treedef != like_treedef:
        return updates
    keeps_dtypes = [*map(dtype_of, leaves)] == [*map(dtype_of, like_leaves)] or is_wide(tx)
    is_explicit = is_on_explicit_mesh(like_leaves)
    if keeps_dtypes and not is_explicit:
        return updates
    if not keeps_dtypes:
        leaves = [
            u.astype(jnp.result_type(p)) if is_inexact(u) and is_inexact(p) else u
            for u, p in zip(leaves, like_leaves, strict=True)
        ]
    # On an explicit mesh, the terms of `params + updates` must have the same sharding.
    if is_explicit:
        leaves = [*map(reshard_like, leaves, like_leaves)]
    return treedef.unflatten(leaves)


def is_wide(tx: Transformation) -> bool:
    """Whether a transform or one of its inner transforms sets `wide_updates`."""
    return tx.wide_updates or any(is_wide(member.tx) for member in tx.members())


def _check_required(update: Callable[..., Any], given: Any) -> None:
    for name in required_extra_args(update):
        if name not in given:
            raise TypeError(
                f"{where()}update needs the extra argument {name!r}: call update(updates, "
                f"state, params, {name}=...), also in every wrapper around this transform (optax's "
                "wrappers pass extra arguments to fnopt.interop.to_optax(tx), not to tx)."
            )

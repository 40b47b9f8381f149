"""Base class of transforms that apply one formula to every leaf."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.tree_util import tree_flatten

from fnopt.core._leaves import check_same_tree, check_scalars, same_shape
from fnopt.core._slots import (
    count_of,
    custom_slots,
    declared_slots,
    next_count,
)
from fnopt.core._transformation import Transformation
from fnopt.core._written_leaf import LeafNumbers, check_leaf_result, check_scalars_result
from fnopt.errors import check_inexact, explain_device_errors
from fnopt.numerics import (
    cast,
    clip_all_squarable,
    compute_dtype,
    dtype_of,
    is_inexact,
    is_traced,
    real_dtype,
    saturating_cast,
    shape_of,
    zero_slope_at_zero,
)
from fnopt.sharding import shard_axes


class Leafwise(Transformation):
    r"""Base class of transforms that apply one formula to each leaf.

    .. math:: (u, s') = \mathrm{leaf}(h, g, s), \qquad h = (\text{numbers},\ \mathrm{scalars}(t))

    A subclass declares its state `State` and the formula of a leaf. `State` is a NamedTuple whose
    fields are an optional `count` and slots, annotated `Slot` or `RealSlot`. The base class defines
    `init` and `update`. `init` makes a zero count and zero slots. `update` increments the count,
    evaluates schedules, casts the numbers and calls `scalars` once per step. `update` then applies
    `leaf` in at least float32 and casts the slots back to their storage dtype.

    `leaf(self, h, g, *slots)` returns the update and the new slots, or only the update if the state
    has no slots. With `needs_params = True` its signature is `leaf(self, h, g, p, *slots)`. `h`
    contains the numeric fields and the results of `scalars`, as scalars of the leaf's real compute
    dtype; read flags from `self`. `leaf` must be a pure function of its arguments and of static
    fields, because `leaf` is traced once for all leaves of one shape.

    `scalars(self, h, t)` returns a dict of additional scalars. `t` is the number of this step,
    beginning with 1, or None if the state has no `count`. A subclass that doesn't read `t` sets
    `reads_step = False`. Its count is then None, unless a hyper-parameter is a `Schedule`.

    An infinite second moment would stay infinite. Therefore, if a slot is a `RealSlot` or
    `keeps_squares` is True, gradients are clipped to a bound with a finite square (2.3e18 in
    float32). Infinite gradients are clipped too; they make the update NaN, because `0 * g` is added
    to the update. If the update depends on a mean of gradients instead of the gradient, set
    `carrier` to the name of the slot with the mean. `0 * g` is then added to the carrier slot
    instead of the update; this saves one read of the gradient.

    Annotate a slot whose shape differs from the leaf's shape (one number per leaf, factors of a
    matrix) as `CustomSlot`. `start(self, slot, p)` then returns the slot's initial value for a
    leaf, an array or a tree.

    Example:
        >>> from typing import NamedTuple
        >>> import jax, jax.numpy as jnp, fnopt
        >>> from fnopt.core import Leafwise, Slot, hyper
        >>> from fnopt.numerics import bias_correction, ema
        >>> class MeanState(NamedTuple):
        ...     count: jax.Array
        ...     mu: Slot
        >>> class scale_by_mean(Leafwise):
        ...     State = MeanState
        ...     decay: float = hyper(default=0.9, ge=0, lt=1)
        ...     def scalars(self, h, t):
        ...         return {"correction": bias_correction(h.decay, t)}
        ...     def leaf(self, h, g, mu):
        ...         mu = ema(mu, g, h.decay)
        ...         return mu / h.correction, mu
        >>> tx = scale_by_mean(decay=0.75)
        >>> updates, state = tx.update({"w": jnp.full(2, 4.0)}, tx.init({"w": jnp.ones(2)}))
        >>> print(updates["w"].round(4), state.mu["w"])
        [4. 4.] [1. 1.]
    """

    # Whether a slot stores squares of gradients; by default (None), whether a slot is a `RealSlot`.
    keeps_squares: ClassVar[bool | None] = None
    # The slot to which `0 * g` is added, so that infinite gradients reach the update.
    carrier: ClassVar[str | None] = None
    # Whether `leaf` is so short that it is called directly instead of as a jitted function.
    is_short: ClassVar[bool] = False

    def scalars(self, h: Any, t: Any) -> dict[str, Any]:
        """Compute scalars of a step that all leaves share; none by default."""
        del h, t
        return {}

    def leaf(self, h: Any, g: Any, *slots: Any) -> Any:
        """Compute the update of one leaf and its new slots."""
        raise NotImplementedError(f"{type(self).__name__} must define leaf(self, h, g, *slots)")

    def start(self, slot: str, p: Any) -> Any:
        """Make the initial value of a `CustomSlot` for the leaf `p`, in at least float32."""
        raise NotImplementedError(f"{type(self).__name__} must define start(self, {slot!r}, p)")

    def _init_field(self, name: str, params: Any) -> Any:
        if name not in custom_slots(self.State):
            return super()._init_field(name, params)
        check_inexact(params, "params")
        return jax.tree.map(lambda p: self.start(name, jnp.asarray(p)), params)

    def update(
        self, updates: Any, state: Any, params: Any = None, **extra_args: Any
    ) -> tuple[Any, Any]:
        """Apply one step of the formula to every leaf."""
        return self._step(updates, state, params)

    def _step(self, updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        """Compute `update` without the checks of arguments, for subclasses that extend `update`."""
        names, (numbers, flags) = tuple(declared_slots(self.State)), self._flatten()
        if {*map(type, numbers)} != {float}:
            check_scalars(self)
        leaves, treedef, columns = self._columns(updates, state, params, names)
        has_count = "count" in self.State._fields
        count = count_of(self, state) if has_count else None
        rows = [*zip(leaves, *columns, strict=True)]
        staged = is_traced(count, *leaves)
        try:
            if len(rows) == 1 and not staged:  # one call of a jitted program for the eager step
                program = _step_program(type(self), flags, names, shard_axes())
                row, t = program(numbers, count, *rows[0])
                rows = [row]
            else:
                rows, t = self._rows(names, count, rows, staged)
        except ValueError as error:
            explain_device_errors(error, updates, state=state, params=params)
            raise
        trees = [treedef.unflatten([row[i] for row in rows]) for i in range(1 + len(names))]
        fields = dict(zip(names, trees[1:], strict=True))
        if has_count:
            fields["count"] = t
        return trees[0], self.State(**fields)

    def _rows(
        self, slots: tuple[str, ...], count: Any, rows: list[tuple[Any, ...]], staged: bool
    ) -> tuple[list[tuple[Any, ...]], Any]:
        """Compute the update and the new slots of every leaf, and the step number.

        A row contains the gradient of a leaf, the param if needed, and the slots.
        """
        numbers = _Numbers(self, count, staged)
        formula = self._formula(slots, [row[0] for row in rows], staged)
        results = [formula(row[0])(numbers.for_row(row), *row) for row in rows]
        return results, None if count is None else numbers.step

    def _formula(
        self, slots: tuple[str, ...], leaves: list[Any], staged: bool
    ) -> Callable[[Any], Callable[..., Any]]:
        """Return a function that chooses the formula or its jitted version for a leaf."""
        flags = self._flatten()[1]
        program = _leaf_program(type(self), flags, slots, shard_axes())
        if not staged:
            return lambda g: program
        formula = _leaf_formula(type(self), flags, slots)
        counts = Counter(map(_shape_and_dtype, leaves))
        return lambda g: formula if self.is_short or counts[_shape_and_dtype(g)] == 1 else program

    def _columns(
        self, updates: Any, state: Any, params: Any, names: tuple[str, ...]
    ) -> tuple[list[Any], Any, list[list[Any]]]:
        """Flatten the updates, and the params and slots in the same order.

        Returns:
            The leaves of the updates, their treedef, and a list of leaves for each other tree.
        """
        leaves, treedef = tree_flatten(updates)
        if not all(map(is_inexact, leaves)):
            check_inexact(updates, "gradients")
        companions = {"params": params} if self.needs_params else {}
        companions |= {name: getattr(state, name) for name in names}
        custom, columns = custom_slots(self.State), []
        for name, tree in companions.items():
            column, other = (None, None) if name in custom else tree_flatten(tree)
            if column is None:  # the entries of a `CustomSlot` may be trees
                column = treedef.flatten_up_to(tree)
            elif other != treedef or not all(map(same_shape, leaves, column)):
                check_same_tree(updates, tree, "gradients", name)
            columns.append(column)
        return leaves, treedef, columns


def _shape_and_dtype(x: Any) -> tuple[Any, Any]:
    return shape_of(x), dtype_of(x)


class _Numbers:
    """Hyper-parameters and scalars of one step, computed once per compute dtype."""

    def __init__(self, tx: Leafwise, count: Any, staged: bool) -> None:
        self._tx, self._count, self._cache = tx, count, {}
        self._scalars = _scalars if staged else _scalar_program(type(tx))

    def for_row(self, row: tuple[Any, ...]) -> dict[str, Any]:
        return self._in_dtype(real_dtype(compute_dtype(*map(dtype_of, jax.tree.leaves(row)))))[0]

    @property
    def step(self) -> Any:
        numbers_and_step = next(iter(self._cache.values()), None)
        return (numbers_and_step or self._in_dtype(jnp.dtype(jnp.float32)))[1]

    def _in_dtype(self, dtype: Any) -> tuple[dict[str, Any], Any]:
        if dtype not in self._cache:
            self._cache[dtype] = self._scalars(self._tx, self._count, dtype)
        return self._cache[dtype]


# `leaf` and `scalars` are called as jitted functions in two cases. In an eager update, also under a
# `vmap` or `grad` that isn't compiled, there is one call per leaf instead of one per operation. If
# many leaves of a traced step have the same shape and dtype, `leaf` is traced once, and each leaf
# is one equation. Otherwise direct calls are faster to trace: for `scalars` with concrete
# hyper-parameters, short formulas and leaves of unique shape. XLA inlines all calls, so the
# compiled program is the same.


def _scalars(tx: Leafwise, count: Any, dtype: Any) -> tuple[dict[str, Any], Any]:
    """Hyper-parameters and scalars of a step in one dtype, and the step number."""
    t = next_count(count)
    tx_now = tx.at(count)
    values = {name: getattr(tx_now, name) for name in tx._leaf_names}
    numbers = {k: _number(v, dtype) for k, v in values.items() if v is not None}
    # Concrete hyper-parameters are NumPy scalars, which would warn of a division by zero.
    with np.errstate(all="ignore"):
        scalars = tx.scalars(LeafNumbers(**values | numbers), t)
    check_scalars_result(type(tx).__name__, scalars)
    return numbers | {k: _number(v, dtype) for k, v in scalars.items()}, t


def _number(x: Any, dtype: Any) -> Any:
    """Cast a scalar to a dtype; concrete scalars stay NumPy numbers, without a JAX operation."""
    if isinstance(x, (int, float, np.generic)):
        return np.asarray(x, dtype)[()]
    return lax.convert_element_type(x, dtype)


# These functions are cached, because JAX caches traces per function object, and a new object would
# be traced again.
@functools.cache
def _scalar_program(cls: type[Leafwise]) -> Callable[..., Any]:
    def scalars(tx: Any, count: Any, dtype: Any) -> tuple[dict[str, Any], Any]:
        return _scalars(tx, count, dtype)

    scalars.__name__ = f"{cls.__name__}_scalars"
    return jax.jit(scalars, static_argnums=2)


@functools.cache
def _step_program(
    cls: type[Leafwise], flags: Any, slots: tuple[str, ...], axes: tuple[str, ...]
) -> Callable[..., Any]:
    del axes  # `axes` is a cache key, because norms over shards need a collective operation

    def step(numbers: Any, count: Any, *row: Any) -> tuple[tuple[Any, ...], Any]:
        (result,), t = cls._unflatten(flags, numbers)._rows(slots, count, [row], staged=True)
        return result, t

    step.__name__ = f"{cls.__name__}_step"
    return jax.jit(step)


@functools.cache
def _leaf_program(
    cls: type[Leafwise], flags: Any, slots: tuple[str, ...], axes: tuple[str, ...]
) -> Callable[..., Any]:
    del axes  # `axes` is a cache key, because norms over shards need a collective operation
    return jax.jit(_leaf_formula(cls, flags, slots))


def _leaf_formula(
    cls: type[Leafwise], flags: Any, slots: tuple[str, ...]
) -> Callable[..., tuple[Any, ...]]:
    # A `RealSlot` is a second moment: squares of gradients overflow although gradients are finite.
    has_real_slot = any(declared_slots(cls.State).values())
    keeps_squares = has_real_slot if cls.keeps_squares is None else cls.keeps_squares
    carrier = cls.carrier

    def leaf(h: dict[str, Any], *row: Any) -> tuple[Any, ...]:
        dtype = compute_dtype(*map(dtype_of, jax.tree.leaves(row)))
        args = jax.tree.map(lambda x: cast(x, dtype), row)
        zero_or_nan = None
        if keeps_squares:
            # Zero, or NaN for an infinite gradient. A clip that doesn't clip infinite gradients
            # would need more memory, because XLA stores a value that takes several operations and
            # is read twice.
            zero_or_nan = lax.mul(np.zeros((), args[0].dtype), args[0])
            args = (clip_all_squarable(args[0]), *args[1:])
            if carrier:
                i = len(args) - len(slots) + slots.index(carrier)
                slot = lax.add(args[i], lax.convert_element_type(zero_or_nan, args[i].dtype))
                args = (*args[:i], slot, *args[i + 1 :])
        tx = cls._unflatten(flags, [h.get(name) for name in cls._leaf_names])
        # All operands have the same precision, so standard promotion only mixes real and complex.
        with jax.numpy_dtype_promotion("standard"):
            out = tx.leaf(LeafNumbers(**dict.fromkeys(cls._leaf_names) | h), *args)
        old_slots = row[len(row) - len(slots) :]
        out = check_leaf_result(cls.__name__, out, slots, args[0], old_slots)
        new_slots = jax.tree.map(lambda x, y: saturating_cast(x, y.dtype), out[1:], old_slots)
        update = lax.convert_element_type(out[0], dtype)
        if zero_or_nan is not None:
            update = zero_slope_at_zero(update)
            if not carrier:
                update = lax.add(update, lax.convert_element_type(zero_or_nan, dtype))
        return update, *new_slots

    leaf.__name__ = cls.__name__
    return leaf

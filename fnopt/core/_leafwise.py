"""Base class of optimizers with one formula for every leaf."""

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
from fnopt.core._written_leaf import LeafNumbers, check_scalars_returned, returned_by_leaf
from fnopt.errors import check_inexact, explain_device_errors
from fnopt.numerics import (
    capped,
    cast,
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

    A subclass declares its state (`State`, a NamedTuple whose fields are an optional `count` and
    slots, annotated `Slot` or `RealSlot`) and the formula of a leaf. The base class defines `init`
    and `update`. `init` makes a zero count and zero slots. `update` increments the count, evaluates
    schedules, casts the numbers and computes `scalars` once per step. It then applies `leaf` in at
    least float32 and casts the slots back to their storage dtype.

    `leaf(self, h, g, *slots)` returns the update and the new slots, or only the update if the state
    has no slots. With `needs_params = True` its signature is `leaf(self, h, g, p, *slots)`. `h`
    contains the numeric fields and the results of `scalars`, as scalars of the leaf's real compute
    dtype; read flags from `self`. `leaf` must be a pure function of its arguments and of static
    fields, because it is traced once for all leaves of one shape.

    `scalars(self, h, t)` returns a dict of additional scalars; `t` is the number of this step,
    beginning with 1 (None if the state has no `count`). A subclass that doesn't read `t` sets
    `reads_step = False`. Its count is then None, unless a hyper-parameter is a `Schedule`.

    If a slot is a `RealSlot`, or if `keeps_squares` is True, gradients are clipped to the largest
    number whose square is finite (2.3e18 in float32), because an infinite second moment would stay
    infinite. Infinite gradients are clipped too, and make the update NaN, because zero times the
    gradient is added to the update. If the formula of the update reads a mean of gradients instead
    of the gradient, set `carrier` to the name of the slot with the mean. `0 * g` is then added to
    the carrier slot instead of the update; this saves one read of the gradient.

    Annotate a slot with another shape than the leaf (one number per leaf, factors of a matrix) as
    `CustomSlot`. `start(self, slot, p)` then returns its initial value for a leaf: an array or a
    tree.

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

    # Whether slots hold squares of gradients; None: if a slot is a `RealSlot`.
    keeps_squares: ClassVar[bool | None] = None
    carrier: ClassVar[str | None] = None  # the slot that carries infinite gradients to the update
    is_short: ClassVar[bool] = False  # whether `leaf` is one operation

    def scalars(self, h: Any, t: Any) -> dict[str, Any]:
        """Scalars of a step, shared by all leaves; none by default."""
        del h, t
        return {}

    def leaf(self, h: Any, g: Any, *slots: Any) -> Any:
        """Update of one leaf, and its new slots."""
        raise NotImplementedError(f"{type(self).__name__} must define leaf(self, h, g, *slots)")

    def start(self, slot: str, p: Any) -> Any:
        """Initial value of a `CustomSlot` for the leaf `p`: strongly typed, at least float32."""
        raise NotImplementedError(f"{type(self).__name__} must define start(self, {slot!r}, p)")

    def _first(self, name: str, params: Any) -> Any:
        if name not in custom_slots(self.State):
            return super()._first(name, params)
        check_inexact(params, "params")
        return jax.tree.map(lambda p: self.start(name, jnp.asarray(p)), params)

    def update(
        self, updates: Any, state: Any, params: Any = None, **extra_args: Any
    ) -> tuple[Any, Any]:
        """Apply one step of the formula to every leaf."""
        return self._step(updates, state, params)

    def _step(self, updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        """Run `update` without its checks, for subclasses that extend `update`."""
        names, (numbers, flags) = tuple(declared_slots(self.State)), self._flatten()
        if {*map(type, numbers)} != {float}:
            check_scalars(self)
        leaves, treedef, columns = self._columns(updates, state, params, names)
        counts = "count" in self.State._fields
        count = count_of(self, state) if counts else None
        rows = [*zip(leaves, *columns, strict=True)]
        staged = is_traced(count, *leaves)
        try:
            if len(rows) == 1 and not staged:  # an eager step in one call
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
        if counts:
            fields["count"] = t
        return trees[0], self.State(**fields)

    def _rows(
        self, slots: tuple[str, ...], count: Any, rows: list[tuple[Any, ...]], staged: bool
    ) -> tuple[list[tuple[Any, ...]], Any]:
        """Update and new slots of every leaf, and the step number."""
        numbers = _Numbers(self, count, staged)
        formula = self._formula(slots, [row[0] for row in rows], staged)
        results = [formula(row[0])(numbers.for_row(row), *row) for row in rows]
        return results, None if count is None else numbers.step

    def _formula(
        self, slots: tuple[str, ...], leaves: list[Any], staged: bool
    ) -> Callable[[Any], Callable[..., Any]]:
        """Choose the formula or its jitted version for every leaf."""
        flags = self._flatten()[1]
        program = _leaf_program(type(self), flags, slots, shard_axes())
        if not staged:
            return lambda g: program
        formula = _leaf_formula(type(self), flags, slots)
        alike = Counter(map(_form, leaves))
        return lambda g: formula if self.is_short or alike[_form(g)] == 1 else program

    def _columns(
        self, updates: Any, state: Any, params: Any, names: tuple[str, ...]
    ) -> tuple[list[Any], Any, list[list[Any]]]:
        """Leaves of the updates, their treedef, and the matching leaves of the params and slots."""
        leaves, treedef = tree_flatten(updates)
        if not all(map(is_inexact, leaves)):
            check_inexact(updates, "gradients")
        companions = {"params": params} if self.needs_params else {}
        companions |= {name: getattr(state, name) for name in names}
        own, columns = custom_slots(self.State), []
        for name, tree in companions.items():
            column, other = (None, None) if name in own else tree_flatten(tree)
            if column is None:
                column = treedef.flatten_up_to(tree)
            elif other != treedef or not all(map(same_shape, leaves, column)):
                check_same_tree(updates, tree, "gradients", name)
            columns.append(column)
        return leaves, treedef, columns


def _form(x: Any) -> tuple[Any, Any]:
    return shape_of(x), dtype_of(x)


class _Numbers:
    """Scalars of one step, computed once per compute dtype."""

    def __init__(self, tx: Leafwise, count: Any, staged: bool) -> None:
        self._tx, self._count, self._made = tx, count, {}
        self._scalars = _scalars if staged else _scalar_program(type(tx))

    def for_row(self, row: tuple[Any, ...]) -> dict[str, Any]:
        return self._in_dtype(real_dtype(compute_dtype(*map(dtype_of, jax.tree.leaves(row)))))[0]

    @property
    def step(self) -> Any:
        computed = next(iter(self._made.values()), None)
        return (computed or self._in_dtype(jnp.dtype(jnp.float32)))[1]

    def _in_dtype(self, dtype: Any) -> tuple[dict[str, Any], Any]:
        if dtype not in self._made:
            self._made[dtype] = self._scalars(self._tx, self._count, dtype)
        return self._made[dtype]


# A formula, or the scalars of a step, are jitted functions in three cases: if many leaves of a
# traced step are alike (each is one equation, and the formula is traced once), in an eager update
# (one call per leaf instead of one per operation), and under a `vmap` or `grad` that isn't
# compiled. The function itself is called if this is cheaper to trace: inside a program, for the
# scalars (hyper-parameters are concrete there), short formulas, and leaves of unique shape. XLA
# inlines all calls, so the compiled program is the same.


def _scalars(tx: Leafwise, count: Any, dtype: Any) -> tuple[dict[str, Any], Any]:
    """Hyper-parameters of a step in one dtype, and the step number."""
    t = next_count(count)
    now = tx.at(count)
    values = {name: getattr(now, name) for name in tx._leaf_names}
    numbers = {k: _number(v, dtype) for k, v in values.items() if v is not None}
    with np.errstate(all="ignore"):  # NumPy scalars divide like JAX's, without a warning
        more = tx.scalars(LeafNumbers(**values | numbers), t)
    check_scalars_returned(type(tx).__name__, more)
    return numbers | {k: _number(v, dtype) for k, v in more.items()}, t


def _number(x: Any, dtype: Any) -> Any:
    """Cast a scalar to a dtype; concrete scalars stay NumPy numbers, without a JAX operation."""
    if isinstance(x, (int, float, np.generic)):
        return np.asarray(x, dtype)[()]
    return lax.convert_element_type(x, dtype)


# These programs are cached, because JAX caches traces by function. A new function is traced again.
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
    del axes  # `axes` is a cache key, because norms of parts need another program

    def step(numbers: Any, count: Any, *row: Any) -> tuple[tuple[Any, ...], Any]:
        (result,), t = cls._unflatten(flags, numbers)._rows(slots, count, [row], staged=True)
        return result, t

    step.__name__ = f"{cls.__name__}_step"
    return jax.jit(step)


@functools.cache
def _leaf_program(
    cls: type[Leafwise], flags: Any, slots: tuple[str, ...], axes: tuple[str, ...]
) -> Callable[..., Any]:
    del axes  # `axes` is a cache key, because norms of parts need another program
    return jax.jit(_leaf_formula(cls, flags, slots))


def _leaf_formula(
    cls: type[Leafwise], flags: Any, slots: tuple[str, ...]
) -> Callable[..., tuple[Any, ...]]:
    # A `RealSlot` is a second moment, whose squares overflow where gradients don't.
    declared = any(declared_slots(cls.State).values())
    squares = declared if cls.keeps_squares is None else cls.keeps_squares
    carrier = cls.carrier

    def leaf(h: dict[str, Any], *row: Any) -> tuple[Any, ...]:
        dtype = compute_dtype(*map(dtype_of, jax.tree.leaves(row)))
        args = jax.tree.map(lambda x: cast(x, dtype), row)
        nothing = None
        if squares:
            # Zero, or NaN for an infinite gradient. (A clip that keeps infinite gradients would
            # cost memory: XLA stores a value that takes several operations and is read twice.)
            nothing = lax.mul(np.zeros((), args[0].dtype), args[0])
            args = (capped(args[0]), *args[1:])
            if carrier:
                i = len(args) - len(slots) + slots.index(carrier)
                carried = lax.add(args[i], lax.convert_element_type(nothing, args[i].dtype))
                args = (*args[:i], carried, *args[i + 1 :])
        tx = cls._unflatten(flags, [h.get(name) for name in cls._leaf_names])
        # Operands have one width here, so standard promotion only mixes real and complex.
        with jax.numpy_dtype_promotion("standard"):
            out = tx.leaf(LeafNumbers(**dict.fromkeys(cls._leaf_names) | h), *args)
        old = row[len(row) - len(slots) :]
        out = returned_by_leaf(cls.__name__, out, slots, args[0], old)
        new = jax.tree.map(lambda x, was: saturating_cast(x, was.dtype), out[1:], old)
        update = lax.convert_element_type(out[0], dtype)
        if nothing is not None:
            update = zero_slope_at_zero(update)
            if not carrier:
                update = lax.add(update, lax.convert_element_type(nothing, dtype))
        return update, *new

    leaf.__name__ = cls.__name__
    return leaf

"""Base class of transforms that apply one formula to each matrix."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from fnopt.core import (
    EmptyState,
    Transformation,
    count_of,
    custom_slots,
    declared_slots,
    map_leaves,
    next_count,
)
from fnopt.errors import leaf_text, leaves_with_names, where
from fnopt.numerics import compute_dtype, real_dtype
from fnopt.optimizers._matrix_layout import MatrixLayout
from fnopt.optimizers._matrix_parts import (
    load_slot,
    map_by_shape,
    new_slot,
    number_matrices,
    store_slot,
    to_leaf,
    to_matrices,
)
from fnopt.optimizers._matrix_rule import layouts_of
from fnopt.sharding import reshard_like, sequential


class Matrixwise(Transformation):
    """Base class of transforms that apply one formula to each matrix.

    A subclass declares its `State`: a NamedTuple of an optional `count`, slots like the params
    (`Slot`), and slots for every matrix (`CustomSlot`). A `CustomSlot` contains a tuple for each
    leaf, with one entry per matrix shape in the leaf. The entry is a tree of arrays with the
    matrices along the leading axis. `start` returns the initial value of a `CustomSlot`, and `step`
    is the formula. Matrices of one shape are stacked; tall matrices are transposed (`m <= n`),
    unless `wide` is False.

    In `step(self, h, count, g, slots)`, `h` contains the numeric fields as scalars of the real
    compute dtype. `count` is the number of previous steps, and `g` are the gradients `[k, m, n]`.
    Gradients and slots have at least float32. `step` returns the updates and a dict of the new
    slots. `step` must be a pure function of its arguments and of static fields. It must treat each
    matrix independently, because with `sharded` each device processes different matrices. If
    `numbered` is True, `slots.index`, `[k]`, is the index of each matrix in the tree. If
    `needs_params` is True, `slots.params` are the parameters.
    """

    State: ClassVar[Any] = EmptyState
    numbered: ClassVar[bool] = False
    wide: ClassVar[bool] = True
    takes_complex: ClassVar[bool] = False
    factorizes: ClassVar[bool] = True  # whether `step` calls LAPACK, so stacks run one by one
    gathers: ClassVar[bool] = True  # whether `step` needs more than sums over rows and columns

    def start(self, slot: str, shape: tuple[int, int, int], dtype: Any) -> Any:
        """Return the initial value of a `CustomSlot` for a stack of matrices."""
        raise NotImplementedError(
            f"{type(self).__name__} must define start(self, slot, shape, dtype)"
        )

    def step(self, h: Any, count: Any, g: Any, slots: Any) -> tuple[Any, dict[str, Any]]:
        """Return the updates and the new slots of a stack of matrices."""
        raise NotImplementedError(
            f"{type(self).__name__} must define step(self, h, count, g, slots)"
        )

    def layouts(self, tree: Any) -> list[MatrixLayout]:
        """Return the matrix layout of every leaf."""
        # The base class doesn't annotate the field, which would then be the first field of every
        # subclass.
        return layouts_of(getattr(self, "weight_dimension_numbers", None), tree)

    def unused(self) -> frozenset[str]:
        """Return the slots that aren't needed with the current static fields; they are None."""
        return frozenset()

    def init(self, params: Any) -> Any:
        """Return a zero count and the initial slots."""
        self.layouts(params)  # raises an error if the rule doesn't match the params
        if not self.takes_complex:
            _check_real(params)
        return self.State(**{name: self._init_field(name, params) for name in self.State._fields})

    def _init_field(self, name: str, params: Any) -> Any:
        if name in self.unused():
            return None
        is_custom = name in custom_slots(self.State)
        return self._init_custom(name, params) if is_custom else super()._init_field(name, params)

    def _slots(self) -> tuple[str, ...]:
        return tuple(name for name in declared_slots(self.State) if name not in self.unused())

    def _shapes(self, layout: MatrixLayout) -> tuple[tuple[int, int, int], ...]:
        return layout.wide_shapes if self.wide else layout.shapes

    def _init_custom(self, name: str, params: Any) -> Any:
        leaves, treedef = jax.tree.flatten(params)
        dtypes = [compute_dtype(jnp.result_type(p)) for p in leaves]
        rows = zip(self.layouts(params), dtypes, strict=True)
        return treedef.unflatten(
            [
                tuple(new_slot(self.start(name, s, dtype)) for s in self._shapes(layout))
                for layout, dtype in rows
            ]
        )

    def one_matrix(self, shape: tuple[int, int]) -> tuple[Any, Any]:
        """Return the shapes of `step`'s arrays for one matrix, and the FLOPs of its products."""
        part = {"u": jax.ShapeDtypeStruct((1, *shape), jnp.float32)}
        for n in (*self._slots(), *["params"] * self.needs_params):
            start = functools.partial(self.start, n, (1, *shape), jnp.float32)
            is_custom = n in custom_slots(self.State)
            part[n] = jax.eval_shape(start) if is_custom else part["u"]
        if self.numbered:
            part["index"] = jax.ShapeDtypeStruct((1,), jnp.float32)
        count = jnp.zeros((), jnp.int32)
        program = _program(type(self), self._flatten()[1])
        lowered = program.lower(self._numbers(self.at(count)), count, part)
        return part, float((lowered.cost_analysis() or {}).get("flops", 0.0))

    def _numbers(self, tx: Any) -> dict[str, jax.Array]:
        """Convert the numeric fields of `tx` that aren't None to arrays."""
        numbers = {n: getattr(tx, n) for n in self._leaf_names}
        return {n: jnp.asarray(x) for n, x in numbers.items() if x is not None}

    def update(
        self, updates: Any, state: Any, params: Any = None, **extra_args: Any
    ) -> tuple[Any, Any]:
        """Apply one step of the formula to the matrices of every shape."""
        # Each leaf is a row of parts, one per matrix shape in the leaf. A part is a dict of stacks
        # `[k, m, n]`: `u` (the gradient), the slots and the params. `map_by_shape` concatenates the
        # parts of all leaves with the same shape, runs `step`, and splits the results.
        layouts, names, custom = self.layouts(updates), self._slots(), custom_slots(self.State)
        counts = "count" in self.State._fields
        count = count_of(self, state) if counts else None
        numbers = self._numbers(self.at(count))
        trees = {n: getattr(state, n) for n in names}
        if self.needs_params:
            trees["params"] = params
        like_params = {n: x for n, x in trees.items() if n not in custom}
        widened = map_leaves(lambda h, g, *_: g, updates, hyper=numbers, **like_params)
        leaves, treedef = jax.tree.flatten(widened)
        columns = {n: treedef.flatten_up_to(x) for n, x in trees.items()}
        rows = [
            self._parts(layout, leaves[i], {n: column[i] for n, column in columns.items()})
            for i, layout in enumerate(layouts)
        ]
        if self.numbered:
            number_matrices(rows)
        program = _program(type(self), self._flatten()[1])
        step = lambda u, part: program(numbers, count, part | {"u": u})  # noqa: E731
        # On a CPU, concurrent batches of LAPACK calls can deadlock.
        step = sequential(step) if self.factorizes else step
        out = map_by_shape(lambda part: step(part["u"], part), rows)
        fields: dict[str, Any] = dict.fromkeys(self.unused())
        for n in names:
            new = [[part[n] for part in row] for row in out]
            convert = _stored if n in custom else self._to_leaf
            fields[n] = treedef.unflatten(map(convert, layouts, new, columns[n]))
        new = [[part["u"] for part in row] for row in out]
        updates = treedef.unflatten(map(self._to_leaf, layouts, new, leaves))
        if counts:
            fields["count"] = next_count(count)
        return updates, self.State(**fields)

    def _to_leaf(self, layout: MatrixLayout, parts: list[Any], like: Any) -> jax.Array:
        return to_leaf(layout, parts, like, self.wide)

    def _to_matrices(self, layout: MatrixLayout, x: Any) -> list[Any]:
        return to_matrices(layout, x, self.wide, self.gathers)

    def _parts(self, layout: MatrixLayout, g: Any, slots: dict[str, Any]) -> list[dict[str, Any]]:
        def cut_slot(name: str, x: Any) -> list[Any]:
            if name not in custom_slots(self.State):
                return self._to_matrices(layout, x)
            # Only the shape of the initial slot is used, so the dtype is arbitrary.
            start = functools.partial(self.start, name, dtype=jnp.float32)
            pairs = zip(x, self._shapes(layout), strict=True)
            return [load_slot(x, functools.partial(start, shape=shape)) for x, shape in pairs]

        columns = {name: cut_slot(name, x) for name, x in slots.items()}
        parts = enumerate(self._to_matrices(layout, g))
        return [{"u": g, **{n: column[i] for n, column in columns.items()}} for i, g in parts]


def _stored(_: MatrixLayout, row: list[Any], old: Any) -> Any:
    """Convert a slot for matrices to its stored form, sharded like the old slot."""
    return jax.tree.map(reshard_like, store_slot(tuple(row)), old)


def _check_real(params: Any) -> None:
    for path, p in leaves_with_names(params)[0]:
        if jnp.iscomplexobj(p):
            raise TypeError(
                f"{where()}{leaf_text(path)} is {p.dtype}, expected a real matrix. Wrap the "
                "optimizer in fnopt.split_real_and_imaginary, or use another optimizer "
                "for this leaf."
            )


# One jitted program per class and static fields. The numeric fields are arguments, so other values
# don't recompile it.
@functools.cache
def _program(cls: type[Matrixwise], flags: Any) -> Any:
    def step(numbers: dict[str, Any], count: Any, part: dict[str, Any]) -> dict[str, Any]:
        dtype = compute_dtype(*(x.dtype for x in jax.tree.leaves(part)))
        real = real_dtype(dtype)
        h = {n: x.astype(real) for n, x in numbers.items()}
        tx = cls._unflatten(flags, [h.get(name) for name in cls._leaf_names])
        slots = jax.tree.map(lambda x: x.astype(dtype if jnp.iscomplexobj(x) else real), part)
        g, index = slots.pop("u"), slots.pop("index", None)
        h = SimpleNamespace(**dict.fromkeys(cls._leaf_names) | h)
        u, new = tx.step(h, count, g, SimpleNamespace(**slots, index=index))
        old = {n: part[n] for n in new}
        new = jax.tree.map(lambda x, o: reshard_like(x.astype(o.dtype), o), new, old)
        return {"u": u, **new}

    step.__name__ = cls.__name__
    return jax.jit(step)

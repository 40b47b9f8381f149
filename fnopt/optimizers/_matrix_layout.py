"""Layout of leaves as matrices, and stacks of the matrices of one shape.

All matrices of one shape in a tree are stacked, `[k, m, n]`, and a method processes the stack. The
size of the compiled program is proportional to the number of shapes, not of layers. Tall matrices
are transposed first (`m <= n`), so the two projections of a block, `[d, 4 d]` and `[4 d, d]`, have
one shape.

States are stored per leaf, with the matrices along one leading axis. Therefore states are sharded
and named like the parameters, and stay valid when other layers change.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fnopt.sharding import concatenate, is_sharded, replicate, reshape, reshard_like, wait_for

# A stack of matrices and its result are temporary buffers. In sixteen portions, one after the
# other, these buffers are an eighth of the matrices' size.
_MOST_PORTIONS = 16
# Entries of a portion. A portion of 256 kB in float32 outweighs the cost of calling a separate
# program. On an H200, portions of 2^22, 2^23 and 2^24 numbers take 6.4, 5.4 and 5.0 ms for Muon on
# 12 layers of width 768, and 4.9 ms without portions.
_LEAST, _LEAST_ON_ACCELERATORS = 2**16, 2**24


@dataclasses.dataclass(frozen=True)
class MatrixLayout:
    """The layout of a leaf as matrices.

    Attributes:
        shape: The shape of the leaf.
        order: The axes of the leaf, in the order batch, rows, columns.
        batch: The number of matrices before they are split.
        heights: The number of rows of every part.
        widths: The number of columns of every part; parts of one shape are stacked, too.
    """

    shape: tuple[int, ...]
    order: tuple[int, ...]
    batch: int
    heights: tuple[int, ...]
    widths: tuple[int, ...]

    @staticmethod
    def from_axes(
        shape: tuple[int, ...],
        rows: tuple[int, ...],
        columns: tuple[int, ...],
        split: int | tuple[int, ...] = 1,
    ) -> MatrixLayout | None:
        """Return the layout for given axes; None if the split doesn't match the axes."""
        batch = tuple(i for i in range(len(shape)) if i not in {*rows, *columns})
        size, m, n = (math.prod(shape[a] for a in axes) for axes in (batch, rows, columns))
        widths = (n // split,) * split if isinstance(split, int) else split
        return (
            MatrixLayout(shape, batch + rows + columns, size, (m,), widths)
            if sum(widths) == n
            else None
        )

    def in_blocks(self, most: int | None) -> MatrixLayout:
        """Split larger sides into blocks of nearly equal size, at most `most` long."""
        if most is None:
            return self
        heights, widths = (
            tuple(part for side in sides for part in _near_equal(side, most))
            for sides in (self.heights, self.widths)
        )
        return dataclasses.replace(self, heights=heights, widths=widths)

    @property
    def _even(self) -> bool:
        return len({*self.heights}) == len({*self.widths}) == 1

    @property
    def shapes(self) -> tuple[tuple[int, int, int], ...]:
        """Number, rows and columns of the matrices of every part, without transposition."""
        if not math.prod(self.shape):
            return ()
        if self._even:
            count = self.batch * len(self.heights) * len(self.widths)
            return ((count, self.heights[0], self.widths[0]),)
        return tuple((self.batch, m, n) for m in self.heights for n in self.widths)

    @property
    def wide_shapes(self) -> tuple[tuple[int, int, int], ...]:
        """The shapes of the matrices, transposed so that rows are the shorter side."""
        return tuple((k, min(m, n), max(m, n)) for k, m, n in self.shapes)

    def cut(self, x: jax.Array, wide: bool = True, gathers: bool = True) -> list[jax.Array]:
        """Return the matrices `[k, m, n]` of every part; no matrices for an empty leaf.

        The matrices of a leaf that is sharded over an explicit mesh are gathered. Without
        `gathers`, rows and columns that are axes of the leaf stay sharded.
        """
        return _cut(self, x, wide, gathers) if self.shapes else []

    def _cut(self, x: jax.Array, wide: bool, gathers: bool) -> list[jax.Array]:
        if not gathers and self.is_consecutive:
            return [_lay_wide(replicate(reshape(x, *self.shapes[0]), 0), self.shapes[0], wide)]
        x = replicate(x)
        if self.order != tuple(range(len(self.order))):
            x = jnp.transpose(x, self.order)
        if self._even:
            if len(self.heights) * len(self.widths) > 1:
                x = jnp.swapaxes(x.reshape(self._grid), 2, 3)
            parts = [x.reshape(self.shapes[0])]
        else:
            x = x.reshape(self.batch, sum(self.heights), sum(self.widths))
            bands = _split(x, self.heights, 1)
            parts = [part for band in bands for part in _split(band, self.widths, 2)]
        return [_lay_wide(x, shape, wide) for x, shape in zip(parts, self.shapes, strict=True)]

    @property
    def is_consecutive(self) -> bool:
        """Whether each matrix is contiguous in the leaf."""
        one = len(self.heights) == len(self.widths) == 1
        return one and self.order == tuple(range(len(self.order)))

    @property
    def _grid(self) -> tuple[int, ...]:
        """The axes of equal parts, before the parts are stacked."""
        m, n = self.heights[0], self.widths[0]
        return self.batch, len(self.heights), m, len(self.widths), n

    def whole(self, parts: list[jax.Array], like: Any, wide: bool = True) -> jax.Array:
        """Assemble the leaf from its parts, sharded like another array."""
        return _whole(self, parts, like, wide) if parts else like

    def _whole(self, parts: list[jax.Array], like: Any, wide: bool) -> jax.Array:
        pairs = zip(parts, self.shapes, strict=True)
        parts = [_lay_wide(x, shape, wide) for x, shape in pairs]
        if self._even:
            x = parts[0]
            if len(self.heights) * len(self.widths) > 1:
                b, i, m, j, n = self._grid
                x = jnp.swapaxes(x.reshape(b, i, j, m, n), 2, 3)
        else:
            k = len(self.widths)
            bands = [concatenate(parts[i : i + k], axis=2) for i in range(0, len(parts), k)]
            x = concatenate(bands, axis=1)
        x = reshape(x, *(self.shape[i] for i in self.order))
        back = np.argsort(self.order).tolist()
        return reshard_like(x if back == sorted(back) else jnp.transpose(x, back), like)


def _near_equal(size: int, most: int) -> list[int]:
    """Sizes of parts of a side that differ by one at most."""
    count = max(1, math.ceil(size / most))
    return [size // count + (i < size % count) for i in range(count)]


def _split(x: jax.Array, sizes: tuple[int, ...], axis: int) -> list[jax.Array]:
    return [x] if len(sizes) == 1 else jnp.split(x, np.cumsum(sizes)[:-1].tolist(), axis=axis)


def _lay_wide(x: jax.Array, shape: tuple[int, int, int], wide: bool) -> jax.Array:
    return jnp.swapaxes(x, 1, 2) if wide and shape[1] > shape[2] else x


# Both functions are jitted separately, so that a step has one equation per leaf for each; XLA
# inlines them.
_cut = jax.jit(MatrixLayout._cut, static_argnums=(0, 2, 3))
_whole = jax.jit(MatrixLayout._whole, static_argnums=(0, 3))


def by_shape(fn: Callable[[Any], Any], rows: list[list[Any]]) -> list[list[Any]]:
    """Apply a function to all matrices of a shape together.

    Args:
        fn: A function from a tree of arrays with a leading axis to another such tree; it treats
            each index of that axis independently. `fn` is called for one group of matrices after
            another.
        rows: The parts of every leaf. A part is a tree of arrays with the matrices along the
            leading axis. Parts of equal structure, shapes and dtypes are stacked for `fn`.

    Returns:
        The results of `fn`, at the positions of the parts.
    """
    out: list[list[Any]] = [[None] * len(row) for row in rows]
    for group in groups(rows):
        result = None
        for places in _portions(rows, group):
            result = fn(stack(rows, places, result))
            into_places(out, places, rows, result)
    return out


Places = list[tuple[int, int]]
"""Position of a part: the index of the leaf, and the index of the part."""


def groups(rows: list[list[Any]]) -> list[Places]:
    """Positions of parts of equal structure, shapes and dtypes."""
    found: dict[Any, Places] = {}
    for i, row in enumerate(rows):
        for j, part in enumerate(row):
            leaves, treedef = jax.tree.flatten(part)
            key = treedef, tuple((x.shape[1:], x.dtype) for x in leaves)
            found.setdefault(key, []).append((i, j))
    return list(found.values())


def _portions(rows: list[list[Any]], group: Places) -> list[Places]:
    """Divide a group into portions of nearly equal size."""
    i, j = group[0]
    leaves = jax.tree.leaves(rows[i][j])
    numbers = len(group) * max((x.size for x in leaves), default=0)
    least = _LEAST if jax.default_backend() == "cpu" else _LEAST_ON_ACCELERATORS
    is_whole = any(map(is_sharded, leaves))
    count = 1 if is_whole else min(_MOST_PORTIONS, max(1, numbers // least))
    size = math.ceil(len(group) / count)
    return [group[start : start + size] for start in range(0, len(group), size)]


def stack(rows: list[list[Any]], places: Places, before: Any = None) -> Any:
    """Concatenate parts along their leading axes, after other arrays are computed."""
    # Portions run one after the other, so that only one stack at a time is in memory.
    parts = [wait_for(rows[i][j], before) for i, j in places]
    return parts[0] if len(parts) == 1 else jax.tree.map(lambda *x: concatenate([*x]), *parts)


def into_places(out: list[list[Any]], places: Places, rows: list[list[Any]], result: Any) -> None:
    """Split the result of a stack into its parts, at their positions."""
    counts = [jax.tree.leaves(rows[i][j])[0].shape[0] for i, j in places]
    ends = np.cumsum([0, *counts]).tolist()
    for (i, j), start, stop in zip(places, ends, ends[1:], strict=False):
        out[i][j] = jax.tree.map(lambda x, a=start, b=stop: _rows(x, a, b), result)


def _rows(x: jax.Array, start: int, stop: int) -> jax.Array:
    return x if (start, stop) == (0, x.shape[0]) else jax.lax.slice_in_dim(x, start, stop)

"""Sparse Jacobians from one derivative pass per color, in forward mode, reverse mode or both."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from fnopt.jacobians._colored import SparseJacobian, TwoWayJacobian
from fnopt.jacobians._coloring import Bicoloring, Sparsity, SymmetricSparsity, bicoloring
from fnopt.jacobians._flat import VectorFunction, fits_at_once, lacks_forward, map_in_chunks
from fnopt.jacobians._pairs import Shapes
from fnopt.sharding import pvary_like, reshard_like

Coloring = tuple[Sparsity, bool] | Bicoloring
"""Coloring of the columns `(pattern, False)`, of the rows `(transpose, True)`, or of both."""


def coloring(
    rows: np.ndarray, cols: np.ndarray, shape: tuple[int, int], mode: str, leaves: Shapes = ()
) -> Coloring:
    """Color a pattern so that a sparse Jacobian takes few derivative passes.

    Args:
        rows: The row of every entry.
        cols: The column of every entry.
        shape: The numbers of rows and of columns.
        mode: `'forward'` colors columns, `'reverse'` rows, `'auto'` columns, rows or both.
        leaves: The shapes of the params' leaves, which are stored in the `Sparsity`.
    """
    coloring = _coloring(rows, cols, shape, mode)
    sparsity_of(coloring)[0].leaves = leaves
    return coloring


def sparsity_of(coloring: Coloring) -> tuple[Sparsity, bool]:
    """Return the pattern of a coloring as a `Sparsity`, and whether it is transposed."""
    return (coloring.whole, False) if isinstance(coloring, Bicoloring) else coloring


def _coloring(rows: np.ndarray, cols: np.ndarray, shape: tuple[int, int], mode: str) -> Coloring:
    if mode == "reverse":
        return Sparsity(cols, rows, (shape[1], shape[0])), True
    columns = Sparsity(rows, cols, shape)
    best = columns, False
    if mode == "forward":
        return best
    # A coloring of rows has at least as many colors as a column has entries.
    if columns.colors > np.bincount(columns.cols).max(initial=0):
        by_rows = Sparsity(cols, rows, (shape[1], shape[0]))
        best = (by_rows, True) if by_rows.colors < columns.colors else best
    return bicoloring(columns.rows, columns.cols, shape, best[0].colors) or best


def best_coloring(flat: VectorFunction, color: Callable[[str], Coloring], mode: str) -> Coloring:
    """Color the Jacobian of a function for the modes of differentiation that it supports."""
    if mode == "auto" and lacks_forward(flat.fn, flat.x):
        mode = "reverse"
    coloring = color(mode)
    # The check for a reverse mode traces the function, so it comes last.
    if mode == "auto" and _needs_reverse(coloring) and _lacks_reverse(flat):
        coloring = color("forward")
    return coloring


def compressed_jacobian(
    flat: VectorFunction, color: Callable[[str], Coloring], mode: str
) -> SparseJacobian:
    """Compute a sparse Jacobian with one derivative pass per color.

    Args:
        flat: The function.
        color: Function from a mode to the coloring of the Jacobian.
        mode: The requested mode. `'auto'` uses only modes that the function supports.

    Returns:
        The Jacobian.
    """
    coloring = best_coloring(flat, color, mode)
    if isinstance(coloring, Bicoloring):
        push = jax.linearize(flat.fn, flat.x)[1]
        pull = jax.linear_transpose(push, flat.x)
        sums = (
            _sums(push, coloring.columns, flat.x),
            _sums(lambda w: pull(w)[0], coloring.rows, flat.x),
        )
        return TwoWayJacobian(sums, coloring)
    sparsity, by_rows = coloring
    product = _pull(flat) if by_rows else jax.linearize(flat.fn, flat.x)[1]
    return SparseJacobian(_sums(product, sparsity, flat.x), sparsity, by_rows)


def product_sums(gradient: VectorFunction, sparsity: SymmetricSparsity) -> jax.Array:
    """Compute the sums of the Hessian's columns of each color, `[n, colors]`, from the gradient."""
    if lacks_forward(gradient.fn, gradient.x):
        # The Hessian is symmetric, so the VJP of the gradient is the same product as its JVP.
        return _sums(_pull(gradient), sparsity, gradient.x)
    return _sums(jax.linearize(gradient.fn, gradient.x)[1], sparsity, gradient.x)


def _needs_reverse(coloring: Coloring) -> bool:
    return isinstance(coloring, Bicoloring) or coloring[1]


def _lacks_reverse(flat: VectorFunction) -> bool:
    """Whether JAX can't transpose the function, because of a `while_loop` or a callback."""
    try:
        outputs = jax.eval_shape(flat.fn, flat.x)
        jax.eval_shape(lambda x, w: jax.vjp(flat.fn, x)[1](w), flat.x, outputs)
    # JAX raises one of these errors for a function without a reverse mode.
    except (TypeError, ValueError, NotImplementedError):
        return True
    return False


def _pull(flat: VectorFunction) -> Callable[[jax.Array], jax.Array]:
    value, pull = jax.vjp(flat.fn, flat.x)
    return lambda w: pull(reshard_like(pvary_like(w, value), value))[0]


# Numbers in the seeds or in the sums of colors that are computed at once: 8 MB in float64. With
# more, a bundle adjustment of 138 cameras and 44,000 points is slower, as the caches overflow.
_AT_ONCE = 2**20


def _sums(
    product: Callable[[jax.Array], jax.Array],
    sparsity: Sparsity | SymmetricSparsity,
    like: jax.Array,
) -> jax.Array:
    """Sum the columns (or rows) of each color: `[m, colors]` (or `[n, colors]`)."""

    def varying_product(v: jax.Array) -> jax.Array:
        # Inside shard_map, a tangent must vary over the same mesh axes as its primal.
        return product(pvary_like(v, like))

    chunk = max(1, _AT_ONCE // max(1, *sparsity.shape))
    if fits_at_once(sparsity.colors, chunk):
        return jax.vmap(varying_product, out_axes=1)(jnp.asarray(sparsity.seeds(like.dtype)))
    # Chunks of equal size compile once. Seeds past the last color are zero.
    passes = -(-sparsity.colors // chunk)
    chunk, color = -(-sparsity.colors // passes), jnp.asarray(sparsity.color)

    def seed(k: jax.Array) -> jax.Array:
        return (color == k).astype(like.dtype)

    sums = map_in_chunks(varying_product, seed, passes * chunk, chunk)
    return sums[: sparsity.colors].T

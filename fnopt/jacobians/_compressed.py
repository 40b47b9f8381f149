"""Compressed Jacobians: derivative passes by a coloring, forward, backward, or both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fnopt.jacobians._coloured import SparseJacobian, TwoWayJacobian
from fnopt.jacobians._colouring import Bicolouring, Sparsity, SymmetricSparsity, bicolouring
from fnopt.jacobians._flat import VectorFunction, at_once, in_chunks, lacks_forward
from fnopt.jacobians._pairs import Shapes
from fnopt.sharding import pvary_like, reshard_like

Colouring = tuple[Sparsity, bool] | Bicolouring
"""A coloring of columns, a coloring of rows (of the transpose, with True), or both."""


def colouring(
    rows: np.ndarray, cols: np.ndarray, shape: tuple[int, int], mode: str, leaves: Shapes = ()
) -> Colouring:
    """Coloring with the fewest passes, in a single direction if the mode requires it."""
    found = _colouring(rows, cols, shape, mode)
    sparsity_of(found)[0].leaves = leaves
    return found


def sparsity_of(found: Colouring) -> tuple[Sparsity, bool]:
    """The pattern as a `Sparsity`, and whether it is transposed."""
    return (found.whole, False) if isinstance(found, Bicolouring) else found


def _colouring(rows: np.ndarray, cols: np.ndarray, shape: tuple[int, int], mode: str) -> Colouring:
    if mode == "reverse":
        return Sparsity(cols, rows, (shape[1], shape[0])), True
    columns = Sparsity(rows, cols, shape)
    best = columns, False
    if mode == "forward":
        return best
    # A coloring of rows has at least as many colors as the fullest column has entries.
    if columns.colours > np.bincount(columns.cols).max(initial=0):
        by_rows = Sparsity(cols, rows, (shape[1], shape[0]))
        best = (by_rows, True) if by_rows.colours < columns.colours else best
    return bicolouring(columns.rows, columns.cols, shape, best[0].colours) or best


def best_colouring(
    flat: VectorFunction, coloured: Callable[[str], Colouring], mode: str
) -> Colouring:
    """Coloring in the modes of differentiation that a function supports."""
    if mode == "auto" and lacks_forward(flat.fn, flat.x):
        mode = "reverse"
    found = coloured(mode)
    if mode == "auto" and _goes_back(found) and _lacks_reverse(flat):
        found = coloured("forward")
    return found


def compressed(
    flat: VectorFunction, coloured: Callable[[str], Colouring], mode: str
) -> SparseJacobian:
    """Jacobian of a function by a coloring, in the modes of differentiation that it supports.

    Args:
        flat: The function.
        coloured: A function from a mode to the coloring.
        mode: The requested mode.

    Returns:
        The Jacobian.
    """
    found = best_colouring(flat, coloured, mode)
    if isinstance(found, Bicolouring):
        push = jax.linearize(flat.fn, flat.x)[1]
        back = jax.linear_transpose(push, flat.x)
        sums = (
            _sums(push, found.columns, flat.x),
            _sums(lambda w: back(w)[0], found.rows, flat.x),
        )
        return TwoWayJacobian(sums, found)
    sparsity, by_rows = found
    product = _pull(flat) if by_rows else jax.linearize(flat.fn, flat.x)[1]
    return SparseJacobian(_sums(product, sparsity, flat.x), sparsity, by_rows)


def product_sums(gradient: VectorFunction, sparsity: SymmetricSparsity) -> jax.Array:
    """Sums of the columns of each color of a Hessian, `[n, colors]`, by its gradient."""
    if lacks_forward(gradient.fn, gradient.x):
        return _sums(_pull(gradient), sparsity, gradient.x)
    return _sums(jax.linearize(gradient.fn, gradient.x)[1], sparsity, gradient.x)


def _goes_back(found: Colouring) -> bool:
    return isinstance(found, Bicolouring) or found[1]


def _lacks_reverse(flat: VectorFunction) -> bool:
    """Whether JAX can't transpose the function, because of a `while_loop` or a callback."""
    try:
        jax.eval_shape(lambda x, w: jax.vjp(flat.fn, x)[1](w), flat.x, _outputs(flat))
    # JAX's errors for functions without a reverse mode
    except (TypeError, ValueError, NotImplementedError):
        return True
    return False


def _outputs(flat: VectorFunction) -> Any:
    return jax.eval_shape(flat.fn, flat.x)


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
    """The sum of the columns (or rows) of each color, `[m, colors]` (or `[n, colors]`)."""

    def typed(v: jax.Array) -> jax.Array:
        return product(pvary_like(v, like))

    chunk = max(1, _AT_ONCE // max(sparsity.shape))
    if at_once(sparsity.colours, chunk):
        return jax.vmap(typed, out_axes=1)(jnp.asarray(sparsity.seeds(like.dtype)))
    colour = jnp.asarray(sparsity.colour)
    return in_chunks(typed, lambda k: (colour == k).astype(like.dtype), sparsity.colours, chunk).T

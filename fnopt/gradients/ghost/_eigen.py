"""Gradients in the eigenbases of the Kronecker factors, and second moments of these gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.gradients.ghost._factors import sum_of
from fnopt.gradients.ghost._gram import BLOCK_BYTES
from fnopt.numerics import HIGHEST
from fnopt.sharding import is_sharded, replicate


def rotate_rows(x: jax.Array, basis: jax.Array) -> jax.Array:
    """Rotate rows into a basis: `x Q`.

    Args:
        x: The rows, `[..., T, R, d]`.
        basis: `Q`, orthogonal blocks `[T, blocks, width, width]` with the basis vectors in columns.
            Without blocks, the basis is the identity.

    Returns:
        An array `[..., T, R, blocks * width]`; the last block may be padded with zeros.
    """
    count, width = basis.shape[1:3]
    if not count:
        return x
    widths = [(0, 0)] * (x.ndim - 1) + [(0, count * width - x.shape[-1])]
    blocks = jnp.pad(x, widths).reshape(*x.shape[:-1], count, width)
    return jnp.einsum("...trbi,tbij->...trbj", blocks, basis, precision=HIGHEST).reshape(
        *x.shape[:-1], count * width
    )


def rotate_rows_back(x: jax.Array, basis: jax.Array, size: int) -> jax.Array:
    """Invert `rotate_rows`: `x Q^T`, `[..., T, R, size]`."""
    count, width = basis.shape[1:3]
    if not count:
        return x
    blocks = x.reshape(*x.shape[:-1], count, width)
    rows = jnp.einsum("...trbj,tbij->...trbi", blocks, basis, precision=HIGHEST)
    return rows.reshape(*x.shape[:-1], count * width)[..., :size]


def squares_of_sites(sites: Sequence[Any], bases: tuple[jax.Array, ...]) -> jax.Array:
    """Sum over examples and residuals of the elementwise squared gradients, `[T, D, K]`.

    Args:
        sites: The inputs `[n, T, R, d]` and cotangents `[n, k, T, R, d]` of each site of the
            weight.
        bases: The bases of the left and of the right side.
    """
    left, right = bases
    if sites[0].lookup:
        return _squares_of_lookups(sites, right)
    pairs = [
        _rotate_pair(s, right, left) if s.swapped else _rotate_pair(s, left, right) for s in sites
    ]
    swapped = [s.swapped for s in sites]
    if len(sites) == 1 and sites[0].positions == 1:
        # With one position, (a_d c_k)^2 = a_d^2 c_k^2, so that no gradient is formed.
        (a, c), swap = pairs[0], swapped[0]
        a, c = a[:, :, 0] ** 2, jnp.sum(c[:, :, :, 0] ** 2, 1)
        form = "nte,ntd->tde" if swap else "ntd,nte->tde"
        return jnp.einsum(form, replicate(a, 0), replicate(c, 0), precision=HIGHEST)

    def square_gradients(pairs: Any) -> jax.Array:
        forms = ["ktrd,tre->ktde" if swap else "ktre,trd->ktde" for swap in swapped]
        total = sum_of(
            jnp.einsum(form, c, a, precision=HIGHEST)
            for form, (a, c) in zip(forms, pairs, strict=True)
        )
        return jnp.sum(total**2, 0)

    a, c = pairs[0]
    entries = c.shape[1] * c.shape[2] * a.shape[-1] * c.shape[-1]  # per example
    if 4 * a.shape[0] * entries <= BLOCK_BYTES or is_sharded(a):
        return jnp.sum(jax.vmap(square_gradients)(pairs), 0)

    # Gradients of larger batches are formed one example at a time.
    shape = jax.eval_shape(square_gradients, jax.tree.map(lambda x: x[0], pairs))
    zeros = jnp.zeros(shape.shape, shape.dtype)
    return jax.lax.scan(lambda s, pair: (s + square_gradients(pair), None), zeros, pairs)[0]


def _rotate_pair(site: Any, inputs: jax.Array, cotangents: jax.Array) -> tuple[Any, Any]:
    return rotate_rows(site.inputs, inputs), rotate_rows(site.cotangents, cotangents)


def _squares_of_lookups(sites: Sequence[Any], basis: jax.Array) -> jax.Array:
    """Sum of squared gradients of lookups, `[T, D, K]`.

    An example may look up a row repeatedly. The square of the row's gradient `sum_s g_s` is then
    `sum_r g_r (sum_s g_s)`, with sums over the positions of the row.
    """
    index = jnp.concatenate([s.index for s in sites], 2)  # [n, T, R]
    # One-hot inputs have the identity as their basis, so only cotangents are rotated.
    g = rotate_rows(jnp.concatenate([s.cotangents for s in sites], 3), basis)
    same = (index[..., :, None] == index[..., None, :]).astype(g.dtype)
    row_gradients = jnp.einsum("ntrs,nktse->nktre", same, g, precision=HIGHEST)
    squares = replicate(jnp.sum(g * row_gradients, 1), 0)
    matrices = jnp.arange(index.shape[1])[None, :, None]
    zeros = jnp.zeros((index.shape[1], sites[0].sides[0].size, g.shape[-1]), g.dtype)
    return zeros.at[matrices, replicate(index, 0)].add(squares)

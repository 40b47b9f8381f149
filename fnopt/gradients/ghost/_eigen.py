"""Gradients in the eigenbases of their Kronecker factors, and their second moments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.gradients.ghost._factors import sum_of
from fnopt.numerics import HIGHEST
from fnopt.sharding import is_sharded, replicate

# Entries of gradients that are formed at once: 64 MB in float32. Larger batches form the gradients
# of one example at a time.
_LARGEST = 2**24


def rotate_rows(x: jax.Array, basis: jax.Array) -> jax.Array:
    """Rotate rows into a basis: `x Q`.

    Args:
        x: `[..., T, R, d]`.
        basis: `Q`, orthogonal blocks `[T, blocks, width, width]` with the basis vectors in columns.
            Without blocks, the basis is the identity.

    Returns:
        `[..., T, R, blocks * width]`; the last block may be padded.
    """
    count, width = basis.shape[1:3]
    if not count:
        return x
    widths = [(0, 0)] * (x.ndim - 1) + [(0, count * width - x.shape[-1])]
    cut = jnp.pad(x, widths).reshape(*x.shape[:-1], count, width)
    return jnp.einsum("...trbi,tbij->...trbj", cut, basis, precision=HIGHEST).reshape(
        *x.shape[:-1], count * width
    )


def rotate_rows_back(x: jax.Array, basis: jax.Array, size: int) -> jax.Array:
    """Invert `rotate_rows`: `x Q^T`, `[..., T, R, size]`."""
    count, width = basis.shape[1:3]
    if not count:
        return x
    cut = x.reshape(*x.shape[:-1], count, width)
    found = jnp.einsum("...trbj,tbij->...trbi", cut, basis, precision=HIGHEST)
    return found.reshape(*x.shape[:-1], count * width)[..., :size]


def squares_of_sites(sites: Sequence[Any], bases: tuple[jax.Array, ...]) -> jax.Array:
    """Sum over examples and residuals of the squared gradients of a weight, `[T, D, K]`.

    Args:
        sites: The inputs `[n, T, R, d]` and cotangents `[n, k, T, R, d]` of each site of the
            weight.
        bases: The bases of the left and of the right side.
    """
    left, right = bases
    if sites[0].lookup:
        return _squares_of_lookups(sites, right)
    pairs = [
        _rotate_pair(s, right, left) if s.turned else _rotate_pair(s, left, right) for s in sites
    ]
    turned = [s.turned for s in sites]
    if len(sites) == 1 and sites[0].positions == 1:
        # The square of an outer product is the product of the squares.
        (a, c), swap = pairs[0], turned[0]
        a, c = a[:, :, 0] ** 2, jnp.sum(c[:, :, :, 0] ** 2, 1)
        form = "nte,ntd->tde" if swap else "ntd,nte->tde"
        return jnp.einsum(form, replicate(a, 0), replicate(c, 0), precision=HIGHEST)

    def square_gradients(pairs: Any) -> jax.Array:
        forms = ["ktrd,tre->ktde" if swap else "ktre,trd->ktde" for swap in turned]
        total = sum_of(
            jnp.einsum(form, c, a, precision=HIGHEST)
            for form, (a, c) in zip(forms, pairs, strict=True)
        )
        return jnp.sum(total**2, 0)

    a, c = pairs[0]
    numbers = c.shape[1] * c.shape[2] * a.shape[-1] * c.shape[-1]  # entries per example
    if a.shape[0] * numbers <= _LARGEST or is_sharded(a):
        return jnp.sum(jax.vmap(square_gradients)(pairs), 0)

    shape = jax.eval_shape(square_gradients, jax.tree.map(lambda x: x[0], pairs))
    zeros = jnp.zeros(shape.shape, shape.dtype)
    return jax.lax.scan(lambda s, pair: (s + square_gradients(pair), None), zeros, pairs)[0]


def _rotate_pair(site: Any, inputs: jax.Array, cotangents: jax.Array) -> tuple[Any, Any]:
    return rotate_rows(site.inputs, inputs), rotate_rows(site.cotangents, cotangents)


def _squares_of_lookups(sites: Sequence[Any], basis: jax.Array) -> jax.Array:
    """Squared gradients of lookups; gradients of repeated rows of an example are summed first."""
    index = jnp.concatenate([s.index for s in sites], 2)  # [n, T, R]
    # A one-hot input keeps its own basis, so only cotangents are rotated.
    g = rotate_rows(jnp.concatenate([s.cotangents for s in sites], 3), basis)
    same = (index[..., :, None] == index[..., None, :]).astype(g.dtype)
    whole = jnp.einsum("ntrs,nktse->nktre", same, g, precision=HIGHEST)
    squares = replicate(jnp.sum(g * whole, 1), 0)
    matrices = jnp.arange(index.shape[1])[None, :, None]
    zeros = jnp.zeros((index.shape[1], sites[0].sides[0].size, g.shape[-1]), g.dtype)
    return zeros.at[matrices, replicate(index, 0)].add(squares)

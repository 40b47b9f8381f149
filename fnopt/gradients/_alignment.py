"""The alignment of every example's gradient with the mean of the others."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import nonzero, norm_of_leaves, safe_sqrt, scan_chunks
from fnopt.gradients._loss import BoundLoss
from fnopt.gradients._moments import Totals
from fnopt.programs import jaxprs


def alignment_with_others(bound: BoundLoss, found: Totals, chunk_size: int | None) -> jax.Array:
    r"""The cosine between every gradient and the sum `S` of those of the others, `[n]`.

    .. math:: \cos(g_i, S - g_i) = \frac{\langle g_i, S \rangle - \lVert g_i \rVert^2}
              {\lVert g_i \rVert \, (\lVert S \rVert^2 - 2 \langle g_i, S \rangle
              + \lVert g_i \rVert^2)^{1/2}}

    With itself in the sum, a single huge gradient would seem to agree best of all. It is zero
    where there is no direction to compare.

    Args:
        bound: The loss and the batch.
        found: The sums of one pass over the batch.
        chunk_size: How many examples to take at once.
    """
    norm, mean = found.norm, found.moments.mean
    length = norm_of_leaves(jax.tree.leaves(mean)).astype(norm.dtype)

    def unit(x: jax.Array, param: Any) -> jax.Array:
        # Of length 1, which even float16 can hold.
        return jnp.conj(x / nonzero(length).astype(x.dtype)).astype(param.dtype)

    direction = jax.tree.map(unit, mean, bound.params)
    # In units of the largest norm, whose squares are in range.
    largest = nonzero(jnp.max(jnp.where(jnp.isfinite(norm), norm, jnp.zeros_like(norm))))
    along = derivatives_along(bound, direction, chunk_size).astype(norm.dtype) / largest
    total = length / largest * found.moments.count.astype(norm.dtype)
    relative = norm / largest
    own = relative
    if found.counts is not None:
        own = jnp.where(found.counts, relative, jnp.zeros_like(relative))
    # For an example that counts `along` is its own part too, for the others it is not.
    mine = (own / nonzero(relative)) * along
    others = safe_sqrt(total**2 - 2 * total * mine + own**2)
    cosine = (total * along - own**2) / nonzero(relative * others)
    return jnp.where(relative * others == 0, jnp.zeros_like(cosine), jnp.clip(cosine, -1, 1))


def derivatives_along(bound: BoundLoss, direction: Any, chunk_size: int | None) -> jax.Array:
    """The inner product of every example's gradient with a direction like the params, `[n]`."""
    derive = _reverse if _has_custom_vjp(bound) else _forward

    def body(carry: None, chunk: Any) -> tuple[None, jax.Array]:
        return carry, derive(bound, direction, chunk)

    return scan_chunks(body, None, bound.batch, bound.size, chunk_size)[1]


def _forward(bound: BoundLoss, direction: Any, chunk: Any) -> jax.Array:
    def along(example: Any) -> jax.Array:
        def loss(params: Any) -> jax.Array:
            return bound.loss(params, example)[0]

        return jax.jvp(loss, (bound.params,), (direction,))[1]

    return jax.vmap(along)(chunk)


def _reverse(bound: BoundLoss, direction: Any, chunk: Any) -> jax.Array:
    """The inner products by reverse mode alone: the backward pass is linear in the weights."""

    def losses(params: Any) -> jax.Array:
        return jax.vmap(lambda example: bound.loss(params, example)[0])(chunk)

    values, pull = jax.vjp(losses, bound.params)

    def along(weights: jax.Array) -> jax.Array:
        products = jax.tree.map(lambda x, y: jnp.real(jnp.sum(x * y)), pull(weights)[0], direction)
        parts = [x.astype(weights.dtype) for x in jax.tree.leaves(products)]
        return functools.reduce(jnp.add, parts)

    return jax.grad(along)(jnp.ones_like(values))


def _has_custom_vjp(bound: BoundLoss) -> bool:
    example = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), bound.batch)
    jaxpr = jax.make_jaxpr(bound.loss)(bound.params, example)
    return any(e.primitive.name.startswith("custom_vjp") for e in jaxprs.equations(jaxpr.jaxpr))

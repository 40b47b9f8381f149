"""Minimizer of the exact quadratic model of a batch in the span of two directions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import global_norm
from fnopt.numerics import HIGHEST
from fnopt.sharding import replicate

# Squared sine below which two directions count as parallel. It is about 1e3 eps in float32, so the
# 2 x 2 solution in terms of the cosine keeps three digits.
_PARALLEL = 1e-4


class StackedDirection(NamedTuple):
    """Direction as a tree and as stacked matrices; zero if it isn't finite.

    Attributes:
        unit: The direction with norm 1 (or zero), like the params, so that squares don't underflow.
        matrices: `unit` as stacked matrices, for inner products over fewer arrays.
        norm: The norm of the direction; 1 if it is zero.
        some: Whether the direction isn't zero.
        finite: Whether the direction is finite.
    """

    unit: Any
    matrices: Any
    norm: jax.Array
    some: jax.Array
    finite: jax.Array


def direction(tree: Any, matrices: Any) -> StackedDirection:
    """Make a `StackedDirection` from the two forms of a direction."""
    # With directions of norm 1, the entries of the model's 2 x 2 matrix have similar magnitudes.
    norm = global_norm(matrices)
    finite = jnp.isfinite(norm)
    is_nonzero = finite & (norm > 0)
    norm = jnp.where(is_nonzero, norm, jnp.ones_like(norm))

    units, stacks = jax.tree.map(
        lambda x: jnp.where(finite, x / norm.astype(x.dtype), jnp.zeros_like(x)), (tree, matrices)
    )
    return StackedDirection(units, stacks, norm, is_nonzero, finite)


class Combination(NamedTuple):
    """Weights of the two directions, and the predicted change of the objective.

    Attributes:
        weights: `[2]`.
        change: The change that the undamped model predicts.
        share: The fraction of the damped model's second derivative that isn't due to damping.
    """

    weights: jax.Array
    change: jax.Array
    share: jax.Array


def best_combination(
    push: Callable[[Any], jax.Array],
    hessian_product: Callable[[jax.Array], jax.Array],
    gradient: Any,
    directions: tuple[StackedDirection, StackedDirection],
    damping: jax.Array,
    l2: jax.Array,
    total: Callable[[Any], Any] = lambda sums: sums,
) -> Combination:
    r"""Minimize the damped model over the span of two directions.

    .. math:: M(u) = g^\top u + \tfrac12 u^\top (G + (\eta + \lambda) I)\, u,
              \qquad u = \alpha d + \mu m

    Args:
        push: `v -> J v`, the outputs of all examples.
        hessian_product: The product with the Hessian of the mean loss with respect to the outputs.
        gradient: `g`, the gradient of the whole objective, as matrices.
        directions: `d` and `m`; `m` may be zero.
        damping: :math:`\lambda`.
        l2: :math:`\eta`.
        total: Function that sums over devices: from sums over this device's examples to sums over
            all examples.

    Returns:
        The weights; NaN if the model has no minimum.
    """
    units = [d.matrices for d in directions]
    outputs = [push(d.unit) for d in directions]
    weighted = [hessian_product(x) for x in outputs]
    # The model restricted to the span: a gradient `[2]` and matrices `[2, 2]`.
    r = jnp.stack([_dot(gradient, u) for u in units])
    inner = _symmetric(lambda i, j: _dot(units[i], units[j]))
    quadratic = total(_symmetric(lambda i, j: _dot(outputs[i], weighted[j]))) + l2 * inner
    c = _minimum(quadratic + damping * inner, r, [d.some for d in directions])
    curvature, norm_squared = (
        jnp.dot(c, jnp.dot(B, c, precision=HIGHEST), precision=HIGHEST) for B in (quadratic, inner)
    )
    damping_term = damping * norm_squared
    total_curvature = jnp.where(
        curvature + damping_term > 0, curvature + damping_term, jnp.ones_like(damping_term)
    )
    return Combination(
        c / jnp.stack([d.norm for d in directions]),
        jnp.dot(r, c, precision=HIGHEST) + curvature / 2,
        curvature / total_curvature,
    )


def _minimum(B: jax.Array, r: jax.Array, nonzero: list[jax.Array]) -> jax.Array:
    """Return `-B^-1 r`, without the second direction if it is zero or parallel to the first."""
    is_convex = nonzero[0] & (B[0, 0] > 0)
    scale = jnp.sqrt(jnp.where(B > 0, B, jnp.ones_like(B)).diagonal())
    cosine = B[0, 1] / (scale[0] * scale[1])
    sine = 1 - cosine * cosine
    use_both = is_convex & nonzero[1] & (B[1, 1] > 0) & (sine > _PARALLEL)
    s = r / scale
    sine_or_one = jnp.where(use_both, sine, jnp.ones_like(sine))
    two_weights = -jnp.stack([s[0] - cosine * s[1], s[1] - cosine * s[0]]) / sine_or_one
    one_weight = -jnp.stack([s[0], jnp.zeros_like(s[0])])
    c = (
        jnp.where(
            use_both, two_weights, jnp.where(is_convex, one_weight, jnp.zeros_like(one_weight))
        )
        / scale
    )
    # With negative curvature, or a product that isn't finite, there is no minimum. The weights are
    # then NaN, so that the caller doesn't mistake them for a zero step.
    has_minimum = jnp.all(jnp.isfinite(B)) & (is_convex | ~nonzero[0])
    return jnp.where(has_minimum, c, jnp.full_like(c, jnp.nan))


def _symmetric(entry: Callable[[int, int], jax.Array]) -> jax.Array:
    a, b, c = entry(0, 0), entry(0, 1), entry(1, 1)
    return jnp.stack([jnp.stack([a, b]), jnp.stack([b, c])])


def _dot(a: Any, b: Any) -> jax.Array:
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    # On an explicit mesh, JAX can't merge a sharded axis with another axis.
    vectors = [(replicate(x).reshape(-1), replicate(y).reshape(-1)) for x, y in pairs]
    terms = [jnp.dot(x, y, precision=HIGHEST) for x, y in vectors]
    return sum(terms[1:], terms[0])

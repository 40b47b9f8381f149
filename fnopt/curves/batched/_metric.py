"""The metric of the damping, in which steps are measured."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from fnopt.curves.batched._lanes import Params
from fnopt.linear import NormalEquations, jacobi_scale

SIZE_FLOOR = 0.49  # of the sum of squares, for what a param's whole effect counts at least


def metric(x: Params, sums: NormalEquations, peak: Params, size_floor: jax.Array) -> Params:
    r"""One over the length of each param, :math:`D^{-1}`.

    .. math:: D_j = \max\Bigl(\max_k \|J_j^{(k)}\|,\; \delta\, \|r\| / |x_j|\Bigr)

    As in :func:`fnopt.least_squares`: it never forgets how steep a param once was, and one whose
    whole effect is less than the residuals changes by factors, not by magnitudes. Otherwise a step
    throws a param that hardly moves the residuals to where it has no effect at all.

    Args:
        x: The params.
        sums: The sums there.
        peak: The squares of the largest columns so far.
        size_floor: The square of :math:`\delta`, or 0.
    """
    least = size_floor * sums.felt

    def one(x: jax.Array, peak: jax.Array, inverse: jax.Array) -> jax.Array:
        short = (x != 0) & (least > peak * jnp.square(x))
        safe = jnp.where(short, least, jnp.ones_like(least))
        return jnp.where(short, jnp.abs(x) * lax.rsqrt(safe), inverse)

    inverses = jacobi_scale(tuple((p,) for p in peak))
    return tuple(one(*parts) for parts in zip(x, peak, inverses, strict=True))


def grown(peak: Params, sums: NormalEquations) -> Params:
    """The squares of the largest columns, those of this point included."""
    return tuple(jnp.maximum(p, row[-1]) for p, row in zip(peak, sums.A, strict=True))

"""Trust-region steps: damped systems solved by Cholesky factorization, and the dogleg path."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fnopt.linear._krylov_system import to_boundary
from fnopt.linear._norms import divide, norm
from fnopt.linear._system import DampedStep, System
from fnopt.numerics import matmul
from fnopt.sharding import replicate, while_loop

# Tolerance of the step length, relative to the radius. Moré (1978), section 5, takes 0.1. With it,
# NIST's 54 fits take up to a quarter more evaluations in float32, and one fewer is solved.
_SLACK = 0.2
_FACTORISATIONS = 10  # as in MINPACK's lmpar; two or three are usual


class Damped(NamedTuple):
    r"""The solution of :math:`(K + \lambda I)\, y = b`, and the length of its step."""

    y: jax.Array  # [k]
    lam: jax.Array
    length: jax.Array  # ||p||
    slope: jax.Array  # p^T (A^T A + lam I)^-1 p, which is -||p|| d||p||/dlam
    factor: Any  # the factor of K + lam I, for further right-hand sides


def cholesky(K: jax.Array, lam: jax.Array) -> jax.Array:
    r"""Return the lower factor of :math:`K + \lambda I`; NaN if it isn't positive definite."""
    i = jnp.arange(K.shape[0])
    # Only the lower triangle is read, because averaging it with the upper one would write another
    # matrix.
    return lax.linalg.cholesky(K.at[i, i].add(lam), symmetrize_input=False)


def forward(L: jax.Array, b: jax.Array, transposed: bool = False) -> jax.Array:
    r"""Solve :math:`L y = b`."""
    column = replicate(b)[:, None]
    return lax.linalg.triangular_solve(
        L, column, left_side=True, lower=True, transpose_a=transposed
    )[:, 0]


def backward(L: jax.Array, b: jax.Array) -> jax.Array:
    r"""Solve :math:`L^T y = b`."""
    return forward(L, b, transposed=True)


class Solvers(NamedTuple):
    """Forward and backward substitution with a factorization."""

    forward: Callable[[jax.Array], jax.Array]  # b -> y with L y = b, or its blocks
    backward: Callable[[jax.Array], jax.Array]  # y -> x with L^T x = y


def rounding_damping(top: jax.Array, k: int) -> jax.Array:
    r"""Return the smallest damping that rounding errors allow.

    The factorization of a singular matrix has an error of about :math:`\sqrt{k}\, \epsilon`, and
    may fail if the damping is smaller than this error. If the damping is equal to it, rounding
    errors in undetermined directions are as large as the step itself. The damping is therefore 32
    times as large.

    Args:
        top: The largest entry of the diagonal.
        k: The number of entries in a row of the factor.
    """
    info = jnp.finfo(top.dtype)
    eps = jnp.asarray(32 * math.sqrt(k) * info.eps, top.dtype)
    return jnp.maximum(eps * top, jnp.asarray(info.tiny, top.dtype))


class _SecularSearch(NamedTuple):
    now: Damped
    low: jax.Array
    high: jax.Array
    tries: jax.Array


def secular_root(
    solve: Callable[[jax.Array], Damped],
    radius: jax.Array,
    least: jax.Array,
    most: jax.Array,
    start: jax.Array,
) -> Damped:
    r"""Find the damping at which the step length equals the trust-region radius.

    If the step with the smallest damping is within the radius, it is returned. Otherwise the
    damping is the root of the secular equation

    .. math:: \phi(\lambda) = \|p(\lambda)\| - \Delta = 0, \qquad
        \phi' = -\frac{p^T (A^T A + \lambda I)^{-1} p}{\|p\|}.

    Hebden's iteration is Newton's method for :math:`1/\|p\| - 1/\Delta`, which is nearly linear:

    .. math:: \lambda \leftarrow \lambda - \frac{\|p\|}{\Delta} \frac{\phi}{\phi'}

    Every iteration costs a factorization, so the search starts from a guess and ends when the
    length is close to the radius.

    Args:
        solve: A function from a damping to the solution.
        radius: The trust-region radius.
        least: The smallest damping.
        most: A damping at which the step is certainly shorter than the radius.
        start: The initial guess of the damping, such as the damping of the previous step.

    Returns:
        The solution. The number of iterations is bounded.

    Reference:
        Moré and Sorensen (1983), Computing a trust region step; Conn, Gould and Toint (2000),
        Trust-Region Methods, section 7.3.
    """
    most = jnp.clip(most, least, jnp.asarray(jnp.finfo(least.dtype).max, least.dtype))

    def advance(state: _SecularSearch) -> _SecularSearch:
        lam, low, high = _next(state, radius, least)
        return _SecularSearch(solve(lam), low, high, state.tries + 1)

    def is_off(state: _SecularSearch) -> jax.Array:
        # A step much shorter than the radius is overdamped, unless the damping is minimal.
        lam, length = state.now.lam, state.now.length
        fits = (lam <= least) & (length <= radius)
        far = ~(jnp.abs(length - radius) <= jnp.asarray(_SLACK, radius.dtype) * radius)
        # No damping leads to a step of length 0. The loop's first iteration has this radius.
        return ~fits & far & (radius > 0) & (state.tries < _FACTORISATIONS)

    first = solve(jnp.clip(start, least, most))
    search = _SecularSearch(first, jnp.zeros_like(least), most, jnp.ones((), jnp.int32))
    return while_loop(is_off, advance, search).now


def _next(
    state: _SecularSearch, radius: jax.Array, least: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the next damping and its bracket; a failed factorization is treated as a long step."""
    lam, length = state.now.lam, state.now.length
    short = length < radius
    high = jnp.where(short, jnp.minimum(state.high, lam), state.high)
    low = jnp.where(short, state.low, jnp.maximum(state.low, lam))
    # Hebden's step is Newton's step for 1 / length, which is nearly linear in the damping.
    hebden = lam + (jnp.square(length) / state.now.slope) * (length - radius) / radius
    # If Hebden's step leaves the bracket, the bracket's geometric mean replaces it (roots first,
    # because the product may overflow), but at least ten times the lower end, at most the upper.
    middle = jnp.maximum(jnp.sqrt(low) * jnp.sqrt(high), jnp.asarray(10, low.dtype) * low)
    lam = jnp.where((hebden > low) & (hebden < high), hebden, jnp.minimum(middle, high))
    # The smallest damping is tried as soon as the iteration falls below it.
    return jnp.maximum(lam, least), low, high


def dogleg_step(system: System, g: jax.Array, radius: jax.Array) -> DampedStep:
    r"""Return the last point of the dogleg path within the trust region.

    .. math:: p_C = -\frac{\|g\|^2}{\|A g\|^2}\, g, \qquad
        p(t) = \begin{cases} t\, p_C & t \le 1 \\
        p_C + (t - 1)(p_N - p_C) & t > 1 \end{cases}

    The path leads from 0 through the Cauchy step to the full step. Along the path the length
    increases and the model decreases, so the last point within the radius has the smallest model
    value.

    Args:
        system: The linear model.
        g: :math:`A^T r`, of shape `[n]`.
        radius: The trust-region radius, a scalar > 0.

    Returns:
        The step. Its damping is 0 for the full step; otherwise it is a positive placeholder.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.linear import TallGramSystem, dogleg_step
        >>> G, g = jnp.diag(jnp.asarray([1.0, 4.0])), jnp.asarray([1.0, 4.0])
        >>> system = TallGramSystem(G, g, jnp.float32(0))
        >>> print(dogleg_step(system, g, jnp.float32(9)).p.round(4))
        [-1. -1.]
    """
    full = system.gauss_newton()
    length = norm(full.p)
    square = jnp.sum(jnp.square(g))
    cauchy = -divide(square, system.model_norm(g)) * g
    leg = full.p - cauchy
    inside = norm(cauchy) < radius
    t = jnp.minimum(to_boundary(cauchy, leg, radius), jnp.ones_like(radius))
    far = jnp.where(norm(cauchy) > 0, radius / norm(cauchy), jnp.zeros_like(radius))
    bent = jnp.where(inside, cauchy + t * leg, far * cauchy)
    fits = length <= radius
    p = jnp.where(fits, full.p, bent)
    model_norm = jnp.where(fits, full.model_norm, system.model_norm(p))
    predicted = jnp.where(
        fits, full.predicted, -matmul(g, p) - jnp.asarray(0.5, p.dtype) * model_norm
    )
    lam = jnp.where(fits, full.lam, jnp.maximum(divide(norm(g), radius), jnp.finfo(p.dtype).tiny))
    return DampedStep(p, lam, model_norm, predicted)

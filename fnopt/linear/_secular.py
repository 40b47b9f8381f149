"""Trust-region steps: the secular equation by Cholesky factorizations, and the dogleg path."""

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

# Tolerance of the step length, relative to the radius. With 0.1, as in Moré (1978), section 5,
# NIST's 54 fits take up to a quarter more evaluations in float32, and one fit fewer is solved.
_TOLERANCE = 0.2
_MAX_FACTORIZATIONS = 10  # as in MINPACK's lmpar; two or three are usual
# Smallest damping, relative to the error of a factorization. Rounding errors in undetermined
# directions are then 1 / 32 of the step.
ROUNDING_MARGIN = 32


class Damped(NamedTuple):
    r"""The solution of :math:`(K + \lambda I)\, y = b`, and the length of the step `p`.

    `p` is `y` or a linear function of `y`, depending on the Gram matrix `K`.
    """

    y: jax.Array  # [k]
    lam: jax.Array
    length: jax.Array  # ||p||
    slope: jax.Array  # p^T (A^T A + lam I)^-1 p, which is -||p|| d||p||/dlam
    factor: Any  # the factor of K + lam I, for other right-hand sides


def cholesky(K: jax.Array, lam: jax.Array) -> jax.Array:
    r"""Return the lower factor of :math:`K + \lambda I`; NaN if it isn't positive definite."""
    i = jnp.arange(K.shape[0])
    # Symmetrizing the input would write another matrix, and LAPACK reads only the lower triangle.
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

    forward: Callable[[jax.Array], jax.Array]  # solves L y = b; returns y or its blocks
    backward: Callable[[jax.Array], jax.Array]  # solves L^T x = y


def rounding_damping(top: jax.Array, k: int) -> jax.Array:
    r"""Return the smallest damping for which a Cholesky factorization is accurate.

    The factorization of a singular matrix has a relative error of about :math:`\sqrt{k}\,
    \epsilon`, and may fail if the damping is smaller than this error. With a damping equal to the
    error, rounding errors in undetermined directions would be as large as the step. Therefore the
    smallest damping is 32 times the error.

    Args:
        top: The largest entry of the diagonal.
        k: The number of entries in a row of the factor.
    """
    info = jnp.finfo(top.dtype)
    eps = jnp.asarray(ROUNDING_MARGIN * math.sqrt(k) * info.eps, top.dtype)
    return jnp.maximum(eps * top, jnp.asarray(info.tiny, top.dtype))


class _SecularState(NamedTuple):
    solution: Damped
    low: jax.Array  # lower end of the bracket of the damping
    high: jax.Array  # upper end of the bracket
    count: jax.Array  # int32, number of factorizations


def secular_root(
    solve: Callable[[jax.Array], Damped],
    radius: jax.Array,
    min_damping: jax.Array,
    max_damping: jax.Array,
    start: jax.Array,
) -> Damped:
    r"""Find the damping at which the step length equals the trust-region radius.

    A step with the smallest damping is returned if its length is within the radius. Otherwise the
    damping is the root of the secular equation

    .. math:: \phi(\lambda) = \|p(\lambda)\| - \Delta = 0, \qquad
        \phi' = -\frac{p^T (A^T A + \lambda I)^{-1} p}{\|p\|}.

    Hebden's iteration is Newton's method for :math:`1/\|p\| - 1/\Delta`, which is nearly linear:

    .. math:: \lambda \leftarrow \lambda - \frac{\|p\|}{\Delta} \frac{\phi}{\phi'}

    Every iteration costs a factorization, so the search starts from a guess and ends when the
    length is close to the radius.

    Args:
        solve: `solve(lam)` returns the solution for a damping.
        radius: The trust-region radius.
        min_damping: The smallest damping.
        max_damping: A damping at which the step is certainly shorter than the radius.
        start: The initial guess of the damping, such as the damping of the previous step.

    Returns:
        The solution after at most 10 factorizations.

    Reference:
        Moré and Sorensen (1983), Computing a trust region step; Conn, Gould and Toint (2000),
        Trust-Region Methods, section 7.3.
    """
    largest = jnp.asarray(jnp.finfo(min_damping.dtype).max, min_damping.dtype)
    max_damping = jnp.clip(max_damping, min_damping, largest)

    def advance(state: _SecularState) -> _SecularState:
        lam, low, high = _next_damping(state, radius, min_damping)
        return _SecularState(solve(lam), low, high, state.count + 1)

    def unfinished(state: _SecularState) -> jax.Array:
        # A step much shorter than the radius is overdamped, unless the damping is minimal.
        lam, length = state.solution.lam, state.solution.length
        is_full_step = (lam <= min_damping) & (length <= radius)
        # The comparison is negated, so that NaN after a failed factorization continues the search.
        far = ~(jnp.abs(length - radius) <= jnp.asarray(_TOLERANCE, radius.dtype) * radius)
        # The trust-region loop begins with a radius of 0, which no damping can reach.
        return ~is_full_step & far & (radius > 0) & (state.count < _MAX_FACTORIZATIONS)

    first = solve(jnp.clip(start, min_damping, max_damping))
    zero, one = jnp.zeros_like(min_damping), jnp.ones((), jnp.int32)
    state = _SecularState(first, zero, max_damping, one)
    return while_loop(unfinished, advance, state).solution


def _next_damping(
    state: _SecularState, radius: jax.Array, min_damping: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the next damping and its bracket; a failed factorization is treated as a long step."""
    lam, length = state.solution.lam, state.solution.length
    short = length < radius  # False for NaN
    high = jnp.where(short, jnp.minimum(state.high, lam), state.high)
    low = jnp.where(short, state.low, jnp.maximum(state.low, lam))
    # Hebden's step is Newton's step for 1 / length, which is nearly linear in the damping.
    hebden = lam + (jnp.square(length) / state.solution.slope) * (length - radius) / radius
    # If Hebden's step leaves the bracket, use the geometric mean of the bracket, but at least its
    # lower end times Marquardt's factor of 10. The roots come first, because the product may
    # overflow.
    mean = jnp.maximum(jnp.sqrt(low) * jnp.sqrt(high), jnp.asarray(10, low.dtype) * low)
    lam = jnp.where((hebden > low) & (hebden < high), hebden, jnp.minimum(mean, high))
    return jnp.maximum(lam, min_damping), low, high


def dogleg_step(system: System, g: jax.Array, radius: jax.Array) -> DampedStep:
    r"""Return the last point of the dogleg path within the trust region.

    .. math:: p_C = -\frac{\|g\|^2}{\|A g\|^2}\, g, \qquad
        p(t) = \begin{cases} t\, p_C & t \le 1 \\
        p_C + (t - 1)(p_N - p_C) & t > 1 \end{cases}

    The path leads from 0 through the Cauchy step :math:`p_C` to the full step :math:`p_N`. Along
    the path the length increases and the model decreases, so the last point within the radius has
    the smallest value of the model.

    Args:
        system: The linear model.
        g: :math:`A^T r`, of shape `[n]`.
        radius: The trust-region radius, a scalar > 0.

    Returns:
        The step. Its damping is 0 for the full step. Otherwise it is positive, to mark a step that
        is limited by the radius; the value has no meaning.

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
    second_leg = full.p - cauchy
    inside = norm(cauchy) < radius
    t = jnp.minimum(to_boundary(cauchy, second_leg, radius), jnp.ones_like(radius))
    first_t = jnp.where(norm(cauchy) > 0, radius / norm(cauchy), jnp.zeros_like(radius))
    on_boundary = jnp.where(inside, cauchy + t * second_leg, first_t * cauchy)
    fits = length <= radius
    p = jnp.where(fits, full.p, on_boundary)
    model_norm = jnp.where(fits, full.model_norm, system.model_norm(p))
    predicted = jnp.where(
        fits, full.predicted, -matmul(g, p) - jnp.asarray(0.5, p.dtype) * model_norm
    )
    lam = jnp.where(fits, full.lam, jnp.maximum(divide(norm(g), radius), jnp.finfo(p.dtype).tiny))
    return DampedStep(p, lam, model_norm, predicted)

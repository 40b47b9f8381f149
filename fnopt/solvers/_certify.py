"""Certificates of least-squares solutions: optimality tests, evaluated once after the loop."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import Status, is_converged
from fnopt.linear import (
    SingularFactors,
    Triangle,
    divide,
    gauss_newton_solution,
    length,
    linear_solver,
    row_triangle,
    singular_triangle,
)
from fnopt.sharding import psum_rows
from fnopt.solvers._bounded import free_point, without_active_params
from fnopt.solvers._loop import SearchState, relative_columns
from fnopt.solvers._saddle import least_curvature
from fnopt.solvers._stopping import Tolerances, cost_rounding, negligible_decrease, slopes
from fnopt.solvers.linear_model._base import LinearModel, singular_null_space
from fnopt.solvers.linear_model._dense import DenseModel, TriangleModel
from fnopt.solvers.linear_model._linearization import Linearization
from fnopt.solvers.linear_model._scaling import initial_scale
from fnopt.solvers.problem._problem import Problem
from fnopt.solvers.problem._residual_scale import next_residual_scale

_ENTRIES = 2**18  # entries of a Jacobian: 2 MB in float64, which fit in a core's cache


class Certificate(NamedTuple):
    r"""Optimality tests at a solution; each test can be recomputed from the solution.

    `J` is the Jacobian, `r` are the residuals and `f` is the cost at the solution.

    Attributes:
        optimality: First-order optimality, :math:`\max_j |J_j^T r| / (\|J_j\| \|r\|)`: the largest
            cosine between the residuals and a column (MINPACK's gnorm). 0 at a stationary point.
        decrement: Gauss-Newton decrement over the cost, :math:`\|P r\|^2 / \|r\|^2` with the
            projection `P` onto the numerical range of `J`: the relative decrease of the linear
            model's cost by the undamped, rank-truncated step. Without a triangular factor
            (conjugate gradients, or Cholesky with more than 64 params) it is the decrease by the
            best step along a single param, a lower bound.
        rounding: Bound on the rounding error of a difference of costs, relative to the cost.
        undetermined: Mask of the params that the data don't determine, bool `[n]`: params with a
            component in the null space of the scaled Jacobian, and params whose column decreased to
            rounding level during the search. After steps by conjugate gradients, the null space is
            unknown, and the mask contains only params of the second kind.
        certified: Whether the decrement is negligible (at most 1e-4, or within rounding error),
            and the curvature, if it was tested, is not negative.
            At a converged point that isn't certified, the Gauss-Newton step was tried and did not
            decrease the cost. Then the Jacobian is singular, or the cost decreases towards
            infinity.
        least_curvature: The smallest eigenvalue of the scaled Hessian of the cost, :math:`D^{-1} H
            D^{-1}` with :math:`D_j = \|J_j\|`, over the params without an active bound; None unless
            `certify='full'`. If the eigenvalue is negative and a point along its eigenvector
            lowers the cost by more than a negligible fraction, the search restarts at this point.
    """

    optimality: jax.Array
    decrement: jax.Array
    rounding: jax.Array
    undetermined: jax.Array
    certified: jax.Array
    least_curvature: jax.Array | None = None


class Spectrum(NamedTuple):
    """Results of the singular value decomposition of a Jacobian with columns of unit length."""

    rank: jax.Array
    decrement: jax.Array  # decrease of the model's cost by the Gauss-Newton step
    length: jax.Array  # length of the step of the decrement, scaled by the column norms
    null: jax.Array  # bool[n], params with a component in the null space above rounding error
    inverse: Any = None  # [n, n], (J^T J)^-1, where a batch keeps it


class Certified(NamedTuple):
    """A certificate and the tests derived from it."""

    certificate: Certificate
    rank: jax.Array
    status: jax.Array
    x: jax.Array  # [n], the initial point of a restart
    # Radius of a restart: the length of the Gauss-Newton step; 0 for the method's own radius.
    radius: jax.Array
    residual_scale: jax.Array  # scale of the residuals in a restart
    failed: jax.Array  # whether a check failed, so that the search restarts
    inverse: Any = None


def uncertified(x: jax.Array, full: bool) -> Certified:
    """Return the initial certificate, which requests the first loop."""
    zero, one = jnp.zeros((), x.dtype), jnp.ones((), x.dtype)
    none, no = jnp.zeros(x.shape, bool), jnp.zeros((), bool)
    blank = Certificate(zero, zero, zero, none, no, zero if full else None)
    rank = jnp.zeros((), jnp.int32)
    return Certified(blank, rank, Status.RUNNING.array, x, zero, one, ~no)


def certify(
    problem: Problem,
    model: LinearModel,
    state: SearchState,
    tolerances: Tolerances,
    residual_scale: jax.Array,
    full: bool,
) -> Certified:
    """Test the final point of a loop, and choose the initial point of a restart if a test fails.

    Args:
        problem: The problem, with scaled residuals.
        model: The linear model of the problem.
        state: The final state of the loop.
        tolerances: The tolerances of the method.
        residual_scale: The factor that scales the residuals.
        full: Whether to look for negative curvature as well.
    """
    point, fixed = exact_point(model, state.point), jnp.zeros(state.point.x.shape, bool)
    if problem.box is not None:
        fixed = problem.box.fixed
        point = without_active_params(point, fixed)
    free, spectrum = free_point(point, problem.box), _spectrum(model, point)
    free_spectrum = spectrum if problem.box is None else _spectrum(model, free)
    end = certified_end(state, point, spectrum, free, free_spectrum, tolerances)
    residuals = point.r if state.residuals is None else state.residuals
    finer, rescaled = next_residual_scale(problem, point.cost, residuals, residual_scale)
    rescaled &= _has_ended(state.status) | (state.status == Status.NONFINITE_START.value)
    certificate = end.certificate._replace(undetermined=end.certificate.undetermined & ~fixed)
    end = end._replace(
        certificate=certificate,
        radius=jnp.where(rescaled, 0, end.radius),
        residual_scale=jnp.where(rescaled, finer, residual_scale),
        failed=rescaled | end.failed,
    )
    if not full:
        return end
    bound = negligible_decrease(free, tolerances)
    curvature = least_curvature(problem, point, bound)
    falls = curvature.falls & _has_ended(state.status) & end.certificate.certified & ~rescaled
    return end._replace(
        certificate=end.certificate._replace(
            certified=end.certificate.certified & ~curvature.negative,
            least_curvature=curvature.least,
        ),
        x=jnp.where(falls, curvature.x, end.x),
        # A restart at another point begins with the method's own radius.
        radius=jnp.where(falls, 0, end.radius),
        failed=end.failed | falls,
    )


def certified_end(
    state: SearchState,
    point: Linearization,
    spectrum: Spectrum,
    free: Linearization,
    free_spectrum: Spectrum,
    tolerances: Tolerances,
) -> Certified:
    """Test the final point of a loop by the spectrum of its Jacobian.

    Args:
        state: The final state of the loop.
        point: The linearization at the final point.
        spectrum: The spectrum of the Jacobian at this point.
        free: The linearization without the params that have an active bound, for the optimality
            tests.
        free_spectrum: The spectrum of the Jacobian of `free`.
        tolerances: The tolerances of the method.
    """
    bound = negligible_decrease(free, tolerances)
    optimal = free_spectrum.decrement <= bound  # False for NaN, after a failed factorization
    stalled = state.status == Status.STALLED.value
    size = jnp.sqrt(psum_rows(jnp.sum(jnp.square(point.r))))
    # A column is negligible if its squared norm, relative to the residuals, is below the rounding
    # error of its largest squared norm so far.
    root = jnp.asarray(float(jnp.finfo(bound.dtype).eps) ** 0.5, bound.dtype)
    negligible = (relative_columns(point) <= root * state.max_columns) & (point.cost > 0)
    certificate = Certificate(
        optimality=divide(jnp.max(slopes(free), initial=0), size),
        decrement=divide(2 * free_spectrum.decrement, jnp.square(size)),
        rounding=divide(cost_rounding(free, tolerances.eps), point.cost),
        undetermined=spectrum.null | (negligible & (state.max_columns > 0)) | (point.columns <= 0),
        certified=optimal,
    )
    return Certified(
        certificate=certificate,
        rank=spectrum.rank,
        # A stalled search at an optimal point has converged.
        status=jnp.where(stalled & optimal, Status.CONVERGED_STEP.array, state.status),
        x=point.x,
        radius=free_spectrum.length,
        residual_scale=jnp.ones_like(bound),
        failed=_has_ended(state.status) & ~optimal,
        inverse=spectrum.inverse,
    )


def _has_ended(status: jax.Array) -> jax.Array:
    return is_converged(status) | (status == Status.STALLED.value)


def exact_point(model: LinearModel, point: Linearization) -> Linearization:
    """Return the point with the triangular factor of its Jacobian, if the Jacobian is small.

    Normal equations square the condition number, and conjugate gradients don't determine the null
    space. For up to 64 params, the cost of a QR factorization is negligible in a fit.
    """
    flat = model.flat
    given = flat.derivative
    formed = model.chunk_size is None and (given is None or given.gram is None)
    small = linear_solver("auto", flat.n, flat.n) == "qr" and flat.rows * flat.n <= _ENTRIES
    if point.triangle is not None or not (formed and small):
        return point
    if isinstance(model, DenseModel):
        return point._replace(triangle=row_triangle(point.J, point.r, flat.graded))
    exact = TriangleModel(flat, model.mode, model.chunk_size).evaluate(point.x)
    return exact._replace(cost=point.cost)


def _spectrum(model: LinearModel, point: Linearization) -> Spectrum:
    """Return the spectrum; without a triangular factor, only the rank and the largest slope."""
    if point.triangle is None:
        best = jnp.max(slopes(point), initial=0)
        rank, null = model.null_space(point)
        return Spectrum(rank, jnp.square(best) / 2, best, null)
    L, c = point.triangle
    factors = singular_triangle(Triangle(L / initial_scale(point.columns)[:, None], c))
    return singular_spectrum(factors, model.size)


def singular_spectrum(factors: SingularFactors, size: int) -> Spectrum:
    """Return the spectrum from the singular values of a Jacobian with columns of unit length."""
    rank, null = singular_null_space(factors, size)
    z = gauss_newton_solution(factors, size)
    return Spectrum(rank, jnp.sum(jnp.square(factors.s * z)) / 2, length(z), null)

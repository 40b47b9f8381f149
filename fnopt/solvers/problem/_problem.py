"""The least-squares problem of a vector: residuals, cost, bounds, and conversion to params."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fnopt.jacobians import (
    SparseJacobian,
    ravel,
    ravel_with_held,
    sparse_jacobian,
    value_and_jacobian,
)
from fnopt.linear import divide
from fnopt.numerics import matmul
from fnopt.residuals import (
    Box,
    Derivative,
    ExampleResiduals,
    FlatResidual,
    FreeJacobian,
    Parametrization,
    RobustCost,
    Whitening,
    charted,
    curved,
    flat_residual,
    free_box,
    free_derivative,
    free_jacobian,
    given_derivative,
    joined_function,
    mixed_rows,
    param_shapes,
    robust_cost,
    scaled_rows,
    whitened,
)
from fnopt.sharding import psum_rows, pvary_over_rows
from fnopt.solvers._trust_region import actual_reduction
from fnopt.solvers.linear_model._base import LinearModel
from fnopt.solvers.linear_model._linearization import Linearization, half_square

Squares = Callable[[jax.Array, jax.Array], jax.Array]
"""`squares(x, scale)` returns the weighted squares of the residuals times `scale`, at `x`."""


class Problem(NamedTuple):
    """Residuals, cost and bounds as functions of a vector."""

    flat: FlatResidual
    losses: RobustCost | None = None
    box: Box | None = None
    squares: Squares | None = None  # w r^2, if there are weights
    # Number of fitted variables, if they are followed by base points of manifolds; otherwise None.
    fitted: int | None = None

    def on_chart(self, x: jax.Array) -> tuple[Problem, jax.Array]:
        """Restrict the problem to the fitted variables; the base points in `x` are constants."""
        if self.fitted is None:
            return self, x
        head, base = x[: self.fitted], x[self.fitted :]
        flat, squares = self.flat, self.squares

        def with_base(head: jax.Array) -> jax.Array:
            return jnp.concatenate([head, base])

        on_chart = flat._replace(
            r=lambda head: flat.r(with_base(head)),
            unravel=lambda head: flat.unravel(with_base(head)),
            derivative=flat.derivative and flat.derivative.on_chart(with_base, head),
            n=self.fitted,
        )
        chart_squares = squares and (lambda head, scale: squares(with_base(head), scale))
        return self._replace(flat=on_chart, squares=chart_squares, fitted=None), head

    @property
    def model(self) -> FlatResidual:
        """Return residuals whose sum of squares models the robust cost to second order."""
        losses, flat, derivative = self.losses, self.flat, self.flat.derivative
        if losses is None:
            return flat

        def row_factors(x: jax.Array) -> jax.Array:
            return losses.corrections(flat.r(x))[1]

        return flat._replace(
            r=losses.corrected(flat.r),
            derivative=derivative and derivative.scaled(row_factors),
            gram=scaled_rows(flat.gram, row_factors),
            # Rows of outliers have much smaller factors than other rows.
            graded=True,
        )

    def evaluate(self, model: LinearModel, x: jax.Array) -> tuple[Linearization, jax.Array]:
        """Return the linearization at a point, and the residuals before correction by a loss."""
        point = model.evaluate(x)
        if self.losses is None:
            return point, point.r
        # The sum of squares of the corrected residuals isn't the robust cost.
        r = self.flat.r(x)
        return point._replace(cost=self.losses.clipped_cost(r)), r

    def cost(self, r: jax.Array) -> jax.Array:
        """Return the cost of residuals."""
        return half_square(r) if self.losses is None else self.losses.cost(r)

    def cost_at(self, x: jax.Array) -> jax.Array:
        r"""Return the cost at a point, differentiable with respect to weights.

        :math:`w r^2` has a derivative at a weight of 0, whereas :math:`\sqrt{w}\, r` has none.
        """
        if self.squares is None:
            return self.cost(self.flat.r(x))
        squares = self.squares(x, jnp.ones((), x.dtype))
        if self.losses is not None:
            return self.losses.cost_of_squares(squares)
        return jnp.asarray(0.5, squares.dtype) * psum_rows(jnp.sum(squares))

    def reduction(
        self, point: Linearization, before: jax.Array, after: jax.Array, step: jax.Array
    ) -> jax.Array:
        """Return the reduction of the cost by a step.

        Args:
            point: The linearization before the step.
            before: The residuals before the step, of shape `[m]`.
            after: The residuals after the step, of shape `[m]`.
            step: The step, of shape `[n]`.
        """
        if self.losses is None:
            return actual_reduction(before, after)
        first_order = None
        if isinstance(point.J, jax.Array) and point.J.shape == (before.size, step.size):
            first_order = point.r * matmul(point.J, step)
        return self.losses.reduction(before, after, first_order)

    def without_curvature_floor(self, J: Any, r: jax.Array) -> Any:
        r"""Convert the model's Jacobian for the covariance.

        .. math:: \sqrt{\max(0, \rho' + 2 z \rho'')}\, J

        In `model`, the curvature has a positive lower bound instead of 0, so that steps reduce the
        cost. The covariance needs the curvature without this bound.

        Args:
            J: The Jacobian of `model`, of shape `[m, n]`.
            r: The residuals before correction by a loss, of shape `[m]`.
        """
        if self.losses is None or J is None:
            return J
        with_floor = self.losses.corrections(r)[1]
        factors = divide(self.losses.corrections(r, floor=0.0)[1], with_floor)
        return J.times_rows(factors) if isinstance(J, SparseJacobian) else J * factors[:, None]


class Setting(NamedTuple):
    """The user's problem as functions of a vector, and the conversion of vectors to params."""

    x: jax.Array  # [n], the initial guess
    problem: Problem
    parametrization: Parametrization
    dof: jax.Array  # int32, number of residuals with nonzero weight minus number of variables
    whiten: Whitening  # divides the residuals by their standard deviations

    def params(self, x: jax.Array) -> Any:
        """Convert a vector to the user's params."""
        return self.parametrization.assemble(self.problem.flat.unravel(x))

    def on_chart(self, x: jax.Array) -> Setting:
        """Restrict the problem to the fitted variables; the base points in `x` are constants."""
        problem, x = self.problem.on_chart(x)
        return self._replace(x=x, problem=problem)

    def rebased(self, x: jax.Array) -> jax.Array:
        """Make the current points on manifolds the base points, without changing the params."""
        charts = self.parametrization.charts
        assert charts is not None
        return ravel(charts.rebase(self.problem.flat.unravel(x)))[0]

    def tangent(self, x: jax.Array, is_sparse: bool) -> jax.Array | SparseJacobian | None:
        """Return the derivative of the raveled params with respect to the vector.

        Points on manifolds are represented by tangent coordinates.

        Args:
            x: The vector, of shape `[n]`.
            is_sparse: Whether to return a sparse Jacobian.

        Returns:
            The derivative, of shape `[p, n]`; None if it is the identity.
        """
        if all(kind is None or isinstance(kind, curved) for kind in self.parametrization.kinds):
            return None

        def raveled_params(x: jax.Array) -> jax.Array:
            charts = self.parametrization.charts
            return ravel_with_held(
                self.params(x) if charts is None else charts.tangent(self.problem.flat.unravel(x))
            )[0]

        if is_sparse:
            return sparse_jacobian(raveled_params)(x)
        size = jax.eval_shape(raveled_params, x).size
        return value_and_jacobian(raveled_params, x, size, "forward")[1]


def flatten_problem(
    residual_fn: Any,
    params: Any,
    args: tuple[Any, ...],
    *,
    jac: Any = None,
    loss: Any = None,
    sigma: Any = None,
    weights: Any = None,
    bounds: Any = None,
    constraints: Any = None,
) -> Setting:
    """Ravel the params and build the problem of a vector; check the values of concrete arrays."""
    fn = joined_function(residual_fn)
    parametrization = charted(params, constraints)
    # A plain problem doesn't need the shapes, which take one more trace of the function.
    is_plain = loss is None and sigma is None and weights is None and jac is None
    shapes = None if is_plain else jax.eval_shape(fn, param_shapes(parametrization), *args)
    whiten = whitened(shapes, sigma, weights)

    def residuals(free: Any) -> Any:
        return fn(parametrization.assemble(free), *args)

    x, flat = flat_residual(lambda free: whiten(residuals(free)), parametrization.free)
    if jac is not None:
        if parametrization.kinds and hasattr(jac, "composed"):
            jac = free_jacobian(jac, parametrization)
        if isinstance(jac, FreeJacobian):
            derivative = free_derivative(jac, shapes, x, flat.unravel, args)
        else:
            derivative = given_derivative(jac, shapes, params, args, x.dtype)
            derivative = _wrt_variables(derivative, flat, x, parametrization)
        flat = flat._replace(derivative=derivative)
        if sigma is not None or weights is not None:
            flat = _whiten_derivative(flat, x.dtype, whiten)
    losses = None if loss is None else robust_cost(loss, shapes)
    box = free_box(bounds, params, parametrization, x.dtype)
    fitted = parametrization.charts and parametrization.charts.fitted
    used = flat.rows - psum_rows(whiten.excluded)
    dof = jnp.asarray(used - (flat.n if fitted is None else fitted), jnp.int32)
    if whiten.weights is None:
        return Setting(x, Problem(flat, losses, box, fitted=fitted), parametrization, dof, whiten)

    def part_weights(w: jax.Array, shape: Any) -> jax.Array:
        # `flatten` splits a complex leaf into real and imaginary parts, with equal weights.
        return lax.complex(w, w) if jnp.issubdtype(shape.dtype, jnp.complexfloating) else w

    w = flat.flatten(jax.tree.map(part_weights, whiten.weights, shapes))

    def squares(x: jax.Array, scale: jax.Array) -> jax.Array:
        value = scale * flat.flatten(residuals(flat.unravel(x)))
        # A non-finite residual of weight 0 is a missing datum; 0 * inf would be NaN.
        is_used = (w > 0) | jnp.isfinite(value)
        return w * jnp.square(jnp.where(is_used, value, jnp.zeros_like(value)))

    return Setting(x, Problem(flat, losses, box, squares, fitted), parametrization, dof, whiten)


def _wrt_variables(
    derivative: Derivative, flat: FlatResidual, x: jax.Array, parametrization: Parametrization
) -> Derivative:
    """Convert a derivative with respect to the params to one with respect to the variables."""
    if not parametrization.kinds:
        return derivative

    def raveled_params(x: jax.Array) -> jax.Array:
        return ravel_with_held(parametrization.assemble(flat.unravel(x)))[0].astype(x.dtype)

    return derivative.preceded_by(raveled_params, x)


def _whiten_derivative(flat: FlatResidual, dtype: Any, whiten: Whitening) -> FlatResidual:
    """Apply the whitening to the derivative and to the Gram matrix; `flat.r` is whitened before."""
    derivative, gram = flat.derivative, flat.gram

    def whitened(r: jax.Array) -> jax.Array:
        return flat.flatten(whiten(flat.unflatten(r)))

    if not whiten.by_rows:
        zeros = pvary_over_rows(jnp.zeros(flat.m, dtype))
        derivative = derivative and derivative.followed_by(whitened, zeros)
        return flat._replace(derivative=derivative, gram=mixed_rows(gram, whitened))

    def factors(x: jax.Array) -> jax.Array:
        return whitened(jnp.ones(flat.m, x.dtype))

    return flat._replace(
        derivative=derivative and derivative.scaled(factors), gram=scaled_rows(gram, factors)
    )


def with_examples(
    setting: Setting, fns: ExampleResiduals, args: tuple[Any, ...], solver: Any
) -> Setting:
    """Replace the derivative of a batch problem by per-example derivatives.

    Args:
        setting: The problem of the whole batch.
        fns: The residual functions of one example.
        args: The batch, and additional arguments.
        solver: The method, which chooses between Jacobian and Gram matrix.
    """
    flat, (batch, *rest) = setting.problem.flat, args
    examples = fns.of_free(setting.parametrization.assemble, batch, tuple(rest))
    flat = solver.by_example(flat, setting.x, examples)
    if setting.whiten.maps:
        flat = _whiten_derivative(flat, setting.x.dtype, setting.whiten)
    return setting._replace(problem=setting.problem._replace(flat=flat))

"""The least-squares problem as functions of a vector."""

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
    Parametrisation,
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
"""Return the weighted squares of scaled residuals at a point."""


class Problem(NamedTuple):
    """Residuals, their cost, and the bounds, of a vector."""

    flat: FlatResidual
    losses: RobustCost | None = None
    box: Box | None = None
    squares: Squares | None = None  # w r^2, if there are weights
    fitted: int | None = None  # number of fitted entries, if base points of manifolds follow

    def on_chart(self, x: jax.Array) -> tuple[Problem, jax.Array]:
        """Restrict the problem to the fitted entries of `x`; base points are constant."""
        if self.fitted is None:
            return self, x
        head, base = x[: self.fitted], x[self.fitted :]
        flat, squares = self.flat, self.squares

        def whole(head: jax.Array) -> jax.Array:
            return jnp.concatenate([head, base])

        on_chart = flat._replace(
            r=lambda head: flat.r(whole(head)),
            unravel=lambda head: flat.unravel(whole(head)),
            derivative=flat.derivative and flat.derivative.on_chart(whole, head),
            n=self.fitted,
        )
        chart_squares = squares and (lambda head, unit: squares(whole(head), unit))
        return self._replace(flat=on_chart, squares=chart_squares, fitted=None), head

    @property
    def model(self) -> FlatResidual:
        """Return residuals whose squares model the cost to second order."""
        losses, flat, given = self.losses, self.flat, self.flat.derivative
        if losses is None:
            return flat
        if given is not None:
            given = given.scaled(lambda x: losses.corrections(flat.r(x))[1])
        gram = scaled_rows(flat.gram, lambda x: losses.corrections(flat.r(x))[1])
        return flat._replace(r=losses.corrected(flat.r), derivative=given, gram=gram, graded=True)

    def evaluate(self, model: LinearModel, x: jax.Array) -> tuple[Linearization, jax.Array]:
        """Return the linearization at a point, and the residuals before weighting by a loss."""
        point = model.evaluate(x)
        if self.losses is None:
            return point, point.r
        r = self.flat.r(x)
        return point._replace(cost=self.losses.clipped_cost(r)), r

    def cost(self, r: jax.Array) -> jax.Array:
        """Return the cost of residuals."""
        return half_square(r) if self.losses is None else self.losses.cost(r)

    def cost_at(self, x: jax.Array) -> jax.Array:
        r"""Return the cost at a point, in a differentiable form.

        The form :math:`w r^2` has a derivative with respect to a weight of 0, whereas
        :math:`\sqrt{w}\, r` has none.
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
        """Return the reduction of the cost between the residuals before and after a step.

        Args:
            point: The linearization before the step.
            before: The residuals before the step, of shape `[m]`.
            after: The residuals after the step.
            step: The step, of shape `[n]`.
        """
        if self.losses is None:
            return actual_reduction(before, after)
        pulled = None
        if isinstance(point.J, jax.Array) and point.J.shape == (before.size, step.size):
            pulled = point.r * matmul(point.J, step)
        return self.losses.reduction(before, after, pulled)

    def curved(self, J: Any, r: jax.Array) -> Any:
        r"""Return the model's Jacobian without the lower bound on curvature, for the covariance.

        .. math:: \sqrt{\max(0, \rho' + 2 z \rho'')}\, J
        """
        if self.losses is None or J is None:
            return J
        used, kept = (self.losses.corrections(r, **floor)[1] for floor in ({}, {"floor": 0.0}))
        factors = divide(kept, used)
        return J.times_rows(factors) if isinstance(J, SparseJacobian) else J * factors[:, None]

    def weighed(self, J: jax.Array, r: jax.Array) -> jax.Array:
        """Multiply the rows of the Jacobian by the square roots of the losses' curvatures."""
        if self.losses is None:
            return J
        return J * self.losses.corrections(r, floor=0.0)[1][:, None]


class Setting(NamedTuple):
    """The user's problem as a function of a vector, and the conversion back."""

    x: jax.Array  # [n], the initial guess
    problem: Problem
    parametrisation: Parametrisation
    dof: jax.Array  # int32, number of residuals with nonzero weight minus number of variables
    whiten: Whitening  # scales the residuals to unit variance

    def params(self, x: jax.Array) -> Any:
        """Convert a vector to the user's params."""
        return self.parametrisation.assemble(self.problem.flat.unravel(x))

    def on_chart(self, x: jax.Array) -> Setting:
        """Return the setting of the fitted variables, with base points as constants."""
        problem, x = self.problem.on_chart(x)
        return self._replace(x=x, problem=problem)

    def rebased(self, x: jax.Array) -> jax.Array:
        """Make the current points on manifolds the base points; the params stay the same."""
        charts = self.parametrisation.charts
        assert charts is not None
        return ravel(charts.rebase(self.problem.flat.unravel(x)))[0]

    def tangent(self, x: jax.Array, is_sparse: bool) -> jax.Array | SparseJacobian | None:
        """Return the derivative of the raveled params in the vector; None for the identity.

        Points on manifolds are represented by tangent coordinates.
        """
        if all(kind is None or isinstance(kind, curved) for kind in self.parametrisation.kinds):
            return None

        def laid(x: jax.Array) -> jax.Array:
            charts = self.parametrisation.charts
            return ravel_with_held(
                self.params(x) if charts is None else charts.tangent(self.problem.flat.unravel(x))
            )[0]

        if is_sparse:
            return sparse_jacobian(laid)(x)
        size = jax.eval_shape(laid, x).size
        return value_and_jacobian(laid, x, size, "forward")[1]


def set_up(
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
    """Ravel the parameters and build the `Problem`; check concrete arguments."""
    fn = joined_function(residual_fn)
    parametrisation = charted(params, constraints)
    plain = loss is None and sigma is None and weights is None and jac is None
    shapes = None if plain else jax.eval_shape(fn, param_shapes(parametrisation), *args)
    whiten = whitened(shapes, sigma, weights)

    def residuals(free: Any) -> Any:
        return fn(parametrisation.assemble(free), *args)

    x, flat = flat_residual(lambda free: whiten(residuals(free)), parametrisation.free)
    if jac is not None:
        if parametrisation.kinds and hasattr(jac, "composed"):
            jac = free_jacobian(jac, parametrisation)
        if isinstance(jac, FreeJacobian):
            given = free_derivative(jac, shapes, x, flat.unravel, args)
        else:
            given = given_derivative(jac, shapes, params, args, x.dtype)
            given = _of_variables(given, flat, x, parametrisation)
        if sigma is not None or weights is not None:
            flat = _weighted(flat._replace(derivative=given), x.dtype, whiten)
        else:
            flat = flat._replace(derivative=given)
    losses = None if loss is None else robust_cost(loss, shapes)
    box = free_box(bounds, params, parametrisation, x.dtype)
    fitted = parametrisation.charts and parametrisation.charts.fitted
    dof = jnp.asarray(flat.rows - (flat.n if fitted is None else fitted), jnp.int32)
    if whiten.weights is None:
        return Setting(x, Problem(flat, losses, box, fitted=fitted), parametrisation, dof, whiten)

    def both_parts(w: jax.Array, shape: Any) -> jax.Array:
        """Return the weights of a leaf; a complex leaf has weights for real and imaginary parts."""
        return lax.complex(w, w) if jnp.issubdtype(shape.dtype, jnp.complexfloating) else w

    w = flat.flatten(jax.tree.map(both_parts, whiten.weights, shapes))

    def squares(x: jax.Array, unit: jax.Array) -> jax.Array:
        value = unit * flat.flatten(residuals(flat.unravel(x)))
        # A residual of weight 0 that isn't finite is a missing datum. Its weight has no effect.
        counts = (w > 0) | jnp.isfinite(value)
        return w * jnp.square(jnp.where(counts, value, jnp.zeros_like(value)))

    dof = dof - psum_rows(jnp.sum(w == 0, dtype=jnp.int32))
    return Setting(x, Problem(flat, losses, box, squares, fitted), parametrisation, dof, whiten)


def _of_variables(
    given: Derivative, flat: FlatResidual, x: jax.Array, parametrisation: Parametrisation
) -> Derivative:
    """Convert a derivative with respect to the params to the fitted variables."""
    if not parametrisation.kinds:
        return given

    def assembled(x: jax.Array) -> jax.Array:
        return ravel_with_held(parametrisation.assemble(flat.unravel(x)))[0].astype(x.dtype)

    return given.preceded_by(assembled, x)


def _weighted(flat: FlatResidual, dtype: Any, whiten: Whitening) -> FlatResidual:
    """Return the weighted residuals with their derivative."""
    given, gram = flat.derivative, flat.gram

    def weighted(r: jax.Array) -> jax.Array:
        return flat.flatten(whiten(flat.unflatten(r)))

    if not whiten.by_rows:
        given = given and given.followed_by(weighted, pvary_over_rows(jnp.zeros(flat.m, dtype)))
        return flat._replace(derivative=given, gram=mixed_rows(gram, weighted))

    def factors(x: jax.Array) -> jax.Array:
        return weighted(jnp.ones(flat.m, x.dtype))

    return flat._replace(
        derivative=given and given.scaled(factors), gram=scaled_rows(gram, factors)
    )


def by_example(
    setting: Setting, fns: ExampleResiduals, args: tuple[Any, ...], solver: Any
) -> Setting:
    """Adapt a problem to residuals that are defined per example.

    Args:
        setting: The problem of the batch as a whole.
        fns: The functions.
        args: The batch, and additional arguments.
        solver: The method.
    """
    flat, (batch, *rest) = setting.problem.flat, args
    examples = fns.of_free(setting.parametrisation.assemble, batch, tuple(rest))
    flat = solver.by_example(flat, setting.x, examples)
    if setting.whiten.maps:
        flat = _weighted(flat, setting.x.dtype, setting.whiten)
    return setting._replace(problem=setting.problem._replace(flat=flat))

"""Residuals, Jacobian and losses of the fits of a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.curves.batched._data import Points, merge_points
from fnopt.curves.batched._model import Jacobian, Params, Predict
from fnopt.jacobians import forward_from_reverse
from fnopt.linear import norm
from fnopt.numerics import matmul
from fnopt.programs import TracedFunction, is_data
from fnopt.residuals import Derivative, FlatResidual, RobustCost, linearize_lanes
from fnopt.solvers import LaneProblems, LeastSquaresMethod, Problem, disagrees, over_lanes


class Task(NamedTuple):
    """Model, Jacobian and losses of one fit."""

    predict: Predict | TracedFunction
    jacobian: Jacobian | TracedFunction | None
    losses: RobustCost | None
    # The method of the fallback; set if the model has no forward-mode derivative.
    solver: LeastSquaresMethod | None = None

    @property
    def is_value(self) -> bool:
        """Whether the task is a pytree of arrays, so that equal tasks share a compiled program."""
        functions = [fn for fn in (self.predict, self.jacobian) if fn is not None]
        return all(isinstance(fn, TracedFunction) for fn in functions) and is_data(self.losses)

    def residual(self, x: Params, points: Points) -> jax.Array:
        """Evaluate the scaled residuals of one fit, `[m]`, at scaled params."""
        dtype = x[0].dtype
        values = jnp.asarray(self.predict(_unscale(x, points), points.x)).astype(dtype)
        return jnp.ravel(_weight(values - points.y.astype(dtype), points))

    def columns(self, x: Params, points: Points) -> tuple[jax.Array, ...]:
        """Evaluate the columns of the user's Jacobian, each `[m]`, for scaled params."""
        assert self.jacobian is not None
        J = self.jacobian(_unscale(x, points), points.x).astype(x[0].dtype)
        if points.units is not None:
            J = J * points.units.params
        columns = [J[:, j].reshape(points.y.shape) for j in range(len(x))]
        return tuple(jnp.ravel(_weight(column, points)) for column in columns)

    def cost(self, x: Params, points: Points) -> jax.Array:
        """Evaluate the scaled cost of one fit."""
        r, losses = self.residual(x, points), self.losses_of(points)
        return matmul(r, r) / 2 if losses is None else losses.cost(r)

    def losses_of(self, points: Points) -> RobustCost | None:
        """Return the losses for scaled residuals, or None without losses."""
        if self.losses is None or points.units is None:
            return self.losses
        return self.losses.in_unit(points.units.residuals)

    def problems(self, shared: Points) -> LaneProblems:
        """Make the batch of least-squares problems from the data that all fits share."""

        def residual(x: Params, own: Points) -> jax.Array:
            return self.residual(x, merge_points(shared, own))

        def linearize(x: Params, own: Points) -> tuple[list[jax.Array], jax.Array]:
            units, fixed = own.units, own.fixed
            if fixed is not None:
                # Columns of zeros remove fixed params from the Jacobian.
                columns, r = linearize(x, own._replace(fixed=None))
                pairs = zip(columns, fixed, strict=True)
                return [jnp.where(mask, jnp.zeros_like(c), c) for c, mask in pairs], r
            if units is not None:
                # The columns are scaled after differentiation, with one product per derivative,
                # which is cheaper than the derivative of scaled residuals.
                x = tuple(x_i * scale for x_i, scale in zip(x, units.params, strict=True))
                columns, r = linearize(x, own._replace(units=None))
                scales = [scale * units.residuals for scale in units.params]
                return [c * s for c, s in zip(columns, scales, strict=True)], r * units.residuals
            if self.jacobian is None:
                has_forward = self.solver is None
                r = residual if has_forward else forward_from_reverse(residual)
                return linearize_lanes(r, x, own)
            columns = over_lanes(lambda x, own: self.columns(x, merge_points(shared, own)))(x, own)
            return list(columns), over_lanes(residual)(x, own)

        return LaneProblems(linearize, self.losses_of)

    def jacobian_of(self, points: Points) -> Callable[[jax.Array], jax.Array] | None:
        """Make the user's Jacobian function of one fit's vector, or return None without one."""
        if self.jacobian is None:
            return None
        return lambda x: jnp.stack(self.columns(tuple(x), points), axis=1)

    def is_wrong(self, x: jax.Array, points: Points) -> jax.Array | None:
        """Whether the user's Jacobian differs from the derivative of the model.

        The result is None if the model isn't differentiable.
        """
        J = self.jacobian_of(points)
        assert J is not None

        def identity(a: Any) -> Any:
            return a

        def r(x: jax.Array) -> jax.Array:
            return self.residual(tuple(x), points)

        derivative = Derivative(J, identity, matmul, lambda J, w: matmul(w, J))
        flat = FlatResidual(r, identity, identity, identity, points.y.size, x.size, derivative)
        return disagrees(Problem(flat), x, norm(J(x), axis=0))


def _unscale(x: Params, points: Points) -> Params:
    """Convert scaled params to the user's params."""
    if points.units is None:
        return x
    return tuple(x_i * points.units.params[i] for i, x_i in enumerate(x))


def _weight(r: jax.Array, points: Points) -> jax.Array:
    """Divide residuals by standard deviations, scale them, and set masked residuals to zero."""
    if points.sigma is not None:
        r = r / points.sigma.astype(r.dtype)
    if points.units is not None:
        r = r * points.units.residuals
    if points.mask is not None:
        r = jnp.where(points.mask, r, jnp.zeros_like(r))
    return r

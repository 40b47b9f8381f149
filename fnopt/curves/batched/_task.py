"""The residuals and losses of every fit of a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.curves.batched._data import Points, joined
from fnopt.curves.batched._model import Jacobian, Params, Predict
from fnopt.jacobians import forward_from_reverse
from fnopt.linear import norm
from fnopt.numerics import matmul
from fnopt.programs import TracedFunction, is_data
from fnopt.residuals import Derivative, FlatResidual, RobustCost, linearise_lanes
from fnopt.solvers import LaneProblems, LeastSquaresMethod, Problem, disagrees, over_lanes


class Task(NamedTuple):
    """The functions of one fit, and its losses."""

    predict: Predict | TracedFunction
    jacobian: Jacobian | TracedFunction | None
    losses: RobustCost | None
    # The method of a single fit; set if the model has reverse-mode derivatives only.
    solver: LeastSquaresMethod | None = None

    @property
    def is_value(self) -> bool:
        """Whether the structure of the task, a tree of arrays, determines its program."""
        functions = [fn for fn in (self.predict, self.jacobian) if fn is not None]
        return all(isinstance(fn, TracedFunction) for fn in functions) and is_data(self.losses)

    def residual(self, x: Params, points: Points) -> jax.Array:
        """The residuals of one fit, `[m]`."""
        dtype = x[0].dtype
        values = jnp.asarray(self.predict(_in_user_units(x, points), points.x)).astype(dtype)
        return jnp.ravel(_weighted(values - points.y.astype(dtype), points))

    def columns(self, x: Params, points: Points) -> tuple[jax.Array, ...]:
        """The columns of the user's Jacobian, each `[m]`."""
        assert self.jacobian is not None
        J = self.jacobian(_in_user_units(x, points), points.x).astype(x[0].dtype)
        if points.units is not None:
            J = J * points.units.params
        columns = [J[:, j].reshape(points.y.shape) for j in range(len(x))]
        return tuple(jnp.ravel(_weighted(column, points)) for column in columns)

    def cost(self, x: Params, points: Points) -> jax.Array:
        """The cost of one fit."""
        r, losses = self.residual(x, points), self.losses_of(points)
        return matmul(r, r) / 2 if losses is None else losses.cost(r)

    def losses_of(self, points: Points) -> RobustCost | None:
        """Return the losses in the scaled units of the fits; None without losses."""
        if self.losses is None or points.units is None:
            return self.losses
        return self.losses.in_unit(points.units.residuals)

    def problems(self, shared: Points) -> LaneProblems:
        """The problems of many fits that share some data."""

        def residual(x: Params, own: Points) -> jax.Array:
            return self.residual(x, joined(shared, own))

        def linearise(x: Params, own: Points) -> tuple[list[jax.Array], jax.Array]:
            units = own.units
            if units is not None:
                # Scale the columns last: multiplying each derivative by one number is the cheapest
                # form.
                x = tuple(x_i * size for x_i, size in zip(x, units.params, strict=True))
                columns, r = linearise(x, own._replace(units=None))
                sizes = [size * units.residuals for size in units.params]
                return [c * s for c, s in zip(columns, sizes, strict=True)], r * units.residuals
            if self.jacobian is None:
                forward = self.solver is None
                r = residual if forward else forward_from_reverse(residual)
                return linearise_lanes(r, x, own)
            columns = over_lanes(lambda x, own: self.columns(x, joined(shared, own)))(x, own)
            return list(columns), over_lanes(residual)(x, own)

        return LaneProblems(linearise, self.losses_of)

    def jacobian_of(self, points: Points) -> Callable[[jax.Array], jax.Array] | None:
        """The user's Jacobian as a function of one fit's vector."""
        if self.jacobian is None:
            return None
        return lambda x: jnp.stack(self.columns(tuple(x), points), axis=1)

    def is_wrong(self, x: jax.Array, points: Points) -> jax.Array | None:
        """Whether the user's Jacobian disagrees with the derivative of a differentiable model."""
        J = self.jacobian_of(points)
        assert J is not None

        def identity(a: Any) -> Any:
            return a

        def r(x: jax.Array) -> jax.Array:
            return self.residual(tuple(x), points)

        derivative = Derivative(J, identity, matmul, lambda J, w: matmul(w, J))
        flat = FlatResidual(r, identity, identity, identity, points.y.size, x.size, derivative)
        return disagrees(Problem(flat), x, norm(J(x), axis=0))


def _in_user_units(x: Params, points: Points) -> Params:
    if points.units is None:
        return x
    return tuple(x_i * points.units.params[i] for i, x_i in enumerate(x))


def _weighted(r: jax.Array, points: Points) -> jax.Array:
    """Divide by standard deviations and the scale of the fit; zero at masked points."""
    if points.sigma is not None:
        r = r / points.sigma.astype(r.dtype)
    if points.units is not None:
        r = r * points.units.residuals
    if points.mask is not None:
        r = jnp.where(points.mask, r, jnp.zeros_like(r))
    return r

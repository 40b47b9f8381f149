"""The residuals, losses and sums of every fit of a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from fnopt.core import matmul
from fnopt.curves.batched._data import Points, joined
from fnopt.curves.batched._lanes import Params
from fnopt.curves.batched._model import Jacobian, Predict, jacobian_columns, residual
from fnopt.jacobians import forward_from_reverse
from fnopt.linear import NormalEquations, normal_equations
from fnopt.programs import Recorded, is_data
from fnopt.residuals import RobustCost, linearise_lanes
from fnopt.solvers import LeastSquaresMethod


class Task(NamedTuple):
    """The functions of one fit, and what its residuals cost."""

    predict: Predict | Recorded
    jacobian: Jacobian | Recorded | None
    losses: RobustCost | None
    # Of a fit by itself; it is given where the model has derivatives in reverse mode only.
    solver: LeastSquaresMethod | None = None

    @property
    def is_value(self) -> bool:
        """Whether it is a tree of arrays, and does what its structure says."""
        functions = [fn for fn in (self.predict, self.jacobian) if fn is not None]
        return all(isinstance(fn, Recorded) for fn in functions) and is_data(self.losses)

    def residual(self, x: Params, points: Points) -> jax.Array:
        """The residuals of one fit, `[m]`."""
        return residual(self.predict, x, points)

    def cost(self, x: Params, points: Points) -> jax.Array:
        """The cost of one fit."""
        r = self.residual(x, points)
        return matmul(r, r) / 2 if self.losses is None else self.losses.cost(r)


class Sums(NamedTuple):
    """The sums over the points of many fits."""

    task: Task
    shared: Points

    def __call__(self, x: Params, data: Points) -> NormalEquations:
        """The sums for a step."""
        columns, r = self._linearised(x, data)
        losses = self._losses(data)
        if losses is None:
            return normal_equations(columns, r)
        a, b = losses.corrections(r)
        sums = normal_equations([b * c for c in columns], a * r)
        square, felt = self._squares(r, data)
        return sums._replace(square=square, felt=felt)

    def at_end(self, x: Params, data: Points) -> NormalEquations:
        """The sums for the covariance: without the floor under the curvature of a loss."""
        columns, r = self._linearised(x, data)
        losses = self._losses(data)
        if losses is None:
            return normal_equations(columns, r)
        b = losses.corrections(r, floor=0.0)[1]
        sums = normal_equations([b * c for c in columns], r)
        return sums._replace(square=self._squares(r, data)[0])

    def _losses(self, data: Points) -> RobustCost | None:
        """The losses in the units of the fits, if there are any."""
        losses = self.task.losses
        if losses is None or data.units is None:
            return losses
        return losses.in_unit(data.units.residuals)

    def _squares(self, r: jax.Array, data: Points) -> tuple[jax.Array, jax.Array]:
        """Twice the costs of fits with losses: whole, and without what outliers hide others by."""

        def costs(r: jax.Array, data: Points) -> tuple[jax.Array, jax.Array]:
            losses = self._losses(data)
            assert losses is not None
            return 2 * losses.cost(r), 2 * losses.felt_cost(r)

        return jax.vmap(costs, in_axes=-1)(r, data)

    def _linearised(self, x: Params, data: Points) -> tuple[list[jax.Array], jax.Array]:
        """The columns of the Jacobian and the residuals, in the units of the fits."""
        units = data.units
        if units is None:
            return self._as_given(x, data)
        # By factors in the end: a change of one of each parameter is the cheapest there is.
        given = tuple(x_i * size for x_i, size in zip(x, units.params, strict=True))
        columns, r = self._as_given(given, data._replace(units=None))
        sizes = [size * units.residuals for size in units.params]
        return [c * size for c, size in zip(columns, sizes, strict=True)], r * units.residuals

    def _as_given(self, x: Params, data: Points) -> tuple[list[jax.Array], jax.Array]:
        def lanes(fn: Callable[..., Any]) -> Any:
            return jax.vmap(fn, in_axes=-1, out_axes=-1)(x, data)

        def one(x: Params, own: Points) -> jax.Array:
            return self.task.residual(x, joined(self.shared, own))

        if self.task.jacobian is None:
            forward = self.task.solver is None
            return linearise_lanes(one if forward else forward_from_reverse(one), x, data)
        given = self.task.jacobian
        return list(
            lanes(lambda x, own: jacobian_columns(given, x, joined(self.shared, own)))
        ), lanes(one)

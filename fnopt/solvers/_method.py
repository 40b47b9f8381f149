"""The base class of the least-squares methods: an (init, update) pair."""

from __future__ import annotations

import functools
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import (
    Slot,
    Status,
    Transformation,
    apply_updates,
    check_same_tree,
    hyper,
    select_tree,
    slot_zeros,
    static,
)
from fnopt.errors import check_chunk_size, leaf_text, leaves_with_names, where
from fnopt.jacobians import jacobian_mode, ravel
from fnopt.linear import linear_solver
from fnopt.numerics import safe_increment, zero_count
from fnopt.residuals import (
    Examples,
    FlatResidual,
    by_example,
    example_residuals,
    flat_residual,
    given_derivative,
)
from fnopt.sharding import row_axes, rows_sharded_over, use_mesh_of, varying_axes
from fnopt.solvers._stopping import (
    Tolerances,
    cost_rounding,
    default_tolerances,
    stopping_status,
)
from fnopt.solvers._trust_region import (
    TRUST_REGION,
    RadiusRule,
    Trial,
    actual_reduction,
    evaluate_step,
    next_damping,
)
from fnopt.solvers.linear_model._base import LinearModel
from fnopt.solvers.linear_model._choice import linear_model
from fnopt.solvers.linear_model._linearization import Linearization, half_square, is_finite
from fnopt.solvers.linear_model._scaling import grown_scale, initial_scale
from fnopt.solvers.problem._call import run_in_available_mode


def check_same_params(params: Any) -> None:
    """Raise an error if params vary over a mesh axis over which rows are sharded."""
    for path, leaf in leaves_with_names(params)[0] if row_axes() else ():
        axes = varying_axes(leaf) & {*row_axes()} if hasattr(leaf, "dtype") else ()
        if axes:
            axis = min(axes)
            raise ValueError(
                f"{where()}{leaf_text(path)} of the params has a type that varies over the "
                f"mesh axis {axis!r}, expected equal params on all devices of axis_name. If "
                "the values are equal (for example after jax.lax.all_gather), convert the "
                f"type: params = jax.lax.pmean(params, {axis!r})."
            )


class LeastSquaresState(NamedTuple):
    """The state of a least-squares method, and the result of its last step."""

    count: jax.Array  # int32, number of updates
    radius: jax.Array  # the trust-region radius; 0 before the first update
    scale: Slot  # D, the scaling: decayed maximum norms of the Jacobian's columns
    rejections: jax.Array  # int32, consecutive rejected steps
    lam: jax.Array  # damping of the next step
    cost: jax.Array  # half the sum of squares after the update
    status: jax.Array  # int32, a fnopt.Status


_as_chunk_size = functools.partial(check_chunk_size, name="least squares")


class LeastSquaresMethod(Transformation):
    r"""Base class of the least-squares methods; a subclass defines `propose`.

    Args:
        ftol: Relative tolerance of the cost; by default the machine epsilon of the params' dtype
            (in float32 1e-10, the accuracy of the predicted decrease).
        xtol: Relative tolerance of the params; by default 4 times the machine epsilon.
        gtol: Tolerance of the cosine between the residuals and the Jacobian's columns; by default
            the machine epsilon.
        jacobian: `'forward'`, `'reverse'`, or `'auto'` for the cheaper mode.
        linear_solver: `'qr'`, `'cholesky'`, `'cg'`, or `'auto'`, which chooses by shape; see
            :func:`fnopt.linear.linear_solver`.
        chunk_size: Number of tangents or cotangents to propagate at once; by default all if there
            are at most 256, else 64.
        axis_name: Inside `jax.shard_map`, the named axis (or axes) over which the residuals are
            sharded; every device differentiates its residuals. Devices exchange only sums over
            residuals and triangular factors of shape `[n, n]`, never the Jacobian, and all devices
            take the same steps. With more params than residuals in total, steps are computed by
            conjugate gradients, or by `'cholesky'`.

    Example:
        >>> from fnopt.solvers import LeastSquaresMethod, dogleg
        >>> isinstance(dogleg(), LeastSquaresMethod)
        True
    """

    ftol: float | jax.Array | None = hyper(default=None, ge=0, infinite=True)
    xtol: float | jax.Array | None = hyper(default=None, ge=0, infinite=True)
    gtol: float | jax.Array | None = hyper(default=None, ge=0, infinite=True)
    jacobian: str = static(default="auto")
    linear_solver: str = static(default="auto")
    chunk_size: int | None = static(default=None, convert=_as_chunk_size)
    axis_name: Any = static(default=None)

    needs_params = True
    geodesic = False  # whether steps use the second derivative of the residuals along the step
    rule: ClassVar[RadiusRule] = TRUST_REGION

    def __post_init__(self) -> None:
        super().__post_init__()
        jacobian_mode(self.jacobian, 1, 1)
        linear_solver(self.linear_solver, 1, 1)

    def init(self, params: Any) -> LeastSquaresState:
        """Return the initial state; the first `update` sets the trust-region radius."""
        dtype = ravel(params, "params")[0].dtype
        return LeastSquaresState(
            count=zero_count(),
            radius=jnp.zeros((), dtype),
            scale=slot_zeros(params, dtype),
            rejections=zero_count(),
            lam=jnp.zeros((), dtype),
            cost=jnp.asarray(jnp.inf, dtype),
            status=Status.RUNNING.array,
        )

    def update(
        self,
        updates: Any,
        state: LeastSquaresState,
        params: Any = None,
        *,
        residual_fn: Any,
        batch: Any = None,
        jac: Any = None,
        **extra_args: Any,
    ) -> tuple[Any, LeastSquaresState]:
        r"""Take one step; a rejected step gives an update of zero.

        Args:
            updates: Not used; may be `None`.
            state: The state.
            params: A pytree of real floating arrays.
            residual_fn: `residual_fn(params)` returns the residuals, as an array or a pytree; or
                a list, tuple or dict of such functions. With a `batch` it is
                `residual_fn(params, example)` of ONE example, or a list of such functions.
            batch: The examples, a pytree of arrays with a leading axis; a list of batches for a
                list of functions. With more params than residuals, and more than 64 residuals,
                steps are computed from :math:`J J^\top`, and `J` isn't formed if :math:`J J^\top`
                is cheaper (:func:`fnopt.curvature.batch_jacobian`). `linear_solver='cholesky'`
                forms `J`, for the same steps. All params then have the same scale.
            jac: `jac(params)` returns the Jacobian, as in :func:`fnopt.least_squares`.
            **extra_args: Not used.

        Returns:
            The updates, in the dtypes of the params, and the new state.
        """
        del updates, extra_args
        check_same_tree(params, state.scale, "params", "the state's scale")
        with use_mesh_of(params), rows_sharded_over(self.axis_name):
            check_same_params(params)

            def step(solver: LeastSquaresMethod) -> tuple[Any, LeastSquaresState]:
                return solver._step(state, params, residual_fn, batch, jac)

            return run_in_available_mode(step, self, type(self).__name__)

    def _step(
        self, state: LeastSquaresState, params: Any, residual_fn: Any, batch: Any, jac: Any
    ) -> tuple[Any, LeastSquaresState]:
        x, flat = self._flat(params, residual_fn, batch, jac)
        tolerances, model = self.tolerances(params, x.dtype), self.model(flat)
        point = model.evaluate(x)
        old_columns, unravel_scale = ravel(state.scale)
        columns = grown_scale(old_columns, point.columns)
        scale = initial_scale(columns)
        first = self.first_radius(scale, x, point.cost)
        before = state._replace(radius=jnp.where(state.radius <= 0, first, state.radius))
        trial = self.propose(model, point, scale, before.radius, state.lam)
        updates = flat.unravel(trial.step)
        # The cost is evaluated at the params as apply_updates rounds them.
        arrived, _ = ravel(apply_updates(params, updates))
        r = flat.r(arrived)
        actual = actual_reduction(point.r, r)
        noise = cost_rounding(point, tolerances.eps)
        step = evaluate_step(before, trial, actual, noise, actual >= 0)
        radius = self.rule.radius_after(step)
        usable = is_finite(point)
        accepted = step.accepted & usable
        # -0.0, not 0.0: adding it changes no number, not even -0.0.
        updates = jax.tree.map(
            lambda u: jnp.where(accepted, u, jnp.asarray(-0.0, u.dtype)), updates
        )
        new = state._replace(
            radius=radius,
            rejections=jnp.where(step.accepted, 0, state.rejections + 1),
            lam=next_damping(trial, radius),
            status=stopping_status(point, point, step, scale, tolerances),
        )
        old = state._replace(status=Status.NONFINITE_START.array)
        new, old = new._replace(scale=columns), old._replace(scale=old_columns)
        state = select_tree(usable, new, old)
        return updates, state._replace(
            count=safe_increment(state.count),
            scale=unravel_scale(state.scale),
            cost=jnp.where(accepted, half_square(r), point.cost),
        )

    def _flat(
        self, params: Any, residual_fn: Any, batch: Any, jac: Any
    ) -> tuple[jax.Array, FlatResidual]:
        """Return the params as a vector, and the residual function of this vector."""
        if batch is None:
            x, flat = flat_residual(residual_fn, params, ())
        else:
            fns = example_residuals(residual_fn, batch)
            x, flat = flat_residual(fns, params, (batch,))
            if jac is None:
                flat = self.by_example(flat, x, fns.of_free(lambda params: params, batch, ()))
        if jac is None:
            return x, flat
        residuals = jax.eval_shape(flat.unflatten, jax.ShapeDtypeStruct((flat.m,), x.dtype))
        given = given_derivative(jac, residuals, params, (), x.dtype)
        return x, flat._replace(derivative=given)

    def tolerances(self, params: Any, dtype: Any) -> Tolerances:
        """Return the tolerances in a dtype; defaults depend on the least precise param dtype."""
        eps = max(float(jnp.finfo(jnp.result_type(p)).eps) for p in jax.tree.leaves(params))
        given = (self.ftol, self.xtol, self.gtol)
        filled = (
            default if value is None else value
            for value, default in zip(given, default_tolerances(eps), strict=True)
        )
        return Tolerances(*(jnp.asarray(number, dtype) for number in (*filled, eps)))

    def first_radius(self, scale: jax.Array, x: jax.Array, cost: jax.Array) -> jax.Array:
        """Return the radius of the first step from the scaling, the params and their cost."""
        raise NotImplementedError(f"{type(self).__name__} must define first_radius")

    def by_example(self, flat: FlatResidual, x: jax.Array, examples: Examples) -> FlatResidual:
        """Adapt residuals that are defined per example to the linear solver of this method."""
        rows = "auto" if self.linear_solver == "auto" else "formed"
        return by_example(flat, x, examples, self.linear_solver, rows, self.chunk_size)

    def model(self, flat: FlatResidual) -> LinearModel:
        """Return the linear model of the residuals."""
        return linear_model(flat, self.linear_solver, self.jacobian, self.chunk_size)

    def propose(
        self,
        model: LinearModel,
        point: Linearization,
        scale: jax.Array,
        radius: jax.Array,
        lam: jax.Array,
    ) -> Trial:
        """Propose a step, with the model's prediction for it.

        Args:
            model: The linear model of the residuals.
            point: The linearization at the current point.
            scale: The scaling `D`, of shape `[n]`.
            radius: The trust-region radius.
            lam: An initial guess of the damping.

        Returns:
            The step.
        """
        raise NotImplementedError(f"{type(self).__name__} must define propose")

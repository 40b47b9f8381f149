"""Levenberg-Marquardt as an (init, update) pair."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import (
    Slot,
    Status,
    Transformation,
    apply_updates,
    check_same_tree,
    hyper,
    increment,
    ravel,
    slot_zeros,
    static,
    zero_count,
)
from fnopt.least_squares._gain import actual_reduction
from fnopt.least_squares._options import Options, resolved
from fnopt.least_squares._point import Point, half_square, is_finite, point_at
from fnopt.least_squares._step import (
    Search,
    arrive,
    begin,
    choose,
    factorise,
    judge,
    propose,
)
from fnopt.residuals import FlatResidual, curvature_along, flat_residual, jacobian_mode, linearise


class LevenbergMarquardtState(NamedTuple):
    """What the next step needs, and how the last one went."""

    count: jax.Array  # int32, updates made
    radius: jax.Array  # of the trust region; 0 before the first update
    scale: Slot  # D, how strongly each parameter moves the residuals
    rejections: jax.Array  # int32, refused steps in a row
    rescues: jax.Array  # int32
    cost: jax.Array  # half the sum of squares after the update
    status: jax.Array  # int32, a fnopt.Status


class levenberg_marquardt(Transformation):
    r"""Levenberg-Marquardt in a scaled trust region, with geodesic acceleration.

    .. math:: v = \arg\min_{\|D v\| \le \Delta} \tfrac12 \|J v + r\|^2, \qquad
        u = t v + \tfrac12 t^2 a

    `a` bends the step along the path on which the linear model stays true, `t` is the best length
    along it to second order, and `D` holds the largest norms of the Jacobian's columns so far, so
    that nothing depends on the units of the params. A step that would raise the cost is refused:
    the update is then zero and the radius shrinks.

    Its `update` ignores the gradients that it is given (they may be `None`) and needs the
    residuals instead: `update(None, state, params, residual_fn=fn)`. `fn(params)` closes over the
    data; it may be another batch in each call, for nothing is trusted from call to call but the
    radius and the scaling. :func:`fnopt.least_squares` loops it to convergence.

    The linear algebra is QR and singular values of the smaller side of the Jacobian, in the
    params' common dtype (at least float32): with `m` residuals and `n` params it costs
    :math:`m n^2` or :math:`m^2 n`, whichever is less.

    Args:
        ftol: Relative tolerance of the cost; by default the rounding unit of the params' dtype.
        xtol: Relative tolerance of the params; by default 4 rounding units.
        gtol: Tolerance of the cosine between the residual and the Jacobian's columns; by default
            the rounding unit.
        radius: The first trust radius, in units of :math:`\|D x\|`.
        acceleration: The largest acceleration allowed, relative to the step.
        geodesic: Whether to use the second derivative of the residuals along the step. Without,
            steps are straight, and the residuals need no forward-mode derivative if `jacobian`
            is `'reverse'`.
        jacobian: `'forward'`, `'reverse'`, or `'auto'` for the cheaper one.

    Raises:
        ValueError: If a hyper-parameter is out of its range.

    Example:
        >>> import jax, jax.numpy as jnp, fnopt
        >>> tx = fnopt.levenberg_marquardt()
        >>> residuals = lambda p: jnp.stack([10 * (p["y"] - p["x"] ** 2), 1 - p["x"]])
        >>> params = {"x": jnp.float32(-1.2), "y": jnp.float32(1.0)}
        >>> state = tx.init(params)
        >>> @jax.jit
        ... def step(params, state):
        ...     updates, state = tx.update(None, state, params, residual_fn=residuals)
        ...     return fnopt.apply_updates(params, updates), state
        >>> for _ in range(30):
        ...     params, state = step(params, state)
        >>> print(f"{params['x']:.4f} {params['y']:.4f}")
        1.0000 1.0000

    Reference:
        Levenberg (1944); Marquardt (1963); Moré (1978), The Levenberg-Marquardt algorithm:
        implementation and theory; Transtrum and Sethna (2012), arXiv:1201.5885.
    """

    ftol: float | jax.Array | None = hyper(default=None, ge=0)
    xtol: float | jax.Array | None = hyper(default=None, ge=0)
    gtol: float | jax.Array | None = hyper(default=None, ge=0)
    radius: float | jax.Array = hyper(default=0.6, gt=0)
    acceleration: float | jax.Array = hyper(default=0.5, ge=0)
    geodesic: bool = static(default=True)
    jacobian: str = static(default="auto")

    needs_params = True

    def __post_init__(self) -> None:
        super().__post_init__()
        jacobian_mode(self.jacobian, 1, 1)

    def init(self, params: Any) -> LevenbergMarquardtState:
        """The state before the first step; the radius is found at the first update."""
        dtype = ravel(params, "params")[0].dtype
        return LevenbergMarquardtState(
            count=zero_count(),
            radius=jnp.zeros((), dtype),
            scale=slot_zeros(params, dtype),
            rejections=zero_count(),
            rescues=zero_count(),
            cost=jnp.asarray(jnp.inf, dtype),
            status=Status.RUNNING.array,
        )

    def update(
        self,
        updates: Any,
        state: LevenbergMarquardtState,
        params: Any = None,
        *,
        residual_fn: Any,
        **extra_args: Any,
    ) -> tuple[Any, LevenbergMarquardtState]:
        """One step: the update is zero, and the params stay as they are, if it is refused.

        Args:
            updates: Not used; may be `None`.
            state: The state.
            params: A pytree of real floating arrays.
            residual_fn: `residual_fn(params)` returns the residuals, as an array or a pytree; or
                a list, tuple or dict of such functions.
            **extra_args: Not used.

        Returns:
            The updates, in the dtypes of the params, and the next state.
        """
        del updates, extra_args
        check_same_tree(params, state.scale, "params", "the state's scale")
        x, flat = flat_residual(residual_fn, params)
        options = self.options(params, x.dtype)
        point = self.evaluate(flat, x)
        search = _resumed(state, point, options)
        factors = factorise(point, search)
        trial = propose(point, factors, search, self.curvature(flat, x), options)
        updates = flat.unravel(trial.step)
        # The cost is that of the params as apply_updates will round them.
        arrived, _ = ravel(apply_updates(params, updates))
        r = flat.r(arrived)
        actual = actual_reduction(point.r, r)
        accepted, status, judged = judge(point, trial, actual, search, options)
        usable = is_finite(point)
        accepted = accepted & usable
        status = jnp.where(usable, status, Status.NONFINITE_START.array)
        # -0.0, not 0.0: it is the number that changes no other, -0.0 included.
        updates = jax.tree.map(
            lambda u: jnp.where(accepted, u, jnp.asarray(-0.0, u.dtype)), updates
        )
        kept = choose(usable, judged, Search(state.radius, ravel(state.scale)[0], *state[3:5]))
        return updates, LevenbergMarquardtState(
            count=increment(state.count),
            radius=kept.radius,
            scale=ravel(state.scale)[1](kept.scale),
            rejections=kept.rejections,
            rescues=kept.rescues,
            cost=jnp.where(accepted, half_square(r), point.cost),
            status=status,
        )

    def options(self, params: Any, dtype: Any) -> Options:
        """The hyper-parameters in the dtype that is computed in, with the defaults filled in."""
        return resolved(
            dtype,
            rounding_unit(params),
            ftol=self.ftol,
            xtol=self.xtol,
            gtol=self.gtol,
            radius=self.radius,
            acceleration=self.acceleration,
        )

    def evaluate(self, flat: FlatResidual, x: jax.Array) -> Point:
        """Residual and Jacobian at a point."""
        return point_at(x, *linearise(flat.r, x, flat.m, self.jacobian))

    def curvature(
        self, flat: FlatResidual, x: jax.Array
    ) -> Callable[[jax.Array], jax.Array] | None:
        """The second derivative of the residual along a direction, unless steps are straight."""
        if not self.geodesic:
            return None
        return lambda v: curvature_along(flat.r, x, v)


def rounding_unit(params: Any) -> float:
    """The spacing of the coarsest dtype among the params."""
    return max(float(jnp.finfo(jnp.result_type(leaf)).eps) for leaf in jax.tree.leaves(params))


def _resumed(state: LevenbergMarquardtState, point: Point, options: Options) -> Search:
    """The search so far, taken to this point; a fresh one if there is none yet."""
    scale, _ = ravel(state.scale)
    held = Search(state.radius, scale, state.rejections, state.rescues)
    return choose(state.radius > 0, arrive(held, point), begin(point, options))

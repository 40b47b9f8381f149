"""The Levenberg-Marquardt method."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fnopt.core import hyper, static
from fnopt.errors import where
from fnopt.linear import divide, length
from fnopt.numerics import matmul
from fnopt.residuals import curvature_along
from fnopt.sharding import psum_rows
from fnopt.solvers._method import LeastSquaresMethod
from fnopt.solvers._trust_region import (
    MARQUARDT,
    NIELSEN,
    TRUST_REGION,
    RadiusRule,
    Trial,
    initial_radius,
    linear_step,
)
from fnopt.solvers.linear_model._base import LinearModel
from fnopt.solvers.linear_model._linearization import Linearization

# Smallest step size `t`. Measured on NIST's 54 initial guesses: 0.1 solves two problems fewer and
# takes twice as many evaluations; 0.5 solves one problem fewer.
_MIN_STEP_SIZE = 0.3
RULES = {"trust_region": TRUST_REGION, "marquardt": MARQUARDT, "nielsen": NIELSEN}


class levenberg_marquardt(LeastSquaresMethod):
    r"""Levenberg-Marquardt in a scaled trust region, with geodesic acceleration.

    .. math:: v = \arg\min_{\|D v\| \le \Delta} \tfrac12 \|J v + r\|^2, \qquad
        u = t v + \tfrac12 t^2 a

    `a` is the second-order correction of the step (geodesic acceleration), and `t` minimizes the
    second-order model along `v`. `D` contains the maximum norms of the Jacobian's columns over the
    previous steps, with exponential decay. Therefore steps don't depend on the units of the params.
    A step that increases the cost by more than rounding error is rejected: the update is zero and
    the trust region shrinks.

    `update` ignores its gradients (they may be `None`) and uses the residual function instead:
    `update(None, state, params, residual_fn=fn)`. `fn(params)` closes over the data. The data may
    be another batch in each call, because the state contains only radius, damping and scaling.
    :func:`fnopt.least_squares` runs the method to convergence.

    The factorization works in the params' common dtype (at least float32) and with the smaller
    dimension of the Jacobian. With `m` residuals and `n` params a step takes :math:`m n^2` or
    :math:`m^2 n` operations, whichever is less. Therefore networks with many params can take steps
    on small batches.

    Residuals may also be defined per example: `update(None, state, params, residual_fn=fn,
    batch=batch)` with `fn(params, example)`. With more params than residuals, steps then need only
    :math:`J J^T`. If :math:`J J^T` is cheaper to compute without `J` (a network of many params),
    `J` is never formed. All params have the same scale in such steps.

    In :func:`fnopt.least_squares` without bounds, :math:`D_j \ge 0.7 \|r\| / |x_j|` limits the
    relative change of a param with little effect. Otherwise a step could move the param to a range
    without any effect. `D` decays by a factor of 0.9 per step, so large columns at the initial
    guess lose their influence.

    Instead of the trust region, a classical rule can set the damping :math:`\lambda` in :math:`(J^T
    J + \lambda D^2)\, v = -J^T r`. Marquardt's rule divides or multiplies :math:`\lambda` by ten;
    Nielsen's rule depends on the gain ratio. Both rules are simpler and need more steps.

    Args:
        ftol: Relative tolerance of the cost; by default the machine epsilon of the params' dtype
            (in float32 1e-10, the accuracy of the predicted decrease).
        xtol: Relative tolerance of the params; by default 4 times the machine epsilon.
        gtol: Tolerance of the cosine between the residuals and the Jacobian's columns; by default
            the machine epsilon.
        jacobian: `'forward'`, `'reverse'`, or `'auto'` for the cheaper mode.
        linear_solver: `'qr'` (the most accurate), `'cholesky'` (the fastest), `'cg'` (matrix-free
            conjugate gradients, without acceleration, and with an unknown rank), or `'auto'`, which
            chooses by shape: see :func:`fnopt.linear.linear_solver`.
        chunk_size: Number of tangents or cotangents to propagate at once, which bounds memory; by
            default all if there are at most 256, else 64.
        axis_name: Inside `jax.shard_map`, the named axis over which the residuals are sharded; see
            :class:`fnopt.solvers.LeastSquaresMethod`.
        radius: The initial trust-region radius, relative to :math:`\|D x\|`.
        acceleration: The largest norm of the acceleration, relative to the norm of the step.
        geodesic: Whether to use the second derivative of the residuals along the step. If False,
            steps are linear, and the residuals need no forward-mode derivative if `jacobian` is
            `'reverse'`.
        damping: `'trust_region'`, `'marquardt'` or `'nielsen'`.
        lam: The initial damping :math:`\lambda` for `'marquardt'` and `'nielsen'`.

    Raises:
        ValueError: If a hyper-parameter is out of range.

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
        implementation and theory; Nielsen (1999), Damping parameter in Marquardt's method;
        Transtrum and Sethna (2012), arXiv:1201.5885.
    """

    # Measured on NIST's 54 initial guesses and the 108 of Moré, Garbow and Hillstrom: a radius of
    # 1 solves two problems fewer. An acceleration of 0.75 (Transtrum and Sethna) solves three
    # fewer, with one false report of convergence.
    radius: float | jax.Array = hyper(default=0.6, gt=0, infinite=True)
    acceleration: float | jax.Array = hyper(default=0.5, ge=0)
    geodesic: bool = static(default=True)
    damping: str = static(default="trust_region")
    # Madsen, Nielsen and Tingleff (2004), section 3.2.
    lam: float | jax.Array = hyper(default=1e-3, gt=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.damping not in RULES:
            raise ValueError(
                f"{where()}damping = {self.damping!r}, expected one of {tuple(RULES)}."
            )

    @property
    def rule(self) -> RadiusRule:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The update rule for the radius of a step."""
        return RULES[self.damping]

    def first_radius(self, scale: jax.Array, x: jax.Array, cost: jax.Array) -> jax.Array:
        """Return the initial trust-region radius, or the inverse of the initial damping."""
        if self.rule.is_region:
            return initial_radius(self.radius, scale, x, cost)
        return jnp.full_like(cost, 1 / self.lam)

    def propose(
        self,
        model: LinearModel,
        point: Linearization,
        scale: jax.Array,
        radius: jax.Array,
        lam: jax.Array,
    ) -> Trial:
        r"""Return the trust-region step, corrected to second order in length and direction.

        The second derivative :math:`r''_{vv}` of the residuals along the step `v` gives the cost
        along `v` to second order,

        .. math:: f(x + t v) \approx f + t\, g^T v + \tfrac12 t^2 C, \quad
            C = \|J v\|^2 + r^T r''_{vv}, \quad t = -\frac{g^T v}{C}

        Gauss-Newton neglects :math:`r^T r''_{vv}` and overshoots if residuals stay large. Along
        :math:`x + t v + \tfrac12 t^2 a` the residuals are linear to second order, in the damped
        least-squares sense, if

        .. math:: (J^T J + \lambda D^2)\, a = -J^T r''_{vv}

        The acceleration is omitted if :math:`\|D a\| t > \alpha \|D v\|`, because the quadratic
        model isn't accurate for a path with such curvature. The step isn't corrected if solving for
        `a` costs as much as the step (conjugate gradients, a sparse factor on the host).

        Reference:
            Transtrum and Sethna (2012), arXiv:1201.5885.
        """
        system = model.system(point, scale, lam)
        is_region = self.rule.is_region
        step = system.trust_region(radius) if is_region else system.damped(1 / radius)
        linear = linear_step(point, scale, step)
        pull_back = system.pull_back(step) if self.geodesic else None
        if pull_back is None:
            return linear
        r_vv = curvature_along(model.flat.r, point.x, linear.step)
        C = psum_rows(matmul(point.r, r_vv)) + step.model_norm
        minimizer = divide(-linear.slope, C)  # 0 or negative if the cost has no minimum along v
        min_t = jnp.asarray(_MIN_STEP_SIZE, minimizer.dtype)
        t = jnp.clip(jnp.where(minimizer > 0, minimizer, 1), min_t, 1)
        half = jnp.asarray(0.5, t.dtype)
        second_order = -t * linear.slope - half * t * t * C
        predicted = jnp.where(second_order > 0, second_order, linear.predicted)
        # The acceleration is `-pull_back(r_vv)`, so the correction is subtracted from the step.
        correction = half * t * t * pull_back(r_vv)
        limit = jnp.asarray(self.acceleration, t.dtype) * t * linear.length
        is_small = 2 * length(correction) <= limit  # False for NaN
        p = t * step.p - jnp.where(is_small, correction, jnp.zeros_like(correction))
        new_step = p / scale
        slope = matmul(point.gradient, new_step)
        return linear._replace(step=new_step, length=length(p), slope=slope, predicted=predicted)

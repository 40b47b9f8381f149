"""The length of a step along its direction, by the curvature that the linear model leaves out."""

from __future__ import annotations

import jax
import jax.numpy as jnp

_SHORTEST, _LONGEST = 0.3, 2.0


def newton_length(
    slope: jax.Array,
    curvature: jax.Array,
    length: jax.Array,
    radius: jax.Array,
    lam: jax.Array,
) -> jax.Array:
    r"""The minimum of the second-order Taylor model of the cost along the step.

    With :math:`r''_{vv}` at hand (it is computed for the acceleration) the curvature of the cost
    along `v` is known exactly, and with it the best length,

    .. math:: f(x + t v) \approx f + t\, g^T v + \tfrac12 t^2 C, \qquad
        C = \|J v\|^2 + r^T r''_{vv}, \qquad t = -\frac{g^T v}{C}.

    The Gauss-Newton model takes :math:`r^T r''_{vv} = 0`, which is why it overshoots, and so
    converges slowly, where the residuals stay large. The length is kept in [0.3, 2], and a
    step that grows stays inside the trust region.

    Args:
        slope: :math:`g^T v`.
        curvature: `C`.
        length: The length of the step in the trust region's metric.
        radius: The trust radius.
        lam: The damping; a damped step is at the boundary already and only may get shorter.

    Returns:
        The factor `t`; 1 where it isn't finite.
    """
    dtype = slope.dtype
    one = jnp.ones((), dtype)
    convex = curvature > 0
    room = radius / jnp.where(length > 0, length, one)
    most = jnp.where(lam == 0, jnp.clip(room, one, jnp.asarray(_LONGEST, dtype)), one)
    within = jnp.clip(-slope, jnp.asarray(_SHORTEST, dtype) * curvature, most * curvature)
    # Without a minimum along v the cost falls ever faster: as far as is allowed.
    rise, run = jnp.where(convex, within, most), jnp.where(convex, curvature, one)
    known = jnp.isfinite(slope) & jnp.isfinite(curvature)
    return jnp.where(known, rise, one) / jnp.where(known, run, one)  # divided once, and last


def second_order_reduction(
    t: jax.Array, slope: jax.Array, curvature: jax.Array, linear: jax.Array
) -> jax.Array:
    r"""The reduction that the second-order Taylor model of the cost predicts at `t` along the step.

    .. math:: -t\, g^T v - \tfrac12 t^2 C

    It is what the gain is measured against, so that the trust region isn't shrunk for a
    curvature that the step has taken into account. Where it promises nothing (the step was
    kept at the least length), the linear model's prediction stands.

    Args:
        t: The length.
        slope: :math:`g^T v`.
        curvature: `C`.
        linear: The linear model's prediction.

    Returns:
        The predicted reduction of the cost, > 0 wherever `linear` is.
    """
    predicted = -t * slope - jnp.asarray(0.5, t.dtype) * jnp.square(t) * curvature
    return jnp.where(predicted > 0, predicted, linear)

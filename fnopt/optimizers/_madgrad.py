"""MADGRAD and COCOB, whose iterates are relative to the initial parameters."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import Leafwise, RealSlot, Scalar, ScalarOrSchedule, Slot, hyper
from fnopt.numerics import nonzero, squared_modulus
from fnopt.optimizers._recipe import recipe
from fnopt.transforms import Chain, add_decayed_weights, chain, scale_by_schedule


class ScaleByMadgradState(NamedTuple):
    """Step count, weighted sums of squared gradients and of gradients, initial parameters."""

    count: jax.Array
    grad_sum_sq: RealSlot
    s: Slot
    x0: Slot


class scale_by_madgrad(Leafwise):
    r"""Dual averaging: initial parameters minus summed gradients over a cube root.

    .. math::
        \lambda_t &= (\eta_t + \epsilon)\, \sqrt{t}, \qquad s_t = s_{t-1} + \lambda_t\, g_t, \qquad
        v_t = v_{t-1} + \lambda_t\, |g_t|^2 \\
        z_t &= \theta_0 - \frac{s_t}{\sqrt[3]{v_t} + \epsilon}, \qquad
        u_t = (1-\beta)\, (z_t - \theta_t)

    Updates include the minus sign of descent.

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        momentum: :math:`\beta`.
        eps: :math:`\epsilon`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, params = fnopt.scale_by_madgrad(1.0, momentum=0.0), {"w": jnp.ones(2)}
        >>> tx.update({"w": jnp.full(2, 8.0)}, tx.init(params), params)[0]["w"].round(2)
        Array([-2., -2.], dtype=float32)

    Reference:
        Defazio and Jelassi, 2021, arXiv:2101.11075.
    """

    State = ScaleByMadgradState
    fill: ClassVar[Any] = {"x0": "params"}
    carrier = "s"
    needs_params = True

    learning_rate: ScalarOrSchedule = hyper(ge=0, schedule=True)
    momentum: Scalar = hyper(default=0.9, ge=0, lt=1)
    eps: Scalar = hyper(default=1e-6, ge=0)

    def scalars(self, h: Any, t: Any) -> dict[str, Any]:
        """Weight of this gradient, and the interpolation weight of the step."""
        # Epsilon is added to the rate as in the authors' code, so that a step with rate 0 has a
        # weight.
        steps = jnp.sqrt(t.astype(h.eps.dtype))
        return {"weight": (h.learning_rate + h.eps) * steps, "gain": 1 - h.momentum}

    def leaf(self, h: Any, g: Any, p: Any, v: Any, s: Any, x0: Any) -> Any:
        v = v + h.weight * squared_modulus(g)
        s = s + h.weight * g
        # With eps = 0, an element without a gradient so far would be 0 / 0.
        z = x0 - s / nonzero(_cube_root(v) + h.eps)
        return h.gain * (z - p), v, s, x0


def _cube_root(x: jax.Array) -> jax.Array:
    """The cube root with derivative 0 at 0, where the true derivative is infinite."""
    positive = x > 0
    return jnp.where(positive, jnp.cbrt(jnp.where(positive, x, jnp.ones_like(x))), x)


@recipe
def madgrad(
    learning_rate: ScalarOrSchedule,
    momentum: Scalar = 0.9,
    weight_decay: ScalarOrSchedule = 0.0,
    eps: Scalar = 1e-6,
) -> Chain:
    r"""MADGRAD: momentumized, adaptive dual averaging.

    .. math:: u_t = (1-\beta) \left(\theta_0 - \frac{\sum_i \lambda_i\, g_i}
              {\sqrt[3]{\sum_i \lambda_i |g_i|^2} + \epsilon} - \theta_t\right), \qquad
              \lambda_t = (\eta_t + \epsilon)\, \sqrt{t}

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        momentum: :math:`\beta`.
        weight_decay: Factor of the parameters that are added to the gradients, a number or a
            `Schedule`; it should be smaller than for other optimizers, often zero.
        eps: :math:`\epsilon`.

    Returns:
        A chain of `add_decayed_weights` and `scale_by_madgrad`, with the slots `grad_sum_sq`, `s`
        and `x0`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, params = fnopt.madgrad(1.0), {"w": jnp.ones(2)}
        >>> updates, _ = tx.update({"w": jnp.full(2, 8.0)}, tx.init(params), params)
        >>> fnopt.apply_updates(params, updates)["w"].round(1)
        Array([0.8, 0.8], dtype=float32)

    Reference:
        Defazio and Jelassi, 2021, arXiv:2101.11075.
    """
    # L2 regularization: a step goes toward a point that is computed from the start, which would
    # undo a decay of the params.
    return chain(add_decayed_weights(weight_decay), scale_by_madgrad(learning_rate, momentum, eps))


class ScaleByCocobState(NamedTuple):
    """Initial parameters, sum of gradients, largest and summed moduli of gradients, reward."""

    init_particles: Slot
    cumulative_gradients: Slot
    scale: RealSlot
    subgradients: RealSlot
    reward: RealSlot


class scale_by_cocob(Leafwise):
    r"""Coin betting: steps in proportion to the reward of the previous steps.

    .. math::
        L &= \max(L, |g_t|), \quad G = G + |g_t|, \quad
        R = \max(R - \langle g_t, \theta_t - \theta_0 \rangle, 0), \quad C = C - g_t \\
        u_t &= \theta_0 + \frac{C}{L\, \max(G + L,\, \alpha L)}\, (L + R) - \theta_t

    Updates include the minus sign of descent.

    Args:
        alpha: :math:`\alpha`; with larger values, the first bets are smaller.
        eps: The initial :math:`L`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, params = fnopt.scale_by_cocob(alpha=10.0), {"w": jnp.ones(2)}
        >>> tx.update({"w": jnp.full(2, 3.0)}, tx.init(params), params)[0]["w"].round(3)
        Array([-0.1, -0.1], dtype=float32)

    Reference:
        Orabona and Tommasi, 2017, arXiv:1705.07795.
    """

    State = ScaleByCocobState
    fill: ClassVar[Any] = {"init_particles": "params", "scale": "eps"}
    carrier = "cumulative_gradients"
    needs_params = True

    # Orabona and Tommasi (2017), algorithm 2.
    alpha: Scalar = hyper(default=100.0, gt=0)
    eps: Scalar = hyper(default=1e-8, gt=0)

    def leaf(self, h: Any, g: Any, p: Any, p0: Any, c: Any, scale: Any, total: Any, r: Any) -> Any:
        size = jnp.abs(g)
        scale, total = jnp.maximum(scale, size), total + size
        # The reward bounds the bet: a negative reward would bet with borrowed money.
        r = jnp.maximum(r - jnp.real(jnp.conj(g) * (p - p0)), jnp.zeros_like(r))
        c = c - g
        # The division comes first: the product of two scales underflows for gradients of 1e-20.
        bet = c / jnp.maximum(total + scale, h.alpha * scale) * (1 + r / scale)
        return p0 - p + bet, p0, c, scale, total, r


@recipe
def cocob(
    learning_rate: ScalarOrSchedule = 1.0,
    alpha: Scalar = 100.0,
    eps: Scalar = 1e-8,
    weight_decay: ScalarOrSchedule = 0.0,
    mask: Any = None,
) -> Chain:
    r"""COCOB: coin betting, which needs no learning rate.

    .. math:: u_t = \theta_0 + \frac{C_t}{L_t \max(G_t + L_t,\, \alpha L_t)}\, (L_t + R_t) -
              \theta_t

    Args:
        learning_rate: A factor of the gradients, a number or a `Schedule`.
        alpha: :math:`\alpha`; with larger values, the first bets are smaller.
        eps: The smallest scale of gradients.
        weight_decay: Factor of the parameters that are added to the gradients.
        mask: The leaves with weight decay; see `add_decayed_weights`. None means all leaves.

    Returns:
        A chain of `add_decayed_weights`, `scale_by_schedule` and `scale_by_cocob`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, params = fnopt.cocob(alpha=10.0), {"w": jnp.ones(2)}
        >>> updates, _ = tx.update({"w": jnp.full(2, 3.0)}, tx.init(params), params)
        >>> print(*(f"{x:.3f}" for x in fnopt.apply_updates(params, updates)["w"]))
        0.900 0.900

    Reference:
        Orabona and Tommasi, 2017, arXiv:1705.07795.
    """
    return chain(
        add_decayed_weights(weight_decay, mask),
        scale_by_schedule(learning_rate),
        scale_by_cocob(alpha, eps),
    )

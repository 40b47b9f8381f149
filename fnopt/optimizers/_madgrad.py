"""MADGRAD and COCOB: methods with iterates relative to the initial parameters."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import Leafwise, RealSlot, Scalar, ScalarOrSchedule, Slot, hyper
from fnopt.numerics import nonzero, squared_modulus
from fnopt.optimizers._recipe import recipe
from fnopt.transforms import Chain, add_decayed_weights, chain, scale_by_schedule


class ScaleByMadgradState(NamedTuple):
    r"""State of `scale_by_madgrad`.

    Attributes:
        count: :math:`t`, the number of steps.
        grad_sum_sq: :math:`v_t`, the weighted sum of squared gradients.
        s: :math:`s_t`, the weighted sum of gradients.
        x0: :math:`\theta_0`, the initial parameters.
    """

    count: jax.Array
    grad_sum_sq: RealSlot
    s: Slot
    x0: Slot


class scale_by_madgrad(Leafwise):
    r"""Dual averaging with the cube root of the summed squared gradients as divisor.

    .. math::
        \lambda_t &= (\eta_t + \epsilon)\, \sqrt{t}, \qquad s_t = s_{t-1} + \lambda_t\, g_t, \qquad
        v_t = v_{t-1} + \lambda_t\, |g_t|^2 \\
        z_t &= \theta_0 - \frac{s_t}{\sqrt[3]{v_t} + \epsilon}, \qquad
        u_t = (1-\beta)\, (z_t - \theta_t)

    Updates include the minus sign, so don't chain `scale_by_learning_rate` after this transform.

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        momentum: :math:`\beta`, the weight of the current parameters in the next ones.
        eps: :math:`\epsilon`, added to the learning rate and to the cube root.

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
        # As in the authors' code, epsilon is added to the learning rate, so a step with the
        # learning rate 0 has a positive weight.
        root_of_t = jnp.sqrt(t.astype(h.eps.dtype))
        return {"weight": (h.learning_rate + h.eps) * root_of_t, "gain": 1 - h.momentum}

    def leaf(self, h: Any, g: Any, p: Any, v: Any, s: Any, x0: Any) -> Any:
        v = v + h.weight * squared_modulus(g)
        s = s + h.weight * g
        # With eps = 0, an element whose gradients were all zero would be 0 / 0.
        z = x0 - s / nonzero(_cube_root(v) + h.eps)
        return h.gain * (z - p), v, s, x0


def _cube_root(x: jax.Array) -> jax.Array:
    """Cube root with derivative 1 instead of infinity at 0."""
    is_positive = x > 0
    return jnp.where(is_positive, jnp.cbrt(jnp.where(is_positive, x, jnp.ones_like(x))), x)


@recipe
def madgrad(
    learning_rate: ScalarOrSchedule,
    momentum: Scalar = 0.9,
    weight_decay: ScalarOrSchedule = 0.0,
    eps: Scalar = 1e-6,
) -> Chain:
    r"""MADGRAD: adaptive dual averaging with momentum.

    .. math:: u_t = (1-\beta) \left(\theta_0 - \frac{\sum_i \lambda_i\, g_i}
              {\sqrt[3]{\sum_i \lambda_i |g_i|^2} + \epsilon} - \theta_t\right), \qquad
              \lambda_t = (\eta_t + \epsilon)\, \sqrt{t}

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        momentum: :math:`\beta`, the weight of the current parameters in the next ones.
        weight_decay: Coefficient of L2 regularization, a number or a `Schedule`. It should be
            smaller than for other optimizers, often zero.
        eps: :math:`\epsilon`, added to the learning rate and to the cube root.

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
    # L2 regularization instead of decoupled decay, because the iterates are computed from the
    # initial parameters, which would undo a decay of the current parameters.
    return chain(add_decayed_weights(weight_decay), scale_by_madgrad(learning_rate, momentum, eps))


class ScaleByCocobState(NamedTuple):
    r"""State of `scale_by_cocob`.

    Attributes:
        init_particles: :math:`\theta_0`, the initial parameters.
        cumulative_gradients: :math:`C_t`, the negative sum of gradients.
        scale: :math:`L_t`, the largest modulus of the gradients.
        subgradients: :math:`G_t`, the sum of the moduli of the gradients.
        reward: :math:`R_t`, the reward of all previous steps.
    """

    init_particles: Slot
    cumulative_gradients: Slot
    scale: RealSlot
    subgradients: RealSlot
    reward: RealSlot


class scale_by_cocob(Leafwise):
    r"""Coin betting: steps that are proportional to the reward of the previous steps.

    .. math::
        L_t &= \max(L_{t-1}, |g_t|), \qquad G_t = G_{t-1} + |g_t|, \\
        R_t &= \max(R_{t-1} - \langle g_t, \theta_t - \theta_0 \rangle, 0), \qquad
        C_t = C_{t-1} - g_t, \\
        u_t &= \theta_0 + \frac{C_t}{L_t \max(G_t + L_t,\, \alpha L_t)}\, (L_t + R_t) - \theta_t

    for every element of the parameters.

    Updates include the minus sign, so don't chain `scale_by_learning_rate` after this transform.

    Args:
        alpha: :math:`\alpha`; with larger values, the first steps are shorter.
        eps: :math:`L_0`, a lower bound of :math:`L_t`.

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
        # The bet is at most the wealth L + R, so R isn't allowed to be negative.
        r = jnp.maximum(r - jnp.real(jnp.conj(g) * (p - p0)), jnp.zeros_like(r))
        c = c - g
        # Divide by one scale at a time: the square of a scale underflows for gradients of 1e-20.
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

    `scale_by_cocob` defines :math:`C`, :math:`L`, :math:`G` and :math:`R`.

    Args:
        learning_rate: A factor of the gradients, a number or a `Schedule`.
        alpha: :math:`\alpha`; with larger values, the first steps are shorter.
        eps: :math:`L_0`, a lower bound of :math:`L_t`.
        weight_decay: Coefficient of L2 regularization, a number or a `Schedule`.
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

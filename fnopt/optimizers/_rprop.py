"""Rprop: a step size for every element, which follows the signs of gradients."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp

from fnopt.core import Leafwise, RealSlot, Scalar, Slot, hyper
from fnopt.optimizers._recipe import recipe
from fnopt.transforms import Chain, chain, scale_by_learning_rate


class ScaleByRpropState(NamedTuple):
    """The step size of every element, and the last step."""

    step_sizes: RealSlot
    prev_updates: Slot


class scale_by_rprop(Leafwise):
    r"""Step along the sign of the gradient, with sizes that grow while the sign stays.

    .. math::
        a_t &= \operatorname{sign}(g_t)\, \operatorname{sign}(u_{t-1}), \qquad
        s_t = \begin{cases} \min(\eta^+ s_{t-1},\, s_{max}) & a_t > 0 \\
              \max(\eta^- s_{t-1},\, s_{min}) & a_t < 0 \\ s_{t-1} & a_t = 0 \end{cases} \\
        u_t &= \begin{cases} 0 & a_t < 0 \\ s_t \operatorname{sign}(g_t) & \text{otherwise}
               \end{cases}

    Args:
        learning_rate: :math:`s_0`.
        eta_minus: :math:`\eta^-`, the factor after a change of sign.
        eta_plus: :math:`\eta^+`, the factor while the sign stays.
        min_step_size: :math:`s_{min}`.
        max_step_size: :math:`s_{max}`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.scale_by_rprop(0.5)
        >>> u, state = tx.update({"w": jnp.asarray([3.0, -0.1])}, tx.init({"w": jnp.ones(2)}))
        >>> u
        {'w': Array([ 0.5, -0.5], dtype=float32)}

    Reference:
        Riedmiller and Braun, 1993; Igel and Hüsken, 2003 (this variant, iRprop-).
    """

    State = ScaleByRpropState
    keeps_squares = False

    learning_rate: Scalar = hyper(ge=0)
    eta_minus: Scalar = hyper(default=0.5, gt=0, le=1)
    eta_plus: Scalar = hyper(default=1.2, ge=1)
    min_step_size: Scalar = hyper(default=1e-6, ge=0)
    max_step_size: Scalar = hyper(default=50.0, gt=0, infinite=True)

    def fill(self, slot: str) -> Any:
        """The step sizes start at the learning rate."""
        return self.learning_rate if slot == "step_sizes" else 0.0

    def leaf(self, h: Any, g: Any, size: Any, previous: Any) -> Any:
        # The product of signs, not of the numbers: that of 1e-30 and 1e-20 is zero in float32.
        agree = jnp.real(jnp.sign(g) * jnp.conj(jnp.sign(previous)))
        grown = jnp.clip(
            size * jnp.where(agree > 0, h.eta_plus, h.eta_minus), h.min_step_size, h.max_step_size
        )
        size = jnp.where(agree == 0, size, grown)
        # An infinite gradient has a sign, too; the sum gives NaN instead.
        u = jnp.where(agree < 0, jnp.zeros_like(g), size * jnp.sign(g)) + 0 * g
        return u, size, u


@recipe
def rprop(
    learning_rate: Scalar,
    eta_minus: Scalar = 0.5,
    eta_plus: Scalar = 1.2,
    min_step_size: Scalar = 1e-6,
    max_step_size: Scalar = 50.0,
) -> Chain:
    r"""Rprop: steps by the signs of gradients alone, for whole batches.

    .. math:: s_t = \operatorname{clip}(\eta^{\pm} s_{t-1},\, s_{min},\, s_{max}), \qquad
              u_t = -s_t \operatorname{sign}(g_t)

    Args:
        learning_rate: :math:`s_0`, the first step size of every element.
        eta_minus: :math:`\eta^-`, the factor after a change of sign.
        eta_plus: :math:`\eta^+`, the factor while the sign stays.
        min_step_size: :math:`s_{min}`.
        max_step_size: :math:`s_{max}`.

    Returns:
        A chain of `scale_by_rprop` and a change of sign, with the slots `step_sizes` and
        `prev_updates`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.rprop(0.5)
        >>> params = {"w": jnp.ones(2)}
        >>> updates, state = tx.update({"w": jnp.asarray([3.0, -0.1])}, tx.init(params), params)
        >>> fnopt.apply_updates(params, updates)
        {'w': Array([0.5, 1.5], dtype=float32)}

    Reference:
        Riedmiller and Braun, 1993; Igel and Hüsken, 2003.
    """
    return chain(
        scale_by_rprop(learning_rate, eta_minus, eta_plus, min_step_size, max_step_size),
        scale_by_learning_rate(1.0),
    )

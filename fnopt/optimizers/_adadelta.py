"""Adadelta."""

from __future__ import annotations

from typing import Any, NamedTuple

from fnopt.core import (
    Leafwise,
    RealSlot,
    Scalar,
    ScalarOrSchedule,
    ema,
    hyper,
    positive_root,
    squared_modulus,
)
from fnopt.optimizers._recipe import recipe
from fnopt.transforms import Chain, add_decayed_weights, chain, scale_by_learning_rate


class ScaleByAdadeltaState(NamedTuple):
    """The averages of the squared gradient and of the squared update."""

    e_g: RealSlot
    e_x: RealSlot


class scale_by_adadelta(Leafwise):
    r"""Scale the gradient by the root mean square of the updates over its own.

    .. math::
        E^g_t = \rho E^g_{t-1} + (1-\rho)\, |g_t|^2, \qquad
        u_t = \sqrt{\frac{E^x_{t-1} + \epsilon}{E^g_t + \epsilon}}\; g_t, \qquad
        E^x_t = \rho E^x_{t-1} + (1-\rho)\, |u_t|^2

    Args:
        rho: :math:`\rho`, the decay.
        eps: :math:`\epsilon`; it is what the first steps are made of.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.scale_by_adadelta(rho=0.75, eps=1.0)
        >>> tx.update({"w": jnp.zeros(2)}, tx.init({"w": jnp.ones(2)}))[0]
        {'w': Array([0., 0.], dtype=float32)}

    Reference:
        Zeiler, 2012, arXiv:1212.5701.
    """

    State = ScaleByAdadeltaState

    rho: Scalar = hyper(default=0.9, ge=0, lt=1)
    eps: Scalar = hyper(default=1e-6, ge=0)

    def leaf(self, h: Any, g: Any, e_g: Any, e_x: Any) -> Any:
        square = squared_modulus(g)
        e_g = ema(e_g, square, h.rho)
        # The quotient of the roots: that of the averages may overflow where the step does not.
        step = positive_root(e_x + h.eps) / positive_root(e_g + h.eps) * g
        e_x = ema(e_x, squared_modulus(step), h.rho)
        # The same step from the new average, so that XLA overwrites the old one in place: its
        # definition gives E' + rho eps = (E + eps) (rho + (1 - rho) |g|^2 / (E^g + eps)).
        divisor = positive_root(h.rho * (e_g + h.eps) + (1 - h.rho) * square)
        return positive_root(e_x + h.rho * h.eps) / divisor * g, e_g, e_x


@recipe
def adadelta(
    learning_rate: ScalarOrSchedule = 1.0,
    rho: Scalar = 0.9,
    eps: Scalar = 1e-6,
    weight_decay: ScalarOrSchedule = 0.0,
    weight_decay_mask: Any = None,
) -> Chain:
    r"""Adadelta: steps scaled by the root mean square of past updates.

    .. math:: u_t = -\eta_t \sqrt{\frac{E^x_{t-1} + \epsilon}{E^g_t + \epsilon}}\; g_t

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        rho: Decay of both averages.
        eps: :math:`\epsilon`.
        weight_decay: Times the params, added to the gradients: a number or a `Schedule`.
        weight_decay_mask: Which leaves decay; see `add_decayed_weights`. None for all.

    Returns:
        A chain of `add_decayed_weights`, `scale_by_adadelta` and `scale_by_learning_rate`, with
        the slots `e_g` and `e_x`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.adadelta(rho=0.75, eps=1e-4)
        >>> params = {"w": jnp.ones(2)}
        >>> updates, state = tx.update({"w": jnp.full(2, 8.0)}, tx.init(params), params)
        >>> print(f"{updates['w'][0]:.4f}")
        -0.0200

    Reference:
        Zeiler, 2012, arXiv:1212.5701.
    """
    return chain(
        add_decayed_weights(weight_decay, weight_decay_mask),
        scale_by_adadelta(rho, eps),
        scale_by_learning_rate(learning_rate),
    )

"""Variance reduction of gradients (MARS)."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import Leafwise, Scalar, Slot, global_norm, hyper


class ReduceVarianceState(NamedTuple):
    """Step count, and the last gradient."""

    count: jax.Array
    last_grad: Slot


class reduce_variance(Leafwise):
    r"""Add to the gradient a multiple of its change (variance reduction of MARS).

    .. math:: c_t = g_t + \gamma\, \frac{\beta_1}{1-\beta_1}\, (g_t - g_{t-1}), \qquad
              u_t = \frac{c_t}{\max(1,\, \lVert c_t \rVert / r)}

    In front of a method that averages gradients with decay :math:`\beta_1` it makes MARS of it:
    `mars` is `chain(reduce_variance(), adamw(...))`, and `lion` or `shampoo` can stand there too.
    The norm is that of a leaf. The change is that between batches (the approximate form of the
    paper, one gradient a step); nothing is added in the first step.

    Args:
        b1: :math:`\beta_1`, the decay of the mean behind it.
        gamma: :math:`\gamma`, how much of the change is added; 0 for none of it.
        max_norm: :math:`r`, the largest norm of a leaf that passes unchanged; infinity for no
            bound.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, params = fnopt.reduce_variance(0.5, gamma=0.5), {"w": jnp.zeros(1)}
        >>> _, state = tx.update({"w": jnp.asarray([0.5])}, tx.init(params), params)
        >>> tx.update({"w": jnp.asarray([0.25])}, state, params)[0]
        {'w': Array([0.125], dtype=float32)}

    Reference:
        Yuan, Liu, Wu, Zhou and Gu, 2024, arXiv:2411.10438.
    """

    State = ReduceVarianceState

    b1: Scalar = hyper(default=0.95, ge=0, lt=1)
    gamma: Scalar = hyper(default=0.025, ge=0)
    max_norm: Scalar = hyper(default=1.0, gt=0, infinite=True)

    def scalars(self, h: Any, t: Any) -> dict[str, Any]:
        """The factor of the gradient's change: zero in the first step, which has none."""
        gain = h.gamma * h.b1 / (1 - h.b1)
        return {"gain": jnp.where(t > 1, gain, jnp.zeros_like(gain))}

    def leaf(self, h: Any, g: Any, last: Any) -> Any:
        corrected = g + h.gain * (g - last)
        excess = global_norm(corrected) / h.max_norm  # zero where there is no bound
        return corrected / jnp.maximum(excess, jnp.ones_like(excess)), g

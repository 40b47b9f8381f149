"""Adagrad."""

from __future__ import annotations

from typing import Any, NamedTuple

from fnopt.core import (
    Leafwise,
    RealSlot,
    Scalar,
    ScalarOrSchedule,
    hyper,
    positive_root,
    squared_modulus,
)
from fnopt.optimizers._recipe import recipe
from fnopt.transforms import Chain, chain, scale_by_learning_rate


class ScaleByRssState(NamedTuple):
    """The sum of the squared gradients."""

    sum_of_squares: RealSlot


class scale_by_rss(Leafwise):
    r"""Divide the gradient by the root of the sum of all squared gradients so far.

    .. math:: G_t = G_{t-1} + |g_t|^2, \qquad u_t = \frac{g_t}{\sqrt{G_t + \epsilon}}

    Args:
        initial_accumulator_value: :math:`G_0`.
        eps: :math:`\epsilon`. With this and :math:`G_0` zero, an element that never saw a
            gradient gets a zero update.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.scale_by_rss(initial_accumulator_value=9.0)
        >>> tx.update({"w": jnp.full(2, 4.0)}, tx.init({"w": jnp.ones(2)}))[0]
        {'w': Array([0.8, 0.8], dtype=float32)}

    Reference:
        Duchi, Hazan and Singer, 2011, Adaptive subgradient methods.
    """

    State = ScaleByRssState

    initial_accumulator_value: Scalar = hyper(default=0.1, ge=0)
    eps: Scalar = hyper(default=1e-7, ge=0)

    def fill(self, slot: str) -> Any:
        """The sum starts at `initial_accumulator_value`."""
        del slot
        return self.initial_accumulator_value

    def leaf(self, h: Any, g: Any, total: Any) -> Any:
        total = total + squared_modulus(g)
        return g / positive_root(total + h.eps), total


@recipe
def adagrad(
    learning_rate: ScalarOrSchedule,
    initial_accumulator_value: Scalar = 0.1,
    eps: Scalar = 1e-7,
) -> Chain:
    r"""Adagrad: the gradient over the root of the sum of all squared gradients so far.

    .. math:: G_t = G_{t-1} + |g_t|^2, \qquad u_t = -\eta_t\, \frac{g_t}{\sqrt{G_t + \epsilon}}

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        initial_accumulator_value: :math:`G_0`.
        eps: :math:`\epsilon`.

    Returns:
        A chain of `scale_by_rss` and `scale_by_learning_rate`, with the slot `sum_of_squares`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.adagrad(0.5, initial_accumulator_value=9.0)
        >>> params = {"w": jnp.ones(2)}
        >>> updates, state = tx.update({"w": jnp.full(2, 4.0)}, tx.init(params), params)
        >>> fnopt.apply_updates(params, updates)
        {'w': Array([0.6, 0.6], dtype=float32)}

    Reference:
        Duchi, Hazan and Singer, 2011, Adaptive subgradient methods.
    """
    return chain(
        scale_by_rss(initial_accumulator_value, eps), scale_by_learning_rate(learning_rate)
    )

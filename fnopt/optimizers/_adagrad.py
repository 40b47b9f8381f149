"""Adagrad."""

from __future__ import annotations

from fnopt.core import Scalar, ScalarOrSchedule
from fnopt.optimizers._scale_by_rss import scale_by_rss
from fnopt.transforms import Chain, chain, scale_by_learning_rate


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

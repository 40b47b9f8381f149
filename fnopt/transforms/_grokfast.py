"""Amplification of slow gradients."""

from __future__ import annotations

from typing import Any, NamedTuple

from fnopt.core import Leafwise, Scalar, Slot, ema, hyper


class GrokfastState(NamedTuple):
    """The average of the gradients."""

    ema: Slot


class grokfast(Leafwise):
    r"""Amplify slow gradients: add a multiple of their running mean.

    .. math:: h_t = \alpha h_{t-1} + (1-\alpha)\, g_t, \qquad u_t = g_t + \lambda h_t

    In front of an optimizer it shortens the time between fitting the training set and generalising
    ("grokking"). On the problems of its paper the factor is up to 50.

    Args:
        alpha: :math:`\alpha`, decay of the mean.
        lamb: :math:`\lambda`, how much of it is added.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.chain(fnopt.grokfast(0.5, lamb=2.0), fnopt.sgd(0.1))
        >>> params = {"w": jnp.ones(1)}
        >>> tx.update(params, tx.init(params), params)[0]
        {'w': Array([-0.2], dtype=float32)}

    Reference:
        Lee, Kang, Kim and Lee, 2024, arXiv:2405.20233 (Grokfast-EMA).
    """

    State = GrokfastState

    alpha: Scalar = hyper(default=0.98, ge=0, lt=1)
    lamb: Scalar = hyper(default=2.0, ge=0)

    def scalars(self, h: Any, t: Any) -> dict[str, Any]:
        """The weight of the new gradient."""
        del t
        return {"gain": 1 - h.alpha}

    def leaf(self, h: Any, g: Any, mean: Any) -> Any:
        mean = ema(mean, g, h.alpha, h.gain)
        return g + h.lamb * mean, mean

"""Momentum."""

from __future__ import annotations

from typing import Any, NamedTuple

from fnopt.core import Leafwise, Scalar, Slot, as_dtype, hyper, static


class TraceState(NamedTuple):
    """The decaying sum of gradients."""

    trace: Slot


class trace(Leafwise):
    r"""Momentum: a decaying sum of gradients.

    .. math:: m_t = \gamma\, m_{t-1} + g_t, \qquad
              u_t = \begin{cases} m_t \\ g_t + \gamma\, m_t & \text{Nesterov} \end{cases}

    It is a sum, not an average: with a constant gradient it grows to :math:`g / (1 - \gamma)`.

    Args:
        decay: :math:`\gamma`, the momentum.
        nesterov: Whether to look ahead.
        accumulator_dtype: Storage dtype of the sum; by default the params' own, but at least
            float32.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.trace(0.5)
        >>> g, state = {"w": jnp.ones(2)}, tx.init({"w": jnp.ones(2)})
        >>> _, state = tx.update(g, state)
        >>> tx.update(g, state)[0]
        {'w': Array([1.5, 1.5], dtype=float32)}

    Reference:
        Polyak, 1964; Sutskever, Martens, Dahl and Hinton, 2013 (Nesterov).
    """

    State = TraceState

    decay: Scalar = hyper(ge=0, le=1)
    nesterov: bool = static(default=False)
    accumulator_dtype: Any = static(default=None, convert=as_dtype)

    def storage(self, slot: str) -> Any:
        """`accumulator_dtype`."""
        del slot
        return self.accumulator_dtype

    def leaf(self, h: Any, g: Any, m: Any) -> Any:
        m = h.decay * m + g
        return (g + h.decay * m if self.nesterov else m), m

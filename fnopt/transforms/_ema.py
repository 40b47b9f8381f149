"""A running mean of the updates."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax

from fnopt.core import Leafwise, Scalar, Slot, as_dtype, hyper, mean_weights, static
from fnopt.core import ema as averaged


class EmaState(NamedTuple):
    """Step count (None without `debias`), and the average of the updates."""

    count: jax.Array | None
    ema: Slot


class ema(Leafwise):
    r"""Replace updates by their exponential moving average.

    .. math:: m_t = \beta m_{t-1} + (1-\beta)\, g_t, \qquad
              u_t = a\, m_t + b\, g_t

    with :math:`(a, b) = (1, 0)`, or :math:`(\beta, 1-\beta)` for Nesterov's form. Debiased, the
    two terms are divided by :math:`1-\beta^t`, and `a` of Nesterov's form by
    :math:`1-\beta^{t+1}`.

    Args:
        decay: :math:`\beta`.
        debias: Whether to correct for the start at zero.
        accumulator_dtype: Storage dtype of the average; by default the params' own, but at least
            float32.
        nesterov: Whether to look ahead.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.ema(0.75)
        >>> tx.update({"w": jnp.full(2, 4.0)}, tx.init({"w": jnp.ones(2)}))[0]["w"].round(3)
        Array([4., 4.], dtype=float32)

    Reference:
        Dozat, 2016, Incorporating Nesterov Momentum into Adam.
    """

    State = EmaState

    decay: Scalar = hyper(ge=0, lt=1)
    debias: bool = static(default=True)
    accumulator_dtype: Any = static(default=None, convert=as_dtype)
    nesterov: bool = static(default=False)

    @property
    def reads_step(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the average is debiased."""
        return self.debias

    def storage(self, slot: str) -> Any:
        """`accumulator_dtype`."""
        del slot
        return self.accumulator_dtype

    def scalars(self, h: Any, t: Any) -> dict[str, Any]:
        """The weights of the average and of the gradient."""
        gain = 1 - h.decay
        mean, gradient = h.decay, gain
        if self.debias:
            mean, gradient = mean_weights(h.decay, t, self.nesterov)
        return {"gain": gain, "mean": mean, "gradient": gradient}

    def leaf(self, h: Any, g: Any, mean: Any) -> Any:
        mean = averaged(mean, g, h.decay, h.gain)
        if self.nesterov:
            return h.mean * mean + h.gradient * g, mean
        return (h.mean * mean if self.debias else mean), mean

"""Averages of past gradients, and corrections of the gradient by past gradients."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import Leafwise, Scalar, Slot, global_norm, hyper, static
from fnopt.numerics import as_dtype, mean_weights
from fnopt.numerics import ema as averaged


class TraceState(NamedTuple):
    """Decaying sum of gradients."""

    trace: Slot


class trace(Leafwise):
    r"""Momentum: a decaying sum of gradients.

    .. math:: m_t = \gamma\, m_{t-1} + g_t, \qquad
              u_t = \begin{cases} m_t \\ g_t + \gamma\, m_t & \text{Nesterov} \end{cases}

    The momentum is a sum, not an average: for a constant gradient, the sum grows to :math:`g / (1 -
    \gamma)`.

    Args:
        decay: :math:`\gamma`, the momentum.
        nesterov: Whether to use Nesterov's form.
        accumulator_dtype: Storage dtype of the sum; by default the dtype of the params, at least
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
    storage: ClassVar[Any] = {"trace": "accumulator_dtype"}

    decay: Scalar = hyper(ge=0, le=1)
    nesterov: bool = static(default=False)
    accumulator_dtype: Any = static(default=None, convert=as_dtype)

    def leaf(self, h: Any, g: Any, m: Any) -> Any:
        # A sum, not a mean, as in optax and in PyTorch's SGD without dampening.
        m = h.decay * m + g
        return (g + h.decay * m if self.nesterov else m), m


class EmaState(NamedTuple):
    """Step count (None without `debias`), and the average of the updates."""

    count: jax.Array | None
    ema: Slot


class ema(Leafwise):
    r"""Replace updates by their exponential moving average.

    .. math:: m_t = \beta m_{t-1} + (1-\beta)\, g_t, \qquad
              u_t = a\, m_t + b\, g_t

    with :math:`(a, b) = (1, 0)`, or :math:`(\beta, 1-\beta)` for Nesterov's form. If `debias` is
    true, `a` and `b` are divided by :math:`1-\beta^t`; in Nesterov's form `a` is divided by
    :math:`1-\beta^{t+1}` instead.

    Args:
        decay: :math:`\beta`.
        debias: Whether to correct the bias of the initialization at zero.
        accumulator_dtype: Storage dtype of the average; by default the dtype of the params, at
            least float32.
        nesterov: Whether to use Nesterov's form.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.ema(0.75)
        >>> tx.update({"w": jnp.full(2, 4.0)}, tx.init({"w": jnp.ones(2)}))[0]["w"].round(3)
        Array([4., 4.], dtype=float32)

    Reference:
        Dozat, 2016, Incorporating Nesterov Momentum into Adam.
    """

    State = EmaState
    storage: ClassVar[Any] = {"ema": "accumulator_dtype"}

    decay: Scalar = hyper(ge=0, lt=1)
    debias: bool = static(default=True)
    accumulator_dtype: Any = static(default=None, convert=as_dtype)
    nesterov: bool = static(default=False)

    @property
    def reads_step(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the average is debiased."""
        return self.debias

    def scalars(self, h: Any, t: Any) -> dict[str, Any]:
        """Compute the weights of the average and of the gradient."""
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


class GrokfastState(NamedTuple):
    """Average of the gradients."""

    ema: Slot


class grokfast(Leafwise):
    r"""Amplify slowly changing gradients by adding a multiple of their running mean.

    .. math:: h_t = \alpha h_{t-1} + (1-\alpha)\, g_t, \qquad u_t = g_t + \lambda h_t

    Before an optimizer in a chain, `grokfast` shortens the time between fitting the training set
    and generalizing ("grokking"). The paper reports a factor of up to 50.

    Args:
        alpha: :math:`\alpha`, the decay of the mean.
        lamb: :math:`\lambda`, the factor of the mean.

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

    # The defaults of Lee et al. (2024) for exponential moving averages.
    alpha: Scalar = hyper(default=0.98, ge=0, lt=1)
    lamb: Scalar = hyper(default=2.0, ge=0)

    def leaf(self, h: Any, g: Any, mean: Any) -> Any:
        mean = averaged(mean, g, h.alpha)
        return g + h.lamb * mean, mean


class ReduceVarianceState(NamedTuple):
    """Step count, and the last gradient."""

    count: jax.Array
    last_grad: Slot


class reduce_variance(Leafwise):
    r"""Add to the gradient a multiple of its change (variance reduction of MARS).

    .. math:: c_t = g_t + \gamma\, \frac{\beta_1}{1-\beta_1}\, (g_t - g_{t-1}), \qquad
              u_t = \frac{c_t}{\max(1,\, \lVert c_t \rVert / r)}

    Put `reduce_variance` before a method that averages gradients with decay :math:`\beta_1`: `mars`
    is `chain(reduce_variance(), adamw(...))`, and `lion` or `shampoo` can replace `adamw`. The norm
    of each leaf is clipped separately. The two gradients belong to successive batches, as in the
    approximate form of the paper, with one gradient per step. The first step adds no correction.

    Args:
        b1: :math:`\beta_1`, the decay of the mean in the method that follows.
        gamma: :math:`\gamma`, the weight of the added change; 0 disables the correction.
        max_norm: :math:`r`, the largest norm of a leaf that passes unchanged; infinity disables the
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
        """Compute the weight of the change of the gradient, which is zero in the first step."""
        # With gamma = 1, a momentum of the result is STORM's momentum (Yuan et al., 2024).
        gain = h.gamma * h.b1 / (1 - h.b1)
        # In the first step, `last` is the initial slot of zeros instead of a gradient.
        return {"gain": jnp.where(t > 1, gain, jnp.zeros_like(gain))}

    def leaf(self, h: Any, g: Any, last: Any) -> Any:
        corrected = g + h.gain * (g - last)
        ratio = global_norm(corrected) / h.max_norm  # zero if `max_norm` is infinite
        return corrected / jnp.maximum(ratio, jnp.ones_like(ratio)), g

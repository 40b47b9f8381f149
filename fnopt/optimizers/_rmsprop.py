"""RMSProp."""

from __future__ import annotations

from fnopt.core import Scalar, ScalarOrSchedule
from fnopt.optimizers._scale_by_rms import scale_by_rms, scale_by_stddev
from fnopt.transforms import Chain, chain, scale_by_learning_rate, trace


def rmsprop(
    learning_rate: ScalarOrSchedule,
    decay: Scalar = 0.9,
    eps: Scalar = 1e-8,
    initial_scale: Scalar = 0.0,
    eps_in_sqrt: bool = True,
    centered: bool = False,
    momentum: Scalar | None = None,
    nesterov: bool = False,
    bias_correction: bool = False,
) -> Chain:
    r"""RMSProp: the gradient over its running root mean square.

    .. math:: \nu_t = \beta \nu_{t-1} + (1-\beta)\, |g_t|^2, \qquad
              u_t = -\eta_t\, \frac{g_t}{\sqrt{\nu_t + \epsilon}}

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        decay: :math:`\beta`.
        eps: :math:`\epsilon`.
        initial_scale: :math:`\nu_0`.
        eps_in_sqrt: Whether epsilon stands under the root; else it is added to the root, as
            PyTorch does it.
        centered: Whether the mean is taken out: :math:`\nu_t - |\mu_t|^2` instead of
            :math:`\nu_t`.
        momentum: Decay of a sum of the updates. None means no momentum and no slot for it.
        nesterov: Whether the momentum looks ahead.
        bias_correction: Whether to divide the averages by :math:`1 - \beta^t`.

    Returns:
        A chain of `scale_by_rms` (or `scale_by_stddev`), `scale_by_learning_rate` and, with
        momentum, `trace`: the momentum sums steps that have been scaled already, as in TensorFlow
        and optax. The slots are `nu`, `mu` if centred, and `trace`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.rmsprop(0.5, decay=0.75)
        >>> params = {"w": jnp.ones(2)}
        >>> updates, state = tx.update({"w": jnp.full(2, 8.0)}, tx.init(params), params)
        >>> fnopt.apply_updates(params, updates)
        {'w': Array([0., 0.], dtype=float32)}

    Reference:
        Tieleman and Hinton, 2012, lecture 6.5; Graves, 2013, arXiv:1308.0850 (centred).
    """
    direction = scale_by_stddev if centered else scale_by_rms
    parts = [
        direction(decay, eps, initial_scale, eps_in_sqrt, bias_correction),
        scale_by_learning_rate(learning_rate),
    ]
    return chain(*parts) if momentum is None else chain(*parts, trace(momentum, nesterov))

"""DiffGrad."""

from __future__ import annotations

from typing import Any

from fnopt.core import Scalar, ScalarOrSchedule
from fnopt.optimizers._scale_by_diffgrad import scale_by_diffgrad
from fnopt.transforms import Chain, chain, scale_by_learning_rate


def diffgrad(
    learning_rate: ScalarOrSchedule,
    b1: Scalar = 0.9,
    b2: Scalar = 0.999,
    eps: Scalar = 1e-8,
    mu_dtype: Any = None,
) -> Chain:
    r"""DiffGrad: Adam with smaller steps where the gradient hardly changes.

    .. math:: \xi_t = \frac{1}{1 + e^{-|g_{t-1} - g_t|}}, \qquad
              u_t = -\eta_t\, \xi_t\, \frac{\hat\mu_t}{\sqrt{\hat\nu_t} + \epsilon}

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        b1: Decay of the mean gradient.
        b2: Decay of the mean square.
        eps: :math:`\epsilon`, added to the root.
        mu_dtype: Storage dtype of the mean; by default the params' own, but at least float32.

    Returns:
        A chain of `scale_by_diffgrad` and `scale_by_learning_rate`, with the slots `mu`, `nu` and
        `previous` (the last gradient).

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.diffgrad(0.5)
        >>> params = {"w": jnp.ones(2)}
        >>> updates, state = tx.update({"w": jnp.full(2, 50.0)}, tx.init(params), params)
        >>> fnopt.apply_updates(params, updates)["w"].round(4)
        Array([0.5, 0.5], dtype=float32)

    Reference:
        Dubey, Chakraborty, Roy, Mukherjee, Singh and Chaudhuri, 2019, arXiv:1909.11015.
    """
    return chain(scale_by_diffgrad(b1, b2, eps, mu_dtype), scale_by_learning_rate(learning_rate))

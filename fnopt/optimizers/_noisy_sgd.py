"""Gradient descent with annealed noise."""

from __future__ import annotations

from typing import Any

from fnopt.core import Scalar, ScalarOrSchedule
from fnopt.optimizers._recipe import recipe
from fnopt.transforms import Chain, add_gradient_noise, chain, scale_by_learning_rate


@recipe
def noisy_sgd(
    learning_rate: ScalarOrSchedule, eta: Scalar = 0.01, gamma: Scalar = 0.55, key: Any = 0
) -> Chain:
    r"""Gradient descent with noise whose variance falls with the step.

    .. math:: u_t = -\eta_t\, (g_t + \sigma_t\, z_t), \qquad z_t \sim N(0, 1), \qquad
              \sigma_t^2 = \frac{\eta}{t^\gamma}

    Args:
        learning_rate: The learning rate, a number or a `Schedule`.
        eta: :math:`\eta`, the variance of the first step's noise.
        gamma: :math:`\gamma`, how fast it falls.
        key: A whole number or a key of `jax.random`; a constant of the compiled step.

    Returns:
        A chain of `add_gradient_noise` and `scale_by_learning_rate`; it has no slots.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, params = fnopt.noisy_sgd(0.5, eta=1e-6), {"w": jnp.ones(2)}
        >>> updates, _ = tx.update({"w": jnp.ones(2)}, tx.init(params), params)
        >>> fnopt.apply_updates(params, updates)["w"].round(1)
        Array([0.5, 0.5], dtype=float32)

    Reference:
        Neelakantan et al., 2015, arXiv:1511.06807.
    """
    return chain(add_gradient_noise(eta, gamma, key), scale_by_learning_rate(learning_rate))

"""Descent along the signs of gradients."""

from __future__ import annotations

from typing import Any

from fnopt.core import Scalar, ScalarOrSchedule
from fnopt.optimizers._recipe import recipe
from fnopt.transforms import Chain, chain, ema, scale_by_learning_rate, scale_by_sign


@recipe
def sign_sgd(learning_rate: ScalarOrSchedule) -> Chain:
    r"""Descent along the sign of the gradient: :math:`u_t = -\eta_t \operatorname{sign} g_t`.

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.

    Returns:
        A chain of `scale_by_sign` and `scale_by_learning_rate`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.sign_sgd(0.25)
        >>> params = {"w": jnp.ones(2)}
        >>> updates, state = tx.update({"w": jnp.asarray([3.0, -0.1])}, tx.init(params), params)
        >>> fnopt.apply_updates(params, updates)
        {'w': Array([0.75, 1.25], dtype=float32)}

    Reference:
        Bernstein, Wang, Azizzadenesheli and Anandkumar, 2018, arXiv:1802.04434.
    """
    return chain(scale_by_sign(), scale_by_learning_rate(learning_rate))


@recipe
def signum(
    learning_rate: ScalarOrSchedule, beta: Scalar = 0.9, accumulator_dtype: Any = None
) -> Chain:
    r"""Descent along the sign of the mean gradient.

    .. math:: m_t = \beta m_{t-1} + (1-\beta)\, g_t, \qquad u_t = -\eta_t \operatorname{sign} m_t

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        beta: :math:`\beta`, decay of the mean.
        accumulator_dtype: Storage dtype of the mean; by default the params' own, but at least
            float32.

    Returns:
        A chain of `ema`, `scale_by_sign` and `scale_by_learning_rate`, with the slot `ema`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.signum(0.25)
        >>> params = {"w": jnp.ones(2)}
        >>> updates, state = tx.update({"w": jnp.asarray([3.0, -0.1])}, tx.init(params), params)
        >>> fnopt.apply_updates(params, updates)
        {'w': Array([0.75, 1.25], dtype=float32)}

    Reference:
        Bernstein, Wang, Azizzadenesheli and Anandkumar, 2018, arXiv:1802.04434.
    """
    return chain(
        ema(beta, debias=False, accumulator_dtype=accumulator_dtype),
        scale_by_sign(),
        scale_by_learning_rate(learning_rate),
    )

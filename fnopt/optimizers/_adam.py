"""Adam."""

from __future__ import annotations

from typing import Any

from fnopt.core import Scalar, ScalarOrSchedule
from fnopt.transforms import Chain, chain, scale_by_adam, scale_by_learning_rate


def adam(
    learning_rate: ScalarOrSchedule,
    b1: Scalar = 0.9,
    b2: Scalar = 0.999,
    eps: Scalar = 1e-8,
    eps_root: Scalar = 0.0,
    *,
    nesterov: bool = False,
    mu_dtype: Any = None,
) -> Chain:
    r"""Adam: the mean gradient over its root mean square.

    .. math:: u_t = -\eta_t\, \frac{\hat\mu_t}{\sqrt{\hat\nu_t + \bar\epsilon} + \epsilon}

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        b1: Decay of the mean gradient.
        b2: Decay of the mean square.
        eps: Added to the root.
        eps_root: Added under the root.
        nesterov: Whether to look ahead (Nadam).
        mu_dtype: Storage dtype of the mean; by default the params' own, but at least float32.

    Returns:
        A chain of `scale_by_adam` and `scale_by_learning_rate`, with the slots `mu` and `nu`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.adam(0.1)
        >>> params = {"w": jnp.ones(2)}
        >>> updates, state = tx.update({"w": jnp.ones(2)}, tx.init(params), params)
        >>> fnopt.apply_updates(params, updates)
        {'w': Array([0.9, 0.9], dtype=float32)}

    Reference:
        Kingma and Ba, 2014, arXiv:1412.6980.
    """
    return chain(
        scale_by_adam(b1, b2, eps, eps_root, nesterov=nesterov, mu_dtype=mu_dtype),
        scale_by_learning_rate(learning_rate),
    )

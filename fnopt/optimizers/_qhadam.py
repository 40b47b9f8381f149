"""Adam with quasi-hyperbolic averages."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax

from fnopt.core import (
    Leafwise,
    RealSlot,
    Scalar,
    ScalarOrSchedule,
    Slot,
    as_dtype,
    bias_correction,
    hyper,
    positive_root,
    squared_modulus,
    static,
)
from fnopt.optimizers._adam import adam_means
from fnopt.optimizers._recipe import recipe
from fnopt.transforms import Chain, chain, scale_by_learning_rate


class ScaleByQhadamState(NamedTuple):
    """Step count, and the averages of the gradient and of its square."""

    count: jax.Array
    mu: Slot
    nu: RealSlot


class scale_by_qhadam(Leafwise):
    r"""Divide a mix of gradient and mean gradient by the root of a mix of their squares.

    .. math::
        \mu_t &= \beta_1 \mu_{t-1} + (1-\beta_1)\, g_t, \qquad
        \nu_t = \beta_2 \nu_{t-1} + (1-\beta_2)\, |g_t|^2 \\
        u_t &= \frac{(1-v_1)\, g_t + v_1\, \hat\mu_t}
                    {\sqrt{(1-v_2)\, |g_t|^2 + v_2\, \hat\nu_t} + \epsilon}

    With :math:`v_1 = v_2 = 1` it is Adam, with :math:`v_1 = \beta_1` and :math:`v_2 = 1` nearly
    Adam with Nesterov's look-ahead, with :math:`v_1 = 0` and :math:`v_2 = 1` RMSProp.

    Args:
        b1: :math:`\beta_1`, decay of the mean.
        b2: :math:`\beta_2`, decay of the mean square.
        v1: :math:`v_1`, the share of the mean.
        v2: :math:`v_2`, the share of the mean square.
        eps: :math:`\epsilon`, added to the root.
        mu_dtype: Storage dtype of `mu`; by default the params' own, but at least float32.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.scale_by_qhadam()
        >>> updates, state = tx.update({"w": jnp.full(2, 8.0)}, tx.init({"w": jnp.ones(2)}))
        >>> updates["w"].round(4), state.count
        (Array([1., 1.], dtype=float32), Array(1, dtype=int32))

    Reference:
        Ma and Yarats, 2018, arXiv:1810.06801.
    """

    State = ScaleByQhadamState

    b1: Scalar = hyper(default=0.995, ge=0, lt=1)
    b2: Scalar = hyper(default=0.999, ge=0, lt=1)
    v1: Scalar = hyper(default=0.7, ge=0, le=1)
    v2: Scalar = hyper(default=1.0, ge=0, le=1)
    eps: Scalar = hyper(default=1e-8, ge=0)
    mu_dtype: Any = static(default=None, convert=as_dtype)

    def scalars(self, h: Any, t: Any) -> dict[str, Any]:
        """The shares, with the bias corrections multiplied in."""
        return {
            "gain1": 1 - h.b1,
            "gain2": 1 - h.b2,
            "mean": h.v1 / bias_correction(h.b1, t),
            "mean_square": h.v2 / bias_correction(h.b2, t),
            "gradient": 1 - h.v1,
            "square": 1 - h.v2,
        }

    def leaf(self, h: Any, g: Any, mu: Any, nu: Any) -> Any:
        square = squared_modulus(g)
        mu, nu = adam_means(h, g, mu, nu)
        length = positive_root(h.square * square + h.mean_square * nu) + h.eps
        return (h.gradient * g + h.mean * mu) / length, mu, nu


@recipe
def qhadam(
    learning_rate: ScalarOrSchedule,
    b1: Scalar = 0.995,
    b2: Scalar = 0.999,
    v1: Scalar = 0.7,
    v2: Scalar = 1.0,
    eps: Scalar = 1e-8,
    mu_dtype: Any = None,
) -> Chain:
    r"""QHAdam: Adam with weighted averages of momentum and plain gradient.

    .. math:: u_t = -\eta_t\, \frac{(1-v_1)\, g_t + v_1\, \hat\mu_t}
                    {\sqrt{(1-v_2)\, |g_t|^2 + v_2\, \hat\nu_t} + \epsilon}

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        b1: Decay of the mean gradient.
        b2: Decay of the mean square.
        v1: The share of the mean gradient.
        v2: The share of the mean square.
        eps: Added to the root.
        mu_dtype: Storage dtype of the mean; by default the params' own, but at least float32.

    Returns:
        A chain of `scale_by_qhadam` and `scale_by_learning_rate`, with the slots `mu` and `nu`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.qhadam(0.1)
        >>> params = {"w": jnp.ones(2)}
        >>> updates, state = tx.update({"w": jnp.ones(2)}, tx.init(params), params)
        >>> fnopt.apply_updates(params, updates)
        {'w': Array([0.9, 0.9], dtype=float32)}

    Reference:
        Ma and Yarats, 2018, arXiv:1810.06801.
    """
    return chain(
        scale_by_qhadam(b1, b2, v1, v2, eps, mu_dtype), scale_by_learning_rate(learning_rate)
    )

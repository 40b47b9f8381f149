"""Methods that extrapolate by the gradient's change: Adan and optimistic methods."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import Leafwise, RealSlot, Scalar, ScalarOrSchedule, Slot, hyper
from fnopt.numerics import bias_correction, ema, positive_root, squared_modulus
from fnopt.optimizers._adam import scale_by_adam
from fnopt.optimizers._recipe import descend, recipe, write_after
from fnopt.transforms import Chain, chain, scale_by_learning_rate


class ScaleByAdanState(NamedTuple):
    r"""State of `scale_by_adan`.

    Attributes:
        count: :math:`t`, the number of steps.
        m: :math:`m_t`, the moving average of the gradient.
        v: :math:`v_t`, the moving average of the gradient's change :math:`d_t`.
        n: :math:`n_t`, the moving average of :math:`|g_t + \beta_2\, d_t|^2`.
        g: :math:`g_t`, the gradient of the last step.
    """

    count: jax.Array
    m: Slot
    v: Slot
    n: RealSlot
    g: Slot


class scale_by_adan(Leafwise):
    r"""Adam's direction with Nesterov momentum, estimated from the gradient's change.

    .. math::
        d_t &= g_t - g_{t-1} \;(0 \text{ at first}), \\
        m_t &= \beta_1 m_{t-1} + (1-\beta_1)\, g_t, \qquad
        v_t = \beta_2 v_{t-1} + (1-\beta_2)\, d_t \\
        n_t &= \beta_3 n_{t-1} + (1-\beta_3)\, |g_t + \beta_2\, d_t|^2, \qquad
        u_t = \frac{\hat m_t + \beta_2\, \hat v_t}{\sqrt{\hat n_t + \bar\epsilon} + \epsilon}

    where :math:`\hat m_t`, :math:`\hat v_t` and :math:`\hat n_t` are bias-corrected as in Adam. The
    paper writes :math:`1 - \beta_i` instead of :math:`\beta_i`.

    Args:
        b1: :math:`\beta_1`, decay rate of :math:`m`, the moving average of the gradient.
        b2: :math:`\beta_2`, decay rate of :math:`v`, the moving average of the gradient's change.
        b3: :math:`\beta_3`, decay rate of :math:`n`, the moving average of squares.
        eps: :math:`\epsilon`, added outside the square root.
        eps_root: :math:`\bar\epsilon`, added inside the square root.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.scale_by_adan()
        >>> tx.update({"w": jnp.full(2, 8.0)}, tx.init({"w": jnp.ones(2)}))[0]["w"].round(4)
        Array([1., 1.], dtype=float32)

    Reference:
        Xie, Zhou, Li, Lin and Yan, 2022, arXiv:2208.06677.
    """

    State = ScaleByAdanState
    carrier = "m"

    b1: Scalar = hyper(default=0.98, ge=0, lt=1)
    b2: Scalar = hyper(default=0.92, ge=0, lt=1)
    b3: Scalar = hyper(default=0.99, ge=0, lt=1)
    eps: Scalar = hyper(default=1e-8, ge=0)
    eps_root: Scalar = hyper(default=0.0, ge=0)

    def scalars(self, h: Any, t: Any) -> dict[str, Any]:
        """Bias corrections, and whether a previous gradient exists."""
        return {
            "gain1": 1 - h.b1,
            "gain2": 1 - h.b2,
            "gain3": 1 - h.b3,
            "mean": 1 / bias_correction(h.b1, t),
            "change": h.b2 / bias_correction(h.b2, t),
            "square": 1 / bias_correction(h.b3, t),
            "has_previous": t > 1,
        }

    def leaf(self, h: Any, g: Any, m: Any, v: Any, n: Any, previous: Any) -> Any:
        # In the first step, `previous` is zero and not a gradient, so the change is set to zero.
        change = h.has_previous * (g - previous)
        m = ema(m, g, h.b1, h.gain1)
        v = ema(v, change, h.b2, h.gain2)
        n = ema(n, squared_modulus(g + h.b2 * change), h.b3, h.gain3)
        u = (h.mean * m + h.change * v) / (positive_root(h.square * n + h.eps_root) + h.eps)
        # XLA can overwrite `previous` in place, because v and n are computed before the write.
        return u, m, v, n, write_after(write_after(g, v), n)


@recipe
def adan(
    learning_rate: ScalarOrSchedule,
    b1: Scalar = 0.98,
    b2: Scalar = 0.92,
    b3: Scalar = 0.99,
    eps: Scalar = 1e-8,
    eps_root: Scalar = 1e-8,
    weight_decay: ScalarOrSchedule = 0.0,
    mask: Any = None,
) -> Chain:
    r"""Adan: Adam with Nesterov momentum, estimated from the gradient's change.

    .. math:: u_t = -\eta_t \left(\frac{\hat m_t + \beta_2\, \hat v_t}
              {\sqrt{\hat n_t + \bar\epsilon} + \epsilon} + \lambda_t\, \theta_t\right)

    `scale_by_adan` defines the averages. The paper writes :math:`1 - \beta_i` instead of
    :math:`\beta_i`. The paper's weight decay is a proximal step, :math:`\theta / (1 + \eta
    \lambda)`; fnopt subtracts :math:`\eta \lambda \theta`.

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        b1: :math:`\beta_1`, decay rate of :math:`m`, the moving average of the gradient.
        b2: :math:`\beta_2`, decay rate of :math:`v`, the moving average of the gradient's change.
        b3: :math:`\beta_3`, decay rate of :math:`n`, the moving average of
            :math:`|g + \beta_2 \Delta g|^2`.
        eps: :math:`\epsilon`, added outside the square root.
        eps_root: :math:`\bar\epsilon`, added inside the square root.
        weight_decay: :math:`\lambda`, the decoupled weight decay; a number or a `Schedule`.
        mask: The leaves with weight decay; see `add_decayed_weights`. None means all leaves.

    Returns:
        A chain of `scale_by_adan`, `add_decayed_weights` and `scale_by_learning_rate`, with the
        slots `m`, `v`, `n` and `g` (the last gradient).

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.adan(0.5)
        >>> params = {"w": jnp.ones(2)}
        >>> updates, state = tx.update({"w": jnp.full(2, 8.0)}, tx.init(params), params)
        >>> fnopt.apply_updates(params, updates)["w"].round(4)
        Array([0.5, 0.5], dtype=float32)

    Reference:
        Xie, Zhou, Li, Lin and Yan, 2022, arXiv:2208.06677.
    """
    return descend(scale_by_adan(b1, b2, b3, eps, eps_root), learning_rate, weight_decay, mask)


class ScaleByOptimisticGradientState(NamedTuple):
    """State of `scale_by_optimistic_gradient`.

    Attributes:
        count: :math:`t`, the number of steps.
        previous_gradient: :math:`g_t`, the gradient of the last step.
    """

    count: jax.Array
    previous_gradient: Slot


class scale_by_optimistic_gradient(Leafwise):
    r"""Extrapolate the gradient by its change.

    .. math:: u_t = (\alpha + \beta)\, g_t - \beta\, g_{t-1}, \qquad g_0 = g_1

    Args:
        alpha: :math:`\alpha`, the weight of the gradient; a number or a `Schedule`.
        beta: :math:`\beta`, the weight of the gradient's change; a number or a `Schedule`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.scale_by_optimistic_gradient()
        >>> _, state = tx.update({"w": jnp.ones(2)}, tx.init({"w": jnp.ones(2)}))
        >>> tx.update({"w": jnp.full(2, 3.0)}, state)[0]
        {'w': Array([5., 5.], dtype=float32)}

    Reference:
        Mokhtari, Ozdaglar and Pattathil, 2019, arXiv:1901.08511.
    """

    State = ScaleByOptimisticGradientState

    alpha: ScalarOrSchedule = hyper(default=1.0, ge=0, schedule=True)
    beta: ScalarOrSchedule = hyper(default=1.0, ge=0, schedule=True)

    def scalars(self, h: Any, t: Any) -> dict[str, Any]:
        """Weight of the gradient's change; zero in the first step."""
        return {"change": jnp.where(t > 1, h.beta, jnp.zeros_like(h.beta))}

    def leaf(self, h: Any, g: Any, previous: Any) -> Any:
        u = h.alpha * g + h.change * (g - previous)
        # XLA can overwrite `previous` in place, because u is computed before the write.
        return u, write_after(g, u)


@recipe
def optimistic_gradient_descent(
    learning_rate: ScalarOrSchedule,
    alpha: ScalarOrSchedule = 1.0,
    beta: ScalarOrSchedule = 1.0,
) -> Chain:
    r"""Gradient descent along an extrapolated gradient, for games (minimax problems).

    .. math:: u_t = -\eta_t\, \big((\alpha + \beta)\, g_t - \beta\, g_{t-1}\big)

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        alpha: :math:`\alpha`, the weight of the gradient; a number or a `Schedule`.
        beta: :math:`\beta`, the weight of the gradient's change; a number or a `Schedule`.

    Returns:
        A chain of `scale_by_optimistic_gradient` and `scale_by_learning_rate`, with the slot
        `previous_gradient`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.optimistic_gradient_descent(0.25)
        >>> params = {"w": jnp.ones(2)}
        >>> updates, state = tx.update({"w": jnp.ones(2)}, tx.init(params), params)
        >>> fnopt.apply_updates(params, updates)
        {'w': Array([0.75, 0.75], dtype=float32)}

    Reference:
        Mokhtari, Ozdaglar and Pattathil, 2019, arXiv:1901.08511.
    """
    return descend(scale_by_optimistic_gradient(alpha, beta), learning_rate)


@recipe
def optimistic_adam_v2(
    learning_rate: ScalarOrSchedule,
    *,
    alpha: ScalarOrSchedule = 1.0,
    beta: ScalarOrSchedule = 1.0,
    b1: Scalar = 0.9,
    b2: Scalar = 0.999,
    eps: Scalar = 1e-8,
    eps_root: Scalar = 0.0,
    mu_dtype: Any = None,
    nesterov: bool = True,
) -> Chain:
    r"""Optimistic Adam: steps along Adam's extrapolated direction, for games (minimax problems).

    .. math:: u_t = -\eta_t\, \big((\alpha + \beta)\, d_t - \beta\, d_{t-1}\big), \qquad
              d_t = \frac{\hat\mu_t}{\sqrt{\hat\nu_t + \bar\epsilon} + \epsilon}

    where :math:`d_t` is the direction of `adam`, or of `nadam` with `nesterov`.

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        alpha: :math:`\alpha`, the weight of the direction; a number or a `Schedule`.
        beta: :math:`\beta`, the weight of the direction's change; a number or a `Schedule`.
        b1: :math:`\beta_1`, decay rate of :math:`\mu`, the moving average of the gradient.
        b2: :math:`\beta_2`, decay rate of :math:`\nu`, the moving average of the squared gradient.
        eps: :math:`\epsilon`, added outside the square root.
        eps_root: :math:`\bar\epsilon`, added inside the square root.
        mu_dtype: Storage dtype of `mu`; None uses the wider of float32 and the params' dtype.
        nesterov: Whether to use Nesterov momentum (Nadam).

    Returns:
        A chain of `scale_by_adam`, `scale_by_optimistic_gradient` and `scale_by_learning_rate`,
        with the slots `mu`, `nu` and `previous_gradient` (the last direction).

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.optimistic_adam_v2(0.25, nesterov=False)
        >>> params = {"w": jnp.ones(2)}
        >>> updates, state = tx.update({"w": jnp.ones(2)}, tx.init(params), params)
        >>> fnopt.apply_updates(params, updates)["w"].round(4)
        Array([0.75, 0.75], dtype=float32)

    Reference:
        Daskalakis, Ilyas, Syrgkanis and Zeng, 2018, arXiv:1711.00141.
    """
    return chain(
        scale_by_adam(b1, b2, eps, eps_root, mu_dtype, nesterov),
        scale_by_optimistic_gradient(alpha, beta),
        scale_by_learning_rate(learning_rate),
    )


@recipe
def optimistic_adam(
    learning_rate: ScalarOrSchedule,
    optimism: ScalarOrSchedule | None = None,
    b1: Scalar = 0.9,
    b2: Scalar = 0.999,
    eps: Scalar = 1e-8,
    eps_root: Scalar = 0.0,
    mu_dtype: Any = None,
    *,
    nesterov: bool = True,
) -> Chain:
    r"""Optimistic Adam with a separate learning rate of the extrapolation, for minimax problems.

    .. math:: u_t = -\big((\eta_t + \omega_t)\, d_t - \omega_t\, d_{t-1}\big), \qquad
              d_t = \frac{\hat\mu_t}{\sqrt{\hat\nu_t + \bar\epsilon} + \epsilon}

    where :math:`d_t` is the direction of `adam`, or of `nadam` with `nesterov`.

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        optimism: :math:`\omega`, the learning rate of the extrapolation, a number or a `Schedule`;
            None uses :math:`\eta`.
        b1: :math:`\beta_1`, decay rate of :math:`\mu`, the moving average of the gradient.
        b2: :math:`\beta_2`, decay rate of :math:`\nu`, the moving average of the squared gradient.
        eps: :math:`\epsilon`, added outside the square root.
        eps_root: :math:`\bar\epsilon`, added inside the square root.
        mu_dtype: Storage dtype of `mu`; None uses the wider of float32 and the params' dtype.
        nesterov: Whether to use Nesterov momentum (Nadam).

    Returns:
        A chain of `scale_by_adam`, `scale_by_optimistic_gradient` and `scale_by_learning_rate`,
        with the slots `mu`, `nu` and `previous_gradient` (the last direction).

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.optimistic_adam(0.25, nesterov=False)
        >>> params = {"w": jnp.ones(2)}
        >>> updates, state = tx.update({"w": jnp.ones(2)}, tx.init(params), params)
        >>> fnopt.apply_updates(params, updates)["w"].round(4)
        Array([0.75, 0.75], dtype=float32)

    Reference:
        Daskalakis, Ilyas, Syrgkanis and Zeng, 2018, arXiv:1711.00141.
    """
    optimism = learning_rate if optimism is None else optimism
    direction = scale_by_adam(b1, b2, eps, eps_root, mu_dtype, nesterov)
    extrapolation = scale_by_optimistic_gradient(learning_rate, optimism)
    return chain(direction, extrapolation, scale_by_learning_rate(1.0))

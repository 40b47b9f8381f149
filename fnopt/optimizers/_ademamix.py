"""AdEMAMix: Adam with a second, slow moving average of the gradient."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import jax

from fnopt.core import Leafwise, RealSlot, Scalar, ScalarOrSchedule, Slot, hyper, static
from fnopt.numerics import as_dtype, bias_correction, ema, positive_root, squared_modulus
from fnopt.optimizers._recipe import descend, recipe
from fnopt.transforms import Chain


class ScaleByAdemamixState(NamedTuple):
    r"""State of `scale_by_ademamix`.

    Attributes:
        count: :math:`t`, the number of steps.
        m1: :math:`m^{(1)}_t`, the fast moving average of the gradient.
        m2: :math:`m^{(2)}_t`, the slow moving average of the gradient.
        nu: :math:`\nu_t`, the moving average of the squared gradient.
    """

    count: jax.Array
    m1: Slot
    m2: Slot
    nu: RealSlot


class ScaleBySimplifiedAdemamixState(NamedTuple):
    """State of `scale_by_simplified_ademamix`.

    Attributes:
        count: :math:`t`, the number of steps.
        m: :math:`m_t`, the decaying sum of gradients.
        n: :math:`n_t`, the moving average of the squared gradient.
    """

    count: jax.Array
    m: Slot
    n: RealSlot


class scale_by_ademamix(Leafwise):
    r"""Divide the sum of a fast and a slow average of the gradient by the root mean square.

    .. math::
        m^{(1)}_t &= \beta_1 m^{(1)}_{t-1} + (1-\beta_1)\, g_t, \\
        m^{(2)}_t &= \beta_{3,t} m^{(2)}_{t-1} + (1-\beta_{3,t})\, g_t, \qquad
        \nu_t = \beta_2 \nu_{t-1} + (1-\beta_2)\, |g_t|^2 \\
        u_t &= \frac{\hat m^{(1)}_t + \alpha_t m^{(2)}_t}
                    {\sqrt{\hat\nu_t + \bar\epsilon} + \epsilon}

    where :math:`\hat m^{(1)}_t` and :math:`\hat\nu_t` are bias-corrected as in Adam.

    Args:
        b1: :math:`\beta_1`, decay rate of :math:`m^{(1)}`, the fast average of the gradient.
        b2: :math:`\beta_2`, decay rate of :math:`\nu`, the moving average of the squared gradient.
        b3: :math:`\beta_3`, decay rate of :math:`m^{(2)}`, the slow average of the gradient; a
            number or a `Schedule`.
        alpha: :math:`\alpha`, the weight of the slow average; a number or a `Schedule`.
        eps: :math:`\epsilon`, added outside the square root.
        eps_root: :math:`\bar\epsilon`, added inside the square root.
        mu_dtype: Storage dtype of both averages of the gradient; None uses the wider of float32 and
            the params' dtype.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.scale_by_ademamix(alpha=0.0)
        >>> tx.update({"w": jnp.full(2, 8.0)}, tx.init({"w": jnp.ones(2)}))[0]["w"].round(4)
        Array([1., 1.], dtype=float32)

    Reference:
        Pagliardini, Ablin and Grangier, 2024, arXiv:2409.03137.
    """

    State = ScaleByAdemamixState
    storage: ClassVar[Any] = dict.fromkeys(("m1", "m2"), "mu_dtype")
    carrier = "m1"

    b1: Scalar = hyper(default=0.9, ge=0, lt=1)
    b2: Scalar = hyper(default=0.999, ge=0, lt=1)
    # Half of the weight is on gradients older than log(2) / 1e-4 = 6,900 steps.
    b3: ScalarOrSchedule = hyper(default=0.9999, ge=0, lt=1, schedule=True)
    alpha: ScalarOrSchedule = hyper(default=6.0, ge=0, schedule=True)
    eps: Scalar = hyper(default=1e-8, ge=0)
    eps_root: Scalar = hyper(default=0.0, ge=0)
    mu_dtype: Any = static(default=None, convert=as_dtype)

    def scalars(self, h: Any, t: Any) -> dict[str, Any]:
        """Averaging weights and bias corrections; the slow average isn't bias-corrected."""
        return {
            "gain1": 1 - h.b1,
            "gain2": 1 - h.b2,
            "gain3": 1 - h.b3,
            "mean": 1 / bias_correction(h.b1, t),
            "square": 1 / bias_correction(h.b2, t),
        }

    def leaf(self, h: Any, g: Any, m1: Any, m2: Any, nu: Any) -> Any:
        m1 = ema(m1, g, h.b1, h.gain1)
        m2 = ema(m2, g, h.b3, h.gain3)
        nu = ema(nu, squared_modulus(g), h.b2, h.gain2)
        divisor = positive_root(h.square * nu + h.eps_root) + h.eps
        return (h.mean * m1 + h.alpha * m2) / divisor, m1, m2, nu


class scale_by_simplified_ademamix(Leafwise):
    r"""Divide the sum of the gradient and a decaying sum of gradients by the root mean square.

    .. math::
        m_t = \beta_1 m_{t-1} + g_t, \qquad n_t = \beta_2 n_{t-1} + (1-\beta_2)\, |g_t|^2, \qquad
        u_t = \frac{\alpha_t\, g_t + m_t}{\sqrt{\hat n_t + \bar\epsilon} + \epsilon}

    where :math:`\hat n_t = n_t / (1-\beta_2^t)`.

    Args:
        b1: :math:`\beta_1`, decay rate of :math:`m`, the sum of gradients.
        b2: :math:`\beta_2`, decay rate of :math:`n`, the moving average of the squared gradient.
        alpha: :math:`\alpha`, the weight of the gradient; a number or a `Schedule`.
        eps: :math:`\epsilon`, added outside the square root.
        eps_root: :math:`\bar\epsilon`, added inside the square root.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.scale_by_simplified_ademamix(alpha=1.0)
        >>> tx.update({"w": jnp.full(2, 8.0)}, tx.init({"w": jnp.ones(2)}))[0]["w"].round(4)
        Array([2., 2.], dtype=float32)

    Reference:
        Morwani, Vyas, Zhang and Kakade, 2025, arXiv:2502.02431.
    """

    State = ScaleBySimplifiedAdemamixState

    b1: Scalar = hyper(default=0.99, ge=0, lt=1)
    b2: Scalar = hyper(default=0.95, ge=0, lt=1)
    alpha: ScalarOrSchedule = hyper(default=0.0, ge=0, schedule=True)
    eps: Scalar = hyper(default=1e-8, ge=0)
    eps_root: Scalar = hyper(default=0.0, ge=0)

    def scalars(self, h: Any, t: Any) -> dict[str, Any]:
        """Averaging weight and bias correction of `n`."""
        return {"gain2": 1 - h.b2, "square": 1 / bias_correction(h.b2, t)}

    def leaf(self, h: Any, g: Any, m: Any, n: Any) -> Any:
        # A sum, not an average, as in the paper: `alpha` is relative to the sum's weights.
        m = h.b1 * m + g
        n = ema(n, squared_modulus(g), h.b2, h.gain2)
        divisor = positive_root(h.square * n + h.eps_root) + h.eps
        return (h.alpha * g + m) / divisor, m, n


@recipe
def ademamix(
    learning_rate: ScalarOrSchedule,
    b1: Scalar = 0.9,
    b2: Scalar = 0.999,
    b3: ScalarOrSchedule = 0.9999,
    alpha: ScalarOrSchedule = 5.0,
    eps: Scalar = 1e-8,
    eps_root: Scalar = 0.0,
    mu_dtype: Any = None,
    weight_decay: ScalarOrSchedule = 0.0,
    mask: Any = None,
) -> Chain:
    r"""AdEMAMix: Adam with a second, slow average of the gradient.

    .. math:: u_t = -\eta_t \left(\frac{\hat m^{(1)}_t + \alpha_t m^{(2)}_t}
              {\sqrt{\hat\nu_t + \bar\epsilon} + \epsilon} + \lambda_t\, \theta_t\right)

    `scale_by_ademamix` defines the averages.

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        b1: :math:`\beta_1`, decay rate of :math:`m^{(1)}`, the fast average of the gradient.
        b2: :math:`\beta_2`, decay rate of :math:`\nu`, the moving average of the squared gradient.
        b3: :math:`\beta_3`, decay rate of :math:`m^{(2)}`, the slow average of the gradient; a
            number or a `Schedule`.
        alpha: :math:`\alpha`, the weight of the slow average; a number or a `Schedule`.
        eps: :math:`\epsilon`, added outside the square root.
        eps_root: :math:`\bar\epsilon`, added inside the square root.
        mu_dtype: Storage dtype of both averages of the gradient; None uses the wider of float32 and
            the params' dtype.
        weight_decay: :math:`\lambda`, the decoupled weight decay; a number or a `Schedule`.
        mask: The leaves with weight decay; see `add_decayed_weights`. None means all leaves.

    Returns:
        A chain of `scale_by_ademamix`, `add_decayed_weights` and `scale_by_learning_rate`, with
        the slots `m1`, `m2` and `nu`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.ademamix(0.5, alpha=0.0)
        >>> params = {"w": jnp.ones(2)}
        >>> updates, state = tx.update({"w": jnp.full(2, 8.0)}, tx.init(params), params)
        >>> fnopt.apply_updates(params, updates)["w"].round(4)
        Array([0.5, 0.5], dtype=float32)

    Reference:
        Pagliardini, Ablin and Grangier, 2024, arXiv:2409.03137.
    """
    return descend(
        scale_by_ademamix(b1, b2, b3, alpha, eps, eps_root, mu_dtype),
        learning_rate,
        weight_decay,
        mask,
    )


@recipe
def simplified_ademamix(
    learning_rate: ScalarOrSchedule,
    b1: Scalar = 0.99,
    b2: Scalar = 0.95,
    alpha: ScalarOrSchedule = 0.0,
    eps: Scalar = 1e-8,
    eps_root: Scalar = 0.0,
    weight_decay: ScalarOrSchedule = 0.0,
    mask: Any = None,
) -> Chain:
    r"""Simplified AdEMAMix: one decaying sum of gradients instead of two moving averages.

    .. math:: u_t = -\eta_t \left(\frac{\alpha_t\, g_t + m_t}
              {\sqrt{\hat n_t + \bar\epsilon} + \epsilon} + \lambda_t\, \theta_t\right)

    where :math:`m` is a decaying sum of gradients, and :math:`n` is an average of their squares;
    see `scale_by_simplified_ademamix`. The sum is :math:`1/(1-\beta_1)` times an average, so the
    method needs a smaller learning rate than Adam.

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        b1: :math:`\beta_1`, decay rate of :math:`m`, the sum of gradients.
        b2: :math:`\beta_2`, decay rate of :math:`n`, the moving average of the squared gradient.
        alpha: :math:`\alpha`, the weight of the gradient; a number or a `Schedule`.
        eps: :math:`\epsilon`, added outside the square root.
        eps_root: :math:`\bar\epsilon`, added inside the square root.
        weight_decay: :math:`\lambda`, the decoupled weight decay; a number or a `Schedule`.
        mask: The leaves with weight decay; see `add_decayed_weights`. None means all leaves.

    Returns:
        A chain of `scale_by_simplified_ademamix`, `add_decayed_weights` and
        `scale_by_learning_rate`, with the slots `m` and `n`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.simplified_ademamix(0.25)
        >>> params = {"w": jnp.ones(2)}
        >>> updates, state = tx.update({"w": jnp.full(2, 8.0)}, tx.init(params), params)
        >>> fnopt.apply_updates(params, updates)["w"].round(4)
        Array([0.75, 0.75], dtype=float32)

    Reference:
        Morwani, Vyas, Zhang and Kakade, 2025, arXiv:2502.02431.
    """
    return descend(
        scale_by_simplified_ademamix(b1, b2, alpha, eps, eps_root),
        learning_rate,
        weight_decay,
        mask,
    )

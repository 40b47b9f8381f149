"""Adam with other second moments or a friction factor: AdaBelief, Yogi and diffGrad."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import RealSlot, Scalar, ScalarOrSchedule, Slot, hyper, static
from fnopt.numerics import as_dtype, positive_root, squared_modulus
from fnopt.optimizers._adam import AdamDirection, adam_means
from fnopt.optimizers._recipe import descend, recipe, write_after
from fnopt.transforms import Chain


class scale_by_belief(AdamDirection):
    r"""Divide the averaged gradient by the gradient's root mean square deviation from the average.

    .. math::
        \mu_t &= \beta_1 \mu_{t-1} + (1-\beta_1)\, g_t, \qquad
        \nu_t = \beta_2 \nu_{t-1} + (1-\beta_2)\, |g_t - \mu_t|^2 + \bar\epsilon \\
        u_t &= \frac{\hat\mu_t}{\sqrt{\hat\nu_t} + \epsilon}

    where :math:`\hat\mu_t` and :math:`\hat\nu_t` are bias-corrected as in Adam.

    Args:
        b1: :math:`\beta_1`, decay rate of :math:`\mu`, the moving average of the gradient.
        b2: :math:`\beta_2`, decay rate of :math:`\nu`, the moving average of the squared deviation.
        eps: :math:`\epsilon`, added outside the square root.
        eps_root: :math:`\bar\epsilon`, added to :math:`\nu` in every step, as in the paper.
        nesterov: Whether to use Nesterov momentum.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.scale_by_belief()
        >>> updates, state = tx.update({"w": jnp.full(2, 8.0)}, tx.init({"w": jnp.ones(2)}))
        >>> updates["w"].round(4)
        Array([1.1111, 1.1111], dtype=float32)

    Reference:
        Zhuang et al., 2020, arXiv:2010.07468.
    """

    # 1e-16, because the deviation may be far smaller than the gradient (Zhuang et al., 2020).
    eps: Scalar = hyper(default=1e-16, ge=0)
    eps_root: Scalar = hyper(default=1e-16, ge=0)
    nesterov: bool = static(default=False)

    def second_moment(self, h: Any, g: Any, mu: Any, nu: Any) -> Any:
        """Update the moving average of the gradient's squared deviation from its average."""
        # Without these parentheses, XLA would recompute the sum in the loop of the update. That
        # loop would then also read the old slot, and XLA would copy the slot.
        return h.b2 * nu + (h.gain2 * squared_modulus(g - mu) + h.eps_root)


@recipe
def adabelief(
    learning_rate: ScalarOrSchedule,
    b1: Scalar = 0.9,
    b2: Scalar = 0.999,
    eps: Scalar = 1e-16,
    eps_root: Scalar = 1e-16,
    weight_decay: ScalarOrSchedule | None = None,
    weight_decay_mask: Any = None,
    *,
    nesterov: bool = False,
) -> Chain:
    r"""AdaBelief: Adam with longer steps where the gradient is close to its average.

    .. math:: u_t = -\eta_t\, \frac{\hat\mu_t}{\sqrt{\hat\nu_t} + \epsilon}, \qquad
              \nu_t = \beta_2 \nu_{t-1} + (1-\beta_2)\, |g_t - \mu_t|^2 + \bar\epsilon

    where :math:`\hat\mu_t` and :math:`\hat\nu_t` are bias-corrected as in `adam`.

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        b1: :math:`\beta_1`, decay rate of :math:`\mu`, the moving average of the gradient.
        b2: :math:`\beta_2`, decay rate of :math:`\nu`, the moving average of the squared deviation.
        eps: :math:`\epsilon`, added outside the square root.
        eps_root: :math:`\bar\epsilon`, added to :math:`\nu` in every step.
        weight_decay: The decoupled weight decay, a number or a `Schedule`; None omits weight decay
            from the chain.
        weight_decay_mask: The leaves with weight decay; see `add_decayed_weights`. None means all
            leaves.
        nesterov: Whether to use Nesterov momentum.

    Returns:
        A chain of `scale_by_belief`, `add_decayed_weights` (unless `weight_decay` is None) and
        `scale_by_learning_rate`, with the slots `mu` and `nu`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.adabelief(0.1)
        >>> params = {"w": jnp.ones(2)}
        >>> updates, state = tx.update({"w": jnp.full(2, 8.0)}, tx.init(params), params)
        >>> fnopt.apply_updates(params, updates)["w"].round(4)
        Array([0.8889, 0.8889], dtype=float32)

    Reference:
        Zhuang et al., 2020, arXiv:2010.07468.
    """
    direction = scale_by_belief(b1, b2, eps, eps_root, nesterov)
    return descend(direction, learning_rate, weight_decay, weight_decay_mask)


class scale_by_yogi(AdamDirection):
    r"""Divide the averaged gradient by the root of a second moment with additive updates.

    .. math::
        \mu_t &= \beta_1 \mu_{t-1} + (1-\beta_1)\, g_t, \qquad
        \nu_t = \nu_{t-1} - (1-\beta_2) \operatorname{sign}(\nu_{t-1} - |g_t|^2)\, |g_t|^2 \\
        u_t &= \frac{\hat\mu_t}{\sqrt{\hat\nu_t + \bar\epsilon} + \epsilon}

    where :math:`\hat\mu_t` and :math:`\hat\nu_t` are bias-corrected as in Adam.

    Args:
        b1: :math:`\beta_1`, decay rate of :math:`\mu`, the moving average of the gradient.
        b2: :math:`\beta_2`; in every step, :math:`\nu` changes by :math:`(1-\beta_2)\, |g|^2`.
        eps: :math:`\epsilon`, added outside the square root.
        eps_root: :math:`\bar\epsilon`, added inside the square root.
        initial_accumulator_value: :math:`\mu_0` and :math:`\nu_0`. The paper initializes both with
            0, without bias correction.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.scale_by_yogi()
        >>> updates, state = tx.update({"w": jnp.full(2, 8.0)}, tx.init({"w": jnp.ones(2)}))
        >>> updates["w"].round(3)
        Array([1., 1.], dtype=float32)

    Reference:
        Zaheer, Reddi, Sachan, Kale and Kumar, 2018, Adaptive methods for nonconvex optimization.
    """

    fill: ClassVar[Any] = dict.fromkeys(("mu", "nu"), "initial_accumulator_value")

    eps: Scalar = hyper(default=1e-3, ge=0)
    eps_root: Scalar = hyper(default=0.0, ge=0)
    initial_accumulator_value: Scalar = hyper(default=1e-6, ge=0)

    def scalars(self, h: Any, t: Any) -> dict[str, Any]:
        """Scalars of Adam, and the epsilon inside the square root."""
        numbers = super().scalars(h, t)
        return numbers | {"scaled_eps_root": h.eps_root * numbers["square_correction"]}

    def second_moment(self, h: Any, g: Any, mu: Any, nu: Any) -> Any:
        """Move the second moment toward the new square, by a fraction of the new square."""
        square = squared_modulus(g)
        # The change is proportional to the new square. Therefore small gradients decrease `nu`
        # slowly, unlike in a moving average (Zaheer et al., 2018).
        return nu - h.gain2 * jnp.sign(nu - square) * square


@recipe
def yogi(
    learning_rate: ScalarOrSchedule,
    b1: Scalar = 0.9,
    b2: Scalar = 0.999,
    eps: Scalar = 1e-3,
) -> Chain:
    r"""Yogi: Adam with additive updates of the second moment.

    .. math:: \nu_t = \nu_{t-1} - (1-\beta_2) \operatorname{sign}(\nu_{t-1} - |g_t|^2)\, |g_t|^2,
              \qquad u_t = -\eta_t\, \frac{\hat\mu_t}{\sqrt{\hat\nu_t} + \epsilon}

    where :math:`\hat\mu_t` and :math:`\hat\nu_t` are bias-corrected as in `adam`.

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        b1: :math:`\beta_1`, decay rate of :math:`\mu`, the moving average of the gradient.
        b2: :math:`\beta_2`; in every step, :math:`\nu` changes by :math:`(1-\beta_2)\, |g|^2`.
        eps: :math:`\epsilon`, added outside the square root.

    Returns:
        A chain of `scale_by_yogi` and `scale_by_learning_rate`, with the slots `mu` and `nu`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.yogi(0.5)
        >>> params = {"w": jnp.ones(2)}
        >>> updates, state = tx.update({"w": jnp.full(2, 8.0)}, tx.init(params), params)
        >>> fnopt.apply_updates(params, updates)["w"].round(3)
        Array([0.5, 0.5], dtype=float32)

    Reference:
        Zaheer, Reddi, Sachan, Kale and Kumar, 2018, Adaptive methods for nonconvex optimization.
    """
    return descend(scale_by_yogi(b1, b2, eps), learning_rate)


class ScaleByDiffgradState(NamedTuple):
    r"""State of `scale_by_diffgrad`.

    Attributes:
        count: :math:`t`, the number of steps.
        mu: :math:`\mu_t`, the moving average of the gradient.
        nu: :math:`\nu_t`, the moving average of the squared gradient.
        previous: :math:`g_t`, the gradient of the last step.
    """

    count: jax.Array
    mu: Slot
    nu: RealSlot
    previous: Slot


class scale_by_diffgrad(AdamDirection):
    r"""Multiply Adam's direction by a friction factor that depends on the gradient's change.

    .. math::
        \mu_t &= \beta_1 \mu_{t-1} + (1-\beta_1)\, g_t, \qquad
        \nu_t = \beta_2 \nu_{t-1} + (1-\beta_2)\, |g_t|^2 \\
        \xi_t &= \frac{1}{1 + e^{-|g_{t-1} - g_t|}}, \qquad
        u_t = \xi_t\, \frac{\hat\mu_t}{\sqrt{\hat\nu_t} + \epsilon}

    where :math:`\hat\mu_t` and :math:`\hat\nu_t` are bias-corrected as in Adam, and :math:`g_0 =
    0`. The friction factor :math:`\xi_t` is between 1/2 (for an unchanged gradient) and 1.

    Args:
        b1: :math:`\beta_1`, decay rate of :math:`\mu`, the moving average of the gradient.
        b2: :math:`\beta_2`, decay rate of :math:`\nu`, the moving average of the squared gradient.
        eps: :math:`\epsilon`, added outside the square root.
        mu_dtype: Storage dtype of `mu`; None uses the wider of float32 and the params' dtype.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.scale_by_diffgrad()
        >>> g, state = {"w": jnp.full(2, 50.0)}, tx.init({"w": jnp.ones(2)})
        >>> first, state = tx.update(g, state)
        >>> second, state = tx.update(g, state)
        >>> first["w"].round(4), second["w"].round(4)
        (Array([1., 1.], dtype=float32), Array([0.5, 0.5], dtype=float32))

    Reference:
        Dubey, Chakraborty, Roy, Mukherjee, Singh and Chaudhuri, 2019, arXiv:1909.11015.
    """

    State = ScaleByDiffgradState

    mu_dtype: Any = static(default=None, convert=as_dtype)

    def leaf(self, h: Any, g: Any, mu: Any, nu: Any, previous: Any) -> Any:
        mu, nu = adam_means(h, g, mu, nu)
        friction = jax.nn.sigmoid(jnp.abs(previous - g))
        # If `friction` multiplied the quotient instead of the numerator, XLA would allocate a
        # temporary buffer of the params' size.
        u = friction * (h.mean * mu) / (positive_root(nu) + h.scaled_eps)
        # XLA can overwrite the old gradient in place, because `u` is computed before the write.
        return u, mu, nu, write_after(g, u)


@recipe
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

    The bias-corrected averages :math:`\hat\mu_t` and :math:`\hat\nu_t` are defined in `adam`.

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        b1: :math:`\beta_1`, decay rate of :math:`\mu`, the moving average of the gradient.
        b2: :math:`\beta_2`, decay rate of :math:`\nu`, the moving average of the squared gradient.
        eps: :math:`\epsilon`, added outside the square root.
        mu_dtype: Storage dtype of `mu`; None uses the wider of float32 and the params' dtype.

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
    return descend(scale_by_diffgrad(b1, b2, eps, mu_dtype), learning_rate)

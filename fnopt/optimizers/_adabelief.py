"""Adam with another second moment: AdaBelief, Yogi and diffGrad."""

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
    r"""Divide the mean gradient by the root mean square of the gradient's deviation from its mean.

    .. math::
        \mu_t &= \beta_1 \mu_{t-1} + (1-\beta_1)\, g_t, \qquad
        \nu_t = \beta_2 \nu_{t-1} + (1-\beta_2)\, |g_t - \mu_t|^2 + \bar\epsilon \\
        u_t &= \frac{\hat\mu_t}{\sqrt{\hat\nu_t} + \epsilon}

    Args:
        b1: :math:`\beta_1`, decay of the mean.
        b2: :math:`\beta_2`, decay of the mean squared distance.
        eps: :math:`\epsilon`, added to the root.
        eps_root: :math:`\bar\epsilon`, added to the mean squared distance at every step, as in
            the paper.
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

    # The distance from the mean may be far below the gradient, so epsilon is 1e-16 (Zhuang et al.,
    # 2020).
    eps: Scalar = hyper(default=1e-16, ge=0)
    eps_root: Scalar = hyper(default=1e-16, ge=0)
    nesterov: bool = static(default=False)

    def second_moment(self, h: Any, g: Any, mu: Any, nu: Any) -> Any:
        """Update the average of the squared distance of the gradient from its mean."""
        # The last term is added inside the parentheses. Otherwise XLA would repeat the whole sum in
        # the loop of the update. That loop would then read the old slot too, and XLA would copy the
        # slot.
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
    r"""AdaBelief: large steps where the gradient is close to its mean.

    .. math:: u_t = -\eta_t\, \frac{\hat\mu_t}{\sqrt{\hat\nu_t} + \epsilon}, \qquad
              \nu_t = \beta_2 \nu_{t-1} + (1-\beta_2)\, |g_t - \mu_t|^2 + \bar\epsilon

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        b1: Decay rate of :math:`\mu`, the moving average of the gradient.
        b2: :math:`\beta_2`, decay of the gradient's mean squared distance from its mean.
        eps: :math:`\epsilon`, added to the root.
        eps_root: :math:`\bar\epsilon`, added at every step.
        weight_decay: Decoupled decay, a number or a `Schedule`; None omits weight decay from the
            chain.
        weight_decay_mask: The leaves to decay; see `add_decayed_weights`. None decays all leaves.
        nesterov: Whether to use Nesterov momentum.

    Returns:
        A chain of `scale_by_belief`, `add_decayed_weights` (with `weight_decay`) and
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
    r"""Divide the mean gradient by the root of a second moment with additive updates.

    .. math::
        \mu_t &= \beta_1 \mu_{t-1} + (1-\beta_1)\, g_t, \qquad
        \nu_t = \nu_{t-1} - (1-\beta_2) \operatorname{sign}(\nu_{t-1} - |g_t|^2)\, |g_t|^2 \\
        u_t &= \frac{\hat\mu_t}{\sqrt{\hat\nu_t + \bar\epsilon} + \epsilon}

    Args:
        b1: :math:`\beta_1`, decay of the mean.
        b2: :math:`\beta_2`, decay of the mean square.
        eps: :math:`\epsilon`, added to the root.
        eps_root: :math:`\bar\epsilon`, added under the root.
        initial_accumulator_value: :math:`\mu_0` and :math:`\nu_0`. The paper's listing initializes
            both with 0 and doesn't correct the bias.

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
        """Scalars of Adam, and the epsilon under the root."""
        numbers = super().scalars(h, t)
        return numbers | {"scaled_eps_root": h.eps_root * numbers["square_correction"]}

    def second_moment(self, h: Any, g: Any, mu: Any, nu: Any) -> Any:
        """Move the second moment toward the new square by a multiple of this square."""
        square = squared_modulus(g)
        # The sign bounds the change by the new square, so a small square can't decrease `nu` at
        # once, unlike in an exponential average (Zaheer et al., 2018).
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

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        b1: Decay rate of :math:`\mu`, the moving average of the gradient.
        b2: :math:`\beta_2`, decay of the mean square.
        eps: :math:`\epsilon`, added to the root.

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
    """Step count, the averages of the gradient and of its square, and the last gradient."""

    count: jax.Array
    mu: Slot
    nu: RealSlot
    previous: Slot


class scale_by_diffgrad(AdamDirection):
    r"""Adam's direction times a friction factor that depends on the change of the gradient.

    .. math::
        \mu_t &= \beta_1 \mu_{t-1} + (1-\beta_1)\, g_t, \qquad
        \nu_t = \beta_2 \nu_{t-1} + (1-\beta_2)\, |g_t|^2 \\
        \xi_t &= \frac{1}{1 + e^{-|g_{t-1} - g_t|}}, \qquad
        u_t = \xi_t\, \frac{\hat\mu_t}{\sqrt{\hat\nu_t} + \epsilon}

    :math:`\hat\mu_t` and :math:`\hat\nu_t` are corrected for their initialization at zero as in
    Adam, and :math:`g_0 = 0`. The friction :math:`\xi_t` is between 1/2 (no change) and 1.

    Args:
        b1: :math:`\beta_1`, decay of the mean.
        b2: :math:`\beta_2`, decay of the mean square.
        eps: :math:`\epsilon`, added to the root.
        mu_dtype: Storage dtype of `mu`; by default the dtype of the params, at least float32.

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
        # `friction` multiplies the numerator: if it multiplied Adam's quotient, XLA would keep a
        # temporary buffer of the params' size.
        u = friction * (h.mean * mu) / (positive_root(nu) + h.scaled_eps)
        # XLA can overwrite the slot in place, because the step has read the old gradient by then.
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

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        b1: Decay rate of :math:`\mu`, the moving average of the gradient.
        b2: Decay rate of :math:`\nu`, the moving average of the squared gradient.
        eps: :math:`\epsilon`, added to the root.
        mu_dtype: Storage dtype of the mean; by default the dtype of the params, at least float32.

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

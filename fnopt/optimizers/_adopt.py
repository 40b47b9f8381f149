"""ADOPT and ACProp: Adam with a second moment that excludes the current gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import Leafwise, RealSlot, Scalar, ScalarOrSchedule, Slot, hyper, static
from fnopt.numerics import as_dtype, bias_correction, ema, positive_root, squared_modulus
from fnopt.optimizers._adam import ScaleByAdamState
from fnopt.optimizers._recipe import clip_modulus, descend, recipe, write_after
from fnopt.transforms import Chain


def fourth_root(count: jax.Array) -> jax.Array:
    """The paper's clipping bound after :math:`t` steps, :math:`t^{1/4}`."""
    return count**0.25


class ScaleByAdoptState(NamedTuple):
    r"""State of `scale_by_adopt`.

    Attributes:
        count: :math:`t`, the number of steps.
        mu: :math:`\mu_t`, the moving average of the normalized gradient.
        nu: :math:`\nu_t`, the moving average of the squared gradient.
    """

    count: jax.Array
    mu: Slot
    nu: RealSlot


class scale_by_adopt(Leafwise):
    r"""Average gradients that are normalized by the second moment of the previous gradients.

    .. math::
        c_t &= \frac{g_t}{\max(\sqrt{\nu_{t-1}},\, \epsilon)}, \qquad
        \mu_t = \beta_1 \mu_{t-1} + (1-\beta_1) \operatorname{clip}(c_t, (t-1)^{1/4}) \\
        \nu_t &= \beta_2 \nu_{t-1} + (1-\beta_2)\, |g_t|^2, \qquad u_t = \mu_t

    The first step only sets :math:`\nu_1 = |g_1|^2`, and its update is zero. Unlike Adam, ADOPT
    converges for every :math:`\beta_2`.

    Args:
        b1: :math:`\beta_1`, decay rate of :math:`\mu`, the average of the normalized gradient.
        b2: :math:`\beta_2`, decay rate of :math:`\nu`, the moving average of the squared gradient.
        eps: :math:`\epsilon`, the lower bound of the root.
        mu_dtype: Storage dtype of `mu`; None uses the wider of float32 and the params' dtype.
        nesterov: Whether to use Nesterov momentum.
        use_clipping: Whether to clip the normalized gradient elementwise.
        clip_value_fn: Function from the number of previous steps, :math:`t-1` as a floating scalar,
            to the clipping bound.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, g = fnopt.scale_by_adopt(b1=0.0), {"w": jnp.full(2, 8.0)}
        >>> first, state = tx.update(g, tx.init(g))
        >>> second, state = tx.update(g, state)
        >>> print(first["w"], second["w"])
        [0. 0.] [1. 1.]

    Reference:
        Taniguchi et al., 2024, arXiv:2411.02853.
    """

    State = ScaleByAdoptState
    carrier = "mu"

    b1: Scalar = hyper(default=0.9, ge=0, lt=1)
    b2: Scalar = hyper(default=0.9999, ge=0, lt=1)
    eps: Scalar = hyper(default=1e-6, ge=0)
    mu_dtype: Any = static(default=None, convert=as_dtype)
    nesterov: bool = static(default=False)
    use_clipping: bool = static(default=True)
    clip_value_fn: Callable[[Any], Any] = static(default=fourth_root)

    def scalars(self, h: Any, t: Any) -> dict[str, Any]:
        """Decay rates and clipping bound of this step."""
        # As in the paper, the first step only initializes nu (decay rate 0); mu stays zero (decay
        # rate 1).
        is_first = t == 1
        decay1 = jnp.where(is_first, jnp.ones_like(h.b1), h.b1)
        decay2 = jnp.where(is_first, jnp.zeros_like(h.b2), h.b2)
        previous_steps = (t - 1).astype(h.b1.dtype)
        return {
            "decay1": decay1,
            "gain1": 1 - decay1,
            "decay2": decay2,
            "gain2": 1 - decay2,
            "bound": self.clip_value_fn(previous_steps) if self.use_clipping else previous_steps,
        }

    def leaf(self, h: Any, g: Any, mu: Any, nu: Any) -> Any:
        # As in the paper, epsilon is a lower bound of the root instead of a summand.
        step = g / jnp.maximum(positive_root(nu), h.eps)
        if self.use_clipping:
            step = clip_modulus(step, h.bound)
        mu = ema(mu, step, h.decay1, h.gain1)
        # XLA can overwrite the old `nu` in place, because `mu` is computed before the write.
        nu = write_after(ema(nu, squared_modulus(g), h.decay2, h.gain2), mu)
        return (ema(mu, step, h.decay1, h.gain1) if self.nesterov else mu), mu, nu


@recipe
def adopt(
    learning_rate: ScalarOrSchedule,
    b1: Scalar = 0.9,
    b2: Scalar = 0.9999,
    eps: Scalar = 1e-6,
    mu_dtype: Any = None,
    *,
    nesterov: bool = False,
    use_clipping: bool = True,
    clip_value_fn: Callable[[Any], Any] = fourth_root,
) -> Chain:
    r"""ADOPT: averaged gradients, normalized by the second moment of the previous gradients.

    .. math:: u_t = -\eta_t\, \mu_t, \qquad
              \mu_t = \beta_1 \mu_{t-1} + (1-\beta_1) \operatorname{clip}\left(
              \frac{g_t}{\max(\sqrt{\nu_{t-1}},\, \epsilon)}, (t-1)^{1/4}\right)

    The first step only initializes :math:`\nu`, and its update is zero.

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        b1: :math:`\beta_1`, decay rate of :math:`\mu`, the average of the normalized gradient.
        b2: :math:`\beta_2`, decay rate of :math:`\nu`, the moving average of the squared gradient.
        eps: :math:`\epsilon`, the lower bound of the root.
        mu_dtype: Storage dtype of `mu`; None uses the wider of float32 and the params' dtype.
        nesterov: Whether to use Nesterov momentum.
        use_clipping: Whether to clip the normalized gradient elementwise.
        clip_value_fn: Function from the number of previous steps, :math:`t-1` as a floating scalar,
            to the clipping bound.

    Returns:
        A chain of `scale_by_adopt` and `scale_by_learning_rate`, with the slots `mu` and `nu`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, params = fnopt.adopt(0.1), {"w": jnp.ones(2)}
        >>> updates, _ = tx.update({"w": jnp.ones(2)}, tx.init(params), params)
        >>> print(updates["w"])  # the first step only initializes nu
        [-0. -0.]

    Reference:
        Taniguchi et al., 2024, arXiv:2411.02853.
    """
    direction = scale_by_adopt(b1, b2, eps, mu_dtype, nesterov, use_clipping, clip_value_fn)
    return descend(direction, learning_rate)


class scale_by_acprop(Leafwise):
    r"""Divide the gradient by the root mean square deviation of the previous gradients.

    .. math::
        u_t &= \frac{g_t}{\sqrt{\hat\nu_{t-1}} + \epsilon}, \qquad
        \hat\nu_{t-1} = \frac{\nu_{t-1}}{1-\beta_2^{t-1}} \\
        \nu_t &= \beta_2 \nu_{t-1} + (1-\beta_2)\, |g_t - \mu_{t-1}|^2 + \bar\epsilon, \qquad
        \mu_t = \beta_1 \mu_{t-1} + (1-\beta_1)\, g_t

    The first step divides by 1. The paper uses the deviation from :math:`\mu_t`, which includes
    :math:`g_t`. The paper's deviation is :math:`\beta_1` times the deviation in fnopt, so the
    paper's steps are longer by a factor of :math:`1/\beta_1`.

    If all previous gradients of an element were zero, the divisor is tiny, and the step is far too
    long. (After one step with the default epsilons, the divisor is 3e-7.) This occurs in rows of
    embeddings and in weights after a layer of zeros. For such parameters, increase `eps` or clip
    the updates.

    Args:
        b1: :math:`\beta_1`, decay rate of :math:`\mu`, the moving average of the gradient.
        b2: :math:`\beta_2`, decay rate of :math:`\nu`, the moving average of the squared deviation.
        eps: :math:`\epsilon`, added outside the square root.
        eps_root: :math:`\bar\epsilon`, added to :math:`\nu` in every step.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, g = fnopt.scale_by_acprop(), {"w": jnp.full(2, 3.0)}
        >>> first, state = tx.update(g, tx.init(g))
        >>> second, state = tx.update(g, state)
        >>> print(first["w"], second["w"].round(3))
        [3. 3.] [1. 1.]

    Reference:
        Zhuang et al., 2021, arXiv:2110.05454.
    """

    State = ScaleByAdamState

    b1: Scalar = hyper(default=0.9, ge=0, lt=1)
    b2: Scalar = hyper(default=0.999, ge=0, lt=1)
    eps: Scalar = hyper(default=1e-16, ge=0)
    eps_root: Scalar = hyper(default=1e-16, ge=0)

    def scalars(self, h: Any, t: Any) -> dict[str, Any]:
        """Bias correction of the previous step, and whether this is the first step."""
        previous_step = jnp.maximum(t - 1, jnp.ones_like(t))
        return {"has_previous": t > 1, "correction": bias_correction(h.b2, previous_step)}

    def leaf(self, h: Any, g: Any, mu: Any, nu: Any) -> Any:
        divisor = positive_root(nu / h.correction)
        # The first step has no previous second moment, so it divides by 1.
        divisor = jnp.where(h.has_previous > 0, divisor, jnp.ones_like(divisor)) + h.eps
        u = g / divisor
        nu = write_after(ema(nu, squared_modulus(g - mu), h.b2) + h.eps_root, u)
        return u, write_after(ema(mu, g, h.b1), nu), nu


@recipe
def acprop(
    learning_rate: ScalarOrSchedule,
    b1: Scalar = 0.9,
    b2: Scalar = 0.999,
    eps: Scalar = 1e-16,
    eps_root: Scalar = 1e-16,
    weight_decay: ScalarOrSchedule = 0.0,
    mask: Any = None,
) -> Chain:
    r"""ACProp: the gradient over the root mean square deviation of the previous gradients.

    .. math:: u_t = -\eta_t \left(\frac{g_t}{\sqrt{\hat\nu_{t-1}} + \epsilon} +
              \lambda_t\, \theta_t\right)

    `scale_by_acprop` defines :math:`\hat\nu` and :math:`\mu`. The first nonzero gradient after zero
    gradients causes a very long step; `scale_by_acprop` describes remedies.

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        b1: :math:`\beta_1`, decay rate of :math:`\mu`, the moving average of the gradient.
        b2: :math:`\beta_2`, decay rate of :math:`\nu`, the moving average of the squared deviation.
        eps: :math:`\epsilon`, added outside the square root.
        eps_root: :math:`\bar\epsilon`, added to :math:`\nu` in every step.
        weight_decay: :math:`\lambda`, the decoupled weight decay; a number or a `Schedule`.
        mask: The leaves with weight decay; see `add_decayed_weights`. None means all leaves.

    Returns:
        A chain of `scale_by_acprop`, `add_decayed_weights` and `scale_by_learning_rate`, with the
        slots `mu` and `nu`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, params = fnopt.acprop(0.5), {"w": jnp.ones(2)}
        >>> updates, _ = tx.update({"w": jnp.ones(2)}, tx.init(params), params)
        >>> fnopt.apply_updates(params, updates)
        {'w': Array([0.5, 0.5], dtype=float32)}

    Reference:
        Zhuang et al., 2021, arXiv:2110.05454.
    """
    return descend(scale_by_acprop(b1, b2, eps, eps_root), learning_rate, weight_decay, mask)

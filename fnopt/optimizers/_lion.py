"""Lion and Rprop: steps along signs."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp

from fnopt.core import Leafwise, RealSlot, Scalar, ScalarOrSchedule, Slot, hyper, static
from fnopt.numerics import as_dtype, ema
from fnopt.optimizers._recipe import descend, recipe
from fnopt.transforms import Chain


class ScaleByLionState(NamedTuple):
    r"""State of `scale_by_lion`.

    Attributes:
        mu: :math:`\mu_t`, the moving average of the gradient.
    """

    mu: Slot


class scale_by_lion(Leafwise):
    r"""Replace updates by the sign of an interpolation between the momentum and the gradient.

    .. math:: u_t = \operatorname{sign}(\beta_1 \mu_{t-1} + (1-\beta_1)\, g_t), \qquad
              \mu_t = \beta_2 \mu_{t-1} + (1-\beta_2)\, g_t

    Args:
        b1: :math:`\beta_1`, the weight of the momentum in the step.
        b2: :math:`\beta_2`, decay rate of :math:`\mu`, the moving average of the gradient. It must
            be positive, because the step is computed from :math:`\mu_t`.
        mu_dtype: Storage dtype of `mu`; None uses the wider of float32 and the params' dtype.
        mode: The function of the interpolation `x`: `'hard'` is its sign, `'smooth'` is
            :math:`\tanh` of `smooth_beta` times `x`, and `'refined'` is `x` clipped to [-1, 1].
        smooth_beta: The slope of the smooth function at 0.

    Raises:
        ValueError: If the mode is invalid.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.scale_by_lion()
        >>> tx.update({"w": jnp.asarray([3.0, -0.1])}, tx.init({"w": jnp.ones(2)}))[0]
        {'w': Array([ 1., -1.], dtype=float32)}

    Reference:
        Chen et al., 2023, arXiv:2302.06675.
    """

    State = ScaleByLionState

    b1: Scalar = hyper(default=0.9, ge=0, lt=1)
    b2: Scalar = hyper(default=0.99, gt=0, lt=1)
    mu_dtype: Any = static(default=None, convert=as_dtype)
    mode: str = static(default="hard", choices=("hard", "smooth", "refined"))
    smooth_beta: Scalar = hyper(default=1.0, gt=0)

    def scalars(self, h: Any, t: Any) -> dict[str, Any]:
        """Weights of the new average and of the gradient in the interpolation."""
        # b1 mu_{t-1} + (1 - b1) g, in terms of mu_t = b2 mu_{t-1} + (1 - b2) g.
        mean = h.b1 / h.b2
        return {"gain2": 1 - h.b2, "mean": mean, "gradient": 1 - mean}

    def leaf(self, h: Any, g: Any, mu: Any) -> Any:
        # The direction is computed from the new average, so XLA can overwrite the old average in
        # place. Otherwise XLA would keep a copy of the params' size.
        mu = ema(mu, g, h.b2, h.gain2)
        x = h.mean * mu + h.gradient * g
        if self.mode == "smooth":
            return jnp.tanh(h.smooth_beta * x), mu
        return (jnp.sign(x) if self.mode == "hard" else jnp.clip(x, -1, 1)), mu


@recipe
def lion(
    learning_rate: ScalarOrSchedule,
    b1: Scalar = 0.9,
    b2: Scalar = 0.99,
    mu_dtype: Any = None,
    weight_decay: ScalarOrSchedule = 1e-3,
    mask: Any = None,
) -> Chain:
    r"""Lion: steps along the sign of an averaged gradient, with decoupled weight decay.

    .. math:: u_t = -\eta_t \left(\operatorname{sign}(\beta_1 \mu_{t-1} + (1-\beta_1)\, g_t) +
              \lambda_t\, \theta_t\right), \qquad
              \mu_t = \beta_2 \mu_{t-1} + (1-\beta_2)\, g_t

    Without weight decay, every element changes by the learning rate. Compared to AdamW, use a
    learning rate 3 to 10 times smaller, and a weight decay 3 to 10 times larger.

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        b1: :math:`\beta_1`, the weight of the momentum in the step.
        b2: :math:`\beta_2`, decay rate of :math:`\mu`, the moving average of the gradient.
        mu_dtype: Storage dtype of `mu`; None uses the wider of float32 and the params' dtype.
        weight_decay: :math:`\lambda`, the decoupled weight decay; a number or a `Schedule`.
        mask: The leaves with weight decay; see `add_decayed_weights`. None means all leaves.

    Returns:
        A chain of `scale_by_lion`, `add_decayed_weights` and `scale_by_learning_rate`, with the
        slot `mu`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.lion(0.25, weight_decay=0.0)
        >>> params = {"w": jnp.ones(2)}
        >>> updates, state = tx.update({"w": jnp.asarray([3.0, -0.1])}, tx.init(params), params)
        >>> fnopt.apply_updates(params, updates)
        {'w': Array([0.75, 1.25], dtype=float32)}

    Reference:
        Chen et al., 2023, arXiv:2302.06675.
    """
    return descend(scale_by_lion(b1, b2, mu_dtype), learning_rate, weight_decay, mask)


class ScaleByRpropState(NamedTuple):
    """State of `scale_by_rprop`.

    Attributes:
        step_sizes: :math:`s_t`, the step size of every element.
        prev_updates: :math:`u_t`, the last update; 0 after a change of sign.
    """

    step_sizes: RealSlot
    prev_updates: Slot


class scale_by_rprop(Leafwise):
    r"""Step along the gradient's sign, with step sizes that grow while the sign doesn't change.

    .. math::
        a_t &= \operatorname{sign}(g_t)\, \operatorname{sign}(u_{t-1}), \qquad
        s_t = \begin{cases} \min(\eta^+ s_{t-1},\, s_{max}) & a_t > 0 \\
              \max(\eta^- s_{t-1},\, s_{min}) & a_t < 0 \\ s_{t-1} & a_t = 0 \end{cases} \\
        u_t &= \begin{cases} 0 & a_t < 0 \\ s_t \operatorname{sign}(g_t) & \text{otherwise}
               \end{cases}

    Args:
        learning_rate: :math:`s_0`, the initial step size of every element.
        eta_minus: :math:`\eta^-`, the factor of the step size after a change of sign.
        eta_plus: :math:`\eta^+`, the factor of the step size while the sign doesn't change.
        min_step_size: :math:`s_{min}`, the smallest step size.
        max_step_size: :math:`s_{max}`, the largest step size.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.scale_by_rprop(0.5)
        >>> u, state = tx.update({"w": jnp.asarray([3.0, -0.1])}, tx.init({"w": jnp.ones(2)}))
        >>> u
        {'w': Array([ 0.5, -0.5], dtype=float32)}

    Reference:
        Riedmiller and Braun, 1993; Igel and Hüsken, 2003 (this variant, iRprop-).
    """

    State = ScaleByRpropState
    fill: ClassVar[Any] = {"step_sizes": "learning_rate"}
    keeps_squares = False

    learning_rate: Scalar = hyper(ge=0)
    # The constants of Riedmiller and Braun (1993).
    eta_minus: Scalar = hyper(default=0.5, gt=0, le=1)
    eta_plus: Scalar = hyper(default=1.2, ge=1)
    min_step_size: Scalar = hyper(default=1e-6, ge=0)
    max_step_size: Scalar = hyper(default=50.0, gt=0, infinite=True)

    def leaf(self, h: Any, g: Any, size: Any, previous: Any) -> Any:
        # Signs are multiplied, because the product of 1e-30 and 1e-20 is zero in float32.
        agreement = jnp.real(jnp.sign(g) * jnp.conj(jnp.sign(previous)))
        factor = jnp.where(agreement > 0, h.eta_plus, h.eta_minus)
        new_size = jnp.clip(size * factor, h.min_step_size, h.max_step_size)
        # The update after a change of sign is zero. The next agreement is then zero, so one change
        # of sign reduces the step size only once.
        size = jnp.where(agreement == 0, size, new_size)
        # `0 * g` makes the update NaN for an infinite gradient, whose sign would be finite.
        u = jnp.where(agreement < 0, jnp.zeros_like(g), size * jnp.sign(g)) + 0 * g
        return u, size, u


@recipe
def rprop(
    learning_rate: Scalar,
    eta_minus: Scalar = 0.5,
    eta_plus: Scalar = 1.2,
    min_step_size: Scalar = 1e-6,
    max_step_size: Scalar = 50.0,
) -> Chain:
    r"""Rprop: elementwise adaptive steps along the gradient's sign, for full-batch gradients.

    .. math:: s_t = \operatorname{clip}(\eta^{\pm} s_{t-1},\, s_{min},\, s_{max}), \qquad
              u_t = -s_t \operatorname{sign}(g_t)

    with :math:`\eta^+` while the gradient's sign doesn't change, and :math:`\eta^-` after a change
    of sign. See `scale_by_rprop`.

    Args:
        learning_rate: :math:`s_0`, the initial step size of every element.
        eta_minus: :math:`\eta^-`, the factor of the step size after a change of sign.
        eta_plus: :math:`\eta^+`, the factor of the step size while the sign doesn't change.
        min_step_size: :math:`s_{min}`, the smallest step size.
        max_step_size: :math:`s_{max}`, the largest step size.

    Returns:
        A chain of `scale_by_rprop` and `scale(-1)`, with the slots `step_sizes` and `prev_updates`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.rprop(0.5)
        >>> params = {"w": jnp.ones(2)}
        >>> updates, state = tx.update({"w": jnp.asarray([3.0, -0.1])}, tx.init(params), params)
        >>> fnopt.apply_updates(params, updates)
        {'w': Array([0.5, 1.5], dtype=float32)}

    Reference:
        Riedmiller and Braun, 1993; Igel and Hüsken, 2003.
    """
    return descend(
        scale_by_rprop(learning_rate, eta_minus, eta_plus, min_step_size, max_step_size), 1.0
    )

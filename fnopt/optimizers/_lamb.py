"""Methods with steps normalized per leaf: LARS, LAMB, Fromage and NovoGrad."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fnopt.core import (
    CustomSlot,
    Leafwise,
    Scalar,
    ScalarOrSchedule,
    Slot,
    global_norm,
    hyper,
    static,
)
from fnopt.numerics import add_epsilon, as_dtype, compute_dtype, joint_norm, real_dtype, safe_sqrt
from fnopt.optimizers._adam import scale_by_adam
from fnopt.optimizers._recipe import descend, recipe
from fnopt.transforms import (
    Chain,
    add_decayed_weights,
    chain,
    masked,
    scale_by_learning_rate,
    scale_by_trust_ratio,
    trace,
)


@recipe
def lamb(
    learning_rate: ScalarOrSchedule,
    b1: Scalar = 0.9,
    b2: Scalar = 0.999,
    eps: Scalar = 1e-6,
    eps_root: Scalar = 0.0,
    weight_decay: ScalarOrSchedule = 0.0,
    mask: Any = None,
) -> Chain:
    r"""LAMB: Adam's direction, scaled in each leaf to the norm of the parameters.

    .. math:: d_t = \frac{\hat\mu_t}{\sqrt{\hat\nu_t + \bar\epsilon} + \epsilon} +
              \lambda_t\, \theta_t, \qquad
              u_t = -\eta_t\, \frac{\lVert \theta_t \rVert}{\lVert d_t \rVert}\, d_t

    with the norms of each leaf. The averages :math:`\hat\mu_t` and :math:`\hat\nu_t` are defined in
    `adam`.

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        b1: :math:`\beta_1`, decay rate of :math:`\mu`, the moving average of the gradient.
        b2: :math:`\beta_2`, decay rate of :math:`\nu`, the moving average of the squared gradient.
        eps: :math:`\epsilon`, added outside the square root.
        eps_root: :math:`\bar\epsilon`, added inside the square root.
        weight_decay: :math:`\lambda`, the decoupled weight decay; a number or a `Schedule`.
        mask: The leaves with weight decay; see `add_decayed_weights`. None means all leaves.

    Returns:
        A chain of `scale_by_adam`, `add_decayed_weights`, `scale_by_trust_ratio` and
        `scale_by_learning_rate`, with the slots `mu` and `nu`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.lamb(0.5)
        >>> params = {"w": jnp.asarray([6.0, 6.0])}
        >>> updates, state = tx.update({"w": jnp.full(2, 8.0)}, tx.init(params), params)
        >>> fnopt.apply_updates(params, updates)["w"].round(4)
        Array([3., 3.], dtype=float32)

    Reference:
        You et al., 2020, arXiv:1904.00962.
    """
    return chain(
        # The norm in the ratio includes the weight decay (You et al., 2020, algorithm 2).
        scale_by_adam(b1, b2, eps, eps_root),
        add_decayed_weights(weight_decay, mask),
        scale_by_trust_ratio(),
        scale_by_learning_rate(learning_rate),
    )


@recipe
def lars(
    learning_rate: ScalarOrSchedule,
    weight_decay: ScalarOrSchedule = 0.0,
    weight_decay_mask: Any = True,
    trust_coefficient: Scalar = 0.001,
    eps: Scalar = 0.0,
    trust_ratio_mask: Any = True,
    momentum: Scalar = 0.9,
    nesterov: bool = False,
) -> Chain:
    r"""LARS: momentum of gradients, scaled in each leaf to the norm of the parameters.

    .. math:: d_t = g_t + \lambda_t\, \theta_t, \qquad
              m_t = \gamma m_{t-1} - \eta_t\, c\, \frac{\lVert \theta_t \rVert}
              {\lVert d_t \rVert + \epsilon}\, d_t, \qquad u_t = m_t

    with the norms of each leaf. The paper divides by :math:`\lVert g_t \rVert + \lambda_t \lVert
    \theta_t \rVert` instead of :math:`\lVert d_t \rVert`.

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        weight_decay: :math:`\lambda`, the coefficient of L2 regularization; a number or a
            `Schedule`.
        weight_decay_mask: The leaves with weight decay; see `add_decayed_weights`.
        trust_coefficient: :math:`c`, the factor of the ratio of norms.
        eps: :math:`\epsilon`, added to the gradient's norm.
        trust_ratio_mask: The leaves to scale by the ratio of norms; see `masked`.
        momentum: :math:`\gamma`, decay rate of :math:`m`, the sum of the steps.
        nesterov: Whether to use Nesterov momentum.

    Returns:
        A chain of `add_decayed_weights`, `scale_by_trust_ratio` (masked),
        `scale_by_learning_rate` and `trace`, with the slot `trace`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.lars(0.5, trust_coefficient=1.0)
        >>> params = {"w": jnp.asarray([6.0, 6.0])}
        >>> updates, state = tx.update({"w": jnp.full(2, 8.0)}, tx.init(params), params)
        >>> fnopt.apply_updates(params, updates)["w"].round(4)
        Array([3., 3.], dtype=float32)

    Reference:
        You, Gitman and Ginsburg, 2017, arXiv:1708.03888.
    """
    ratio = scale_by_trust_ratio(trust_coefficient=trust_coefficient, eps=eps)
    return chain(
        add_decayed_weights(weight_decay, weight_decay_mask),
        masked(ratio, trust_ratio_mask),
        scale_by_learning_rate(learning_rate),
        # Momentum sums scaled steps, so a change of the learning rate affects only new gradients
        # (You et al., 2017, algorithm 1).
        trace(momentum, nesterov),
    )


class ScaleByFromageState(NamedTuple):
    """State of `scale_by_fromage`.

    Attributes:
        count: :math:`t`, the number of steps; None for a constant learning rate.
    """

    count: jax.Array | None


class scale_by_fromage(Leafwise):
    r"""Subtract :math:`\eta g`, then scale the parameters by :math:`1 / \sqrt{1 + \eta^2}`.

    .. math:: u_t = c\,(\theta_t - \eta_t\, g_t) - \theta_t, \qquad
              c = \frac{1}{\sqrt{1 + \eta_t^2}}

    Updates include the minus sign, so don't chain `scale_by_learning_rate` after this transform.

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, params = fnopt.scale_by_fromage(0.75), {"w": jnp.asarray([1.0])}
        >>> updates, _ = tx.update({"w": jnp.asarray([1.0])}, tx.init(params), params)
        >>> print(f"{updates['w'][0]:.4f}")
        -0.8000

    Reference:
        Bernstein, Vahdat, Yue and Liu, 2020, arXiv:2002.03432.
    """

    State = ScaleByFromageState
    needs_params = True
    reads_step = False

    learning_rate: ScalarOrSchedule = hyper(ge=0, schedule=True)

    def scalars(self, h: Any, t: Any) -> dict[str, Any]:
        """Factors of the gradient and of the parameters."""
        # Bernstein et al. (2020), algorithm 1: without the factor, the params would grow with every
        # step.
        factor = lax.rsqrt(1 + h.learning_rate**2)
        step = -h.learning_rate * factor
        # factor - 1 = -step^2 / (1 + factor), because the difference cancels for small rates.
        return {"step": step, "decay": -(step**2) / (1 + factor)}

    def leaf(self, h: Any, g: Any, p: Any) -> Any:
        return h.step * g + h.decay * p


@recipe
def fromage(learning_rate: ScalarOrSchedule, min_norm: Scalar = 1e-6) -> Chain:
    r"""Fromage: steps whose norm relative to a leaf's norm is the learning rate.

    .. math:: u_t = c \left(\theta_t - \eta_t
              \frac{\lVert \theta_t \rVert}{\lVert g_t \rVert}\, g_t\right) - \theta_t, \qquad
              c = \frac{1}{\sqrt{1 + \eta_t^2}}

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        min_norm: A lower bound of :math:`\lVert \theta_t \rVert` and :math:`\lVert g_t \rVert`.

    Returns:
        A chain of `scale_by_trust_ratio` and `scale_by_fromage`; it has no slots.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, params = fnopt.fromage(0.75), {"w": jnp.asarray([3.0, 4.0])}
        >>> updates, _ = tx.update({"w": jnp.asarray([0.0, 2.0])}, tx.init(params), params)
        >>> print(*(f"{x:.4f}" for x in fnopt.apply_updates(params, updates)["w"]))
        2.4000 0.2000

    Reference:
        Bernstein, Vahdat, Yue and Liu, 2020, arXiv:2002.03432.
    """
    return chain(scale_by_trust_ratio(min_norm), scale_by_fromage(learning_rate))


class ScaleByNovogradState(NamedTuple):
    r"""State of `scale_by_novograd`.

    Attributes:
        count: :math:`t`, the number of steps.
        mu: :math:`\mu_t`, the momentum.
        nu: :math:`\sqrt{\nu_t}`, one number per leaf.
    """

    count: jax.Array
    mu: Slot
    nu: CustomSlot


class scale_by_novograd(Leafwise):
    r"""Accumulate momentum of gradients that are normalized by the averaged norm of each leaf.

    .. math::
        \nu_t &= \beta_2 \nu_{t-1} + (1-\beta_2)\, \lVert g_t \rVert^2, \qquad
        \nu_1 = \lVert g_1 \rVert^2 \\
        u_t = \mu_t &= \beta_1 \mu_{t-1} + \frac{g_t}{\sqrt{\nu_t + \bar\epsilon} + \epsilon} +
        \lambda_t\, \theta_t

    Args:
        b1: :math:`\beta_1`, decay rate of :math:`\mu`, the momentum.
        b2: :math:`\beta_2`, decay rate of :math:`\nu`, the moving average of the squared norm.
        eps: :math:`\epsilon`, added outside the square root.
        eps_root: :math:`\bar\epsilon`, added inside the square root.
        weight_decay: :math:`\lambda`, the weight decay, which is part of the momentum; a number or
            a `Schedule`.
        mu_dtype: Storage dtype of `mu`; None uses the wider of float32 and the params' dtype.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, params = fnopt.scale_by_novograd(), {"w": jnp.ones(2)}
        >>> updates, _ = tx.update({"w": jnp.asarray([3.0, 4.0])}, tx.init(params), params)
        >>> updates["w"].round(3)
        Array([0.6, 0.8], dtype=float32)

    Reference:
        Ginsburg et al., 2019, arXiv:1905.11286.
    """

    State = ScaleByNovogradState
    needs_params = True

    b1: Scalar = hyper(default=0.9, ge=0, lt=1)
    b2: Scalar = hyper(default=0.25, ge=0, lt=1)
    eps: Scalar = hyper(default=1e-8, ge=0)
    eps_root: Scalar = hyper(default=0.0, ge=0)
    weight_decay: ScalarOrSchedule = hyper(default=0.0, ge=0, schedule=True)
    mu_dtype: Any = static(default=None, convert=as_dtype)

    def start(self, slot: str, p: Any) -> Any:
        """Return one number per leaf."""
        return jnp.zeros((), real_dtype(compute_dtype(p.dtype)))

    def scalars(self, h: Any, t: Any) -> dict[str, Any]:
        """Roots of the averaging weights and of `eps_root`."""
        # In the first step, nu is the squared norm of the gradient, as in the paper.
        decay = jnp.where(t > 1, h.b2, jnp.zeros_like(h.b2))
        return {
            "old_weight": safe_sqrt(decay),
            "new_weight": safe_sqrt(1 - decay),
            "root_of_eps": safe_sqrt(h.eps_root),
        }

    def leaf(self, h: Any, g: Any, p: Any, mu: Any, nu: Any) -> Any:
        # The slot is sqrt(nu), because the squared norm may overflow.
        norm = global_norm(g).astype(nu.dtype)
        nu = joint_norm([h.old_weight * nu, h.new_weight * norm])
        root = _root_of_sum(nu, h.eps_root, h.root_of_eps)
        # The gradient has no factor 1 - b1, as in Ginsburg et al. (2019), algorithm 1.
        mu = h.b1 * mu + g / add_epsilon(root, h.eps) + h.weight_decay * p
        return mu, mu, nu


def _root_of_sum(norm: jax.Array, x: jax.Array, root_of_x: jax.Array) -> jax.Array:
    """Return `sqrt(norm^2 + x)`, with a finite derivative with respect to `x` at 0."""
    # Unlike `joint_norm`, the formula norm sqrt(1 + x / norm^2) has the right derivative at x = 0.
    # For small norms, the intermediate value norm^-2 of this formula would overflow.
    is_large = norm > 2.0 ** (jnp.finfo(norm.dtype).minexp // 3)
    size = jnp.where(is_large, norm, jnp.ones_like(norm))
    ratio = x / size / size
    return jnp.where(is_large, size * jnp.sqrt(1 + ratio), joint_norm([norm, root_of_x]))


@recipe
def novograd(
    learning_rate: ScalarOrSchedule,
    b1: Scalar = 0.9,
    b2: Scalar = 0.25,
    eps: Scalar = 1e-6,
    eps_root: Scalar = 0.0,
    weight_decay: ScalarOrSchedule = 0.0,
) -> Chain:
    r"""NovoGrad: momentum of gradients that are normalized per leaf.

    .. math:: u_t = -\eta_t\, \mu_t, \qquad \mu_t = \beta_1 \mu_{t-1} +
              \frac{g_t}{\sqrt{\nu_t + \bar\epsilon} + \epsilon} + \lambda_t\, \theta_t

    where :math:`\nu_t` is the averaged squared norm of a leaf's gradient.

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        b1: :math:`\beta_1`, decay rate of :math:`\mu`, the momentum.
        b2: :math:`\beta_2`, decay rate of :math:`\nu`, the moving average of the squared norm.
        eps: :math:`\epsilon`, added outside the square root.
        eps_root: :math:`\bar\epsilon`, added inside the square root.
        weight_decay: :math:`\lambda`, part of the momentum; a number or a `Schedule`.

    Returns:
        A chain of `scale_by_novograd` and `scale_by_learning_rate`, with the slots `mu` and `nu`;
        `nu` has one number per leaf.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, params = fnopt.novograd(0.5), {"w": jnp.ones(2)}
        >>> updates, _ = tx.update({"w": jnp.asarray([3.0, 4.0])}, tx.init(params), params)
        >>> print(*(f"{x:.3f}" for x in fnopt.apply_updates(params, updates)["w"]))
        0.700 0.600

    Reference:
        Ginsburg et al., 2019, arXiv:1905.11286.
    """
    direction = scale_by_novograd(b1, b2, eps, eps_root, weight_decay)
    return descend(direction, learning_rate)

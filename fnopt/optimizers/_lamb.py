"""Layer-wise steps in proportion to the norm of the parameters: LARS, LAMB and Fromage."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
from jax import lax

from fnopt.core import Leafwise, Scalar, ScalarOrSchedule, hyper
from fnopt.optimizers._adam import scale_by_adam
from fnopt.optimizers._recipe import recipe
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
    r"""LAMB: Adam's direction, scaled to the norm of each layer's params.

    .. math:: d_t = \frac{\hat\mu_t}{\sqrt{\hat\nu_t + \bar\epsilon} + \epsilon} +
              \lambda_t\, \theta_t, \qquad
              u_t = -\eta_t\, \frac{\lVert \theta_t \rVert}{\lVert d_t \rVert}\, d_t

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        b1: Decay of the mean gradient.
        b2: Decay of the mean square.
        eps: Added to the root.
        eps_root: Added under the root.
        weight_decay: :math:`\lambda`, a number or a `Schedule` of its own.
        mask: Which leaves decay; see `add_decayed_weights`. None for all.

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
    r"""LARS: momentum of gradients scaled to the norm of each layer's params.

    .. math:: d_t = g_t + \lambda_t\, \theta_t, \qquad
              m_t = \gamma m_{t-1} - \eta_t\, c\, \frac{\lVert \theta_t \rVert}
              {\lVert d_t \rVert + \epsilon}\, d_t, \qquad u_t = m_t

    The paper divides by :math:`\lVert g_t \rVert + \lambda_t \lVert \theta_t \rVert`.

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        weight_decay: :math:`\lambda`, a number or a `Schedule` of its own.
        weight_decay_mask: Which leaves decay; see `add_decayed_weights`.
        trust_coefficient: :math:`c`.
        eps: :math:`\epsilon`.
        trust_ratio_mask: Which leaves are scaled by the ratio of norms; see `masked`.
        momentum: :math:`\gamma`.
        nesterov: Whether to look ahead.

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
        trace(momentum, nesterov),
    )


class ScaleByFromageState(NamedTuple):
    """The number of updates made; None for a constant rate."""

    count: jax.Array | None


class scale_by_fromage(Leafwise):
    r"""A step of size :math:`\eta`, after which the params are shrunk by its length.

    .. math:: u_t = c\,(\theta_t - \eta_t\, g_t) - \theta_t, \qquad
              c = \frac{1}{\sqrt{1 + \eta_t^2}}

    Updates have the minus sign of descent.

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
        """The factors of the gradient and of the params."""
        del t
        shrink = lax.rsqrt(1 + h.learning_rate**2)
        step = -h.learning_rate * shrink
        # shrink - 1 = -step^2 / (1 + shrink): the difference would have no digits for small rates.
        return {"step": step, "decay": -(step**2) / (1 + shrink)}

    def leaf(self, h: Any, g: Any, p: Any) -> Any:
        return h.step * g + h.decay * p


@recipe
def fromage(learning_rate: ScalarOrSchedule, min_norm: Scalar = 1e-6) -> Chain:
    r"""Fromage: the relative size of every layer's step is the learning rate.

    .. math:: u_t = c \left(\theta_t - \eta_t
              \frac{\lVert \theta_t \rVert}{\lVert g_t \rVert}\, g_t\right) - \theta_t, \qquad
              c = \frac{1}{\sqrt{1 + \eta_t^2}}

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        min_norm: A lower bound of both norms.

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

"""NovoGrad: gradients normalised layer by layer."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import (
    CustomSlot,
    Leafwise,
    Scalar,
    ScalarOrSchedule,
    Slot,
    add_epsilon,
    as_dtype,
    compute_dtype,
    global_norm,
    hyper,
    joint_norm,
    real_dtype,
    safe_sqrt,
    static,
)
from fnopt.optimizers._recipe import recipe
from fnopt.transforms import Chain, chain, scale_by_learning_rate


class ScaleByNovogradState(NamedTuple):
    """Step count, the momentum, and for every leaf the root of its mean squared norm."""

    count: jax.Array
    mu: Slot
    nu: CustomSlot


class scale_by_novograd(Leafwise):
    r"""Momentum of gradients that are divided by the root of their mean squared norm.

    .. math::
        \nu_t &= \beta_2 \nu_{t-1} + (1-\beta_2)\, \lVert g_t \rVert^2, \qquad
        \nu_1 = \lVert g_1 \rVert^2 \\
        u_t = \mu_t &= \beta_1 \mu_{t-1} + \frac{g_t}{\sqrt{\nu_t + \bar\epsilon} + \epsilon} +
        \lambda_t\, \theta_t

    Args:
        b1: :math:`\beta_1`, decay of the momentum.
        b2: :math:`\beta_2`, decay of the squared norm.
        eps: :math:`\epsilon`, added to the root.
        eps_root: :math:`\bar\epsilon`, added under the root.
        weight_decay: :math:`\lambda`, a number or a `Schedule`.
        mu_dtype: Storage dtype of `mu`; by default the params' own, but at least float32.

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
        """A number for every leaf."""
        return jnp.zeros((), real_dtype(compute_dtype(p.dtype)))

    def scalars(self, h: Any, t: Any) -> dict[str, Any]:
        """The roots of the weights: in the first step there is nothing to average with."""
        # The first step takes the norm of its own gradient, as in the paper.
        zero = jnp.zeros_like(h.b2)
        decay = jnp.where(t > 1, h.b2, zero)
        return {
            "old": safe_sqrt(decay),
            "new": safe_sqrt(1 - decay),
            "least": safe_sqrt(h.eps_root),
        }

    def leaf(self, h: Any, g: Any, p: Any, mu: Any, nu: Any) -> Any:
        # Norms, as their squares may be no numbers.
        nu = joint_norm([h.old * nu, h.new * global_norm(g).astype(nu.dtype)])
        length = _root_of_sum(nu, h.eps_root, h.least)
        unit = g / add_epsilon(length, h.eps)
        mu = h.b1 * mu + unit + h.weight_decay * p
        return mu, mu, nu


def _root_of_sum(norm: jax.Array, number: jax.Array, its_root: jax.Array) -> jax.Array:
    """`sqrt(norm^2 + number)`, with a slope where the number is 0, unlike with its root."""
    info = jnp.finfo(norm.dtype)
    # The slope is `1 / (2 norm)` times that of the quotient, which is `norm^-2`.
    large = norm > 2.0 ** (info.minexp // 3)
    size = jnp.where(large, norm, jnp.ones_like(norm))
    share = number / size / size
    return jnp.where(large, size * jnp.sqrt(1 + share), joint_norm([norm, its_root]))


@recipe
def novograd(
    learning_rate: ScalarOrSchedule,
    b1: Scalar = 0.9,
    b2: Scalar = 0.25,
    eps: Scalar = 1e-6,
    eps_root: Scalar = 0.0,
    weight_decay: ScalarOrSchedule = 0.0,
) -> Chain:
    r"""NovoGrad: momentum of gradients normalised layer by layer.

    .. math:: u_t = -\eta_t\, \mu_t, \qquad \mu_t = \beta_1 \mu_{t-1} +
              \frac{g_t}{\sqrt{\nu_t + \bar\epsilon} + \epsilon} + \lambda_t\, \theta_t

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        b1: Decay of the momentum.
        b2: Decay of the squared norm of every leaf.
        eps: Added to the root.
        eps_root: Added under the root.
        weight_decay: :math:`\lambda`, a number or a `Schedule` of its own.

    Returns:
        A chain of `scale_by_novograd` and `scale_by_learning_rate`, with the slots `mu` and `nu`,
        of which the second has one number a leaf.

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
    return chain(direction, scale_by_learning_rate(learning_rate))

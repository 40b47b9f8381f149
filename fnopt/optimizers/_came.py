"""CAME: Adafactor with smaller steps where they deviate from their mean."""

from __future__ import annotations

from typing import Any, NamedTuple

from fnopt.core import (
    CustomSlot,
    Leafwise,
    Scalar,
    ScalarOrSchedule,
    Slot,
    as_dtype,
    compute_dtype,
    ema,
    hyper,
    real_dtype,
    squared_modulus,
    static,
)
from fnopt.optimizers._adafactor import Axes, average_squares, divide_by_root, zeros_like_parts
from fnopt.optimizers._recipe import recipe
from fnopt.transforms import Chain, add_decayed_weights, chain, clipped_rms, scale_by_learning_rate


class ScaleByCameState(NamedTuple):
    """The mean of the steps; mean squares of gradients and of residuals by row and column."""

    mu: Slot
    v: CustomSlot
    residual: CustomSlot


class scale_by_came(Leafwise):
    r"""Divide the mean of Adafactor's steps by their deviation from it.

    .. math::
        d_t &= \frac{g_t}{\sqrt{\hat V_t}}, \qquad
        \bar d_t = \frac{d_t}{\max(1, \mathrm{rms}(d_t) / c)}, \qquad
        \mu_t = \beta_1 \mu_{t-1} + (1-\beta_1)\, \bar d_t \\
        u_t &= \frac{\mu_t}{\sqrt{\hat S_t}}

    :math:`\hat V` is the product of the running means, with decay :math:`\beta_2`, of
    :math:`|g|^2 + \epsilon_1` over rows and over columns (see `scale_by_factored_rms`);
    :math:`\hat S` that of :math:`|\bar d - \mu|^2 + \epsilon_2`, with decay :math:`\beta_3`. The
    last two axes are factored. Leaves of fewer axes keep all mean squares, and :math:`u = \mu`.

    Args:
        b1: :math:`\beta_1`, decay of the mean step.
        b2: :math:`\beta_2`, decay of the squared gradients.
        b3: :math:`\beta_3`, decay of the squared residuals.
        eps: :math:`\epsilon_1`, added to squared gradients.
        eps_residual: :math:`\epsilon_2`, added to squared residuals.
        clipping_threshold: :math:`c`, the largest root mean square of a step.
        mu_dtype: Storage dtype of `mu`; by default the params' own, but at least float32.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, g = fnopt.scale_by_came(), {"w": jnp.ones((2, 3))}
        >>> updates, state = tx.update(g, tx.init(g))
        >>> [v.shape for v in state.residual["w"]]
        [(2,), (3,)]

    Reference:
        Luo et al., 2023, arXiv:2307.02047.
    """

    State = ScaleByCameState
    keeps_squares = True
    carrier = "mu"

    b1: Scalar = hyper(default=0.9, ge=0, lt=1)
    b2: Scalar = hyper(default=0.999, ge=0, lt=1)
    b3: Scalar = hyper(default=0.9999, ge=0, lt=1)
    eps: Scalar = hyper(default=1e-30, ge=0)
    eps_residual: Scalar = hyper(default=1e-16, ge=0)
    clipping_threshold: Scalar = hyper(default=1.0, gt=0, infinite=True)
    mu_dtype: Any = static(default=None, convert=as_dtype)

    def start(self, slot: str, p: Any) -> Any:
        """Zeros for rows and columns; no residuals of what isn't factored."""
        axes = _axes(p.shape)
        if slot == "residual" and axes is None:
            return ()
        return zeros_like_parts(p, real_dtype(compute_dtype(p.dtype)), axes)

    def scalars(self, h: Any, t: Any) -> dict[str, Any]:
        """The weight of the new step."""
        del t
        return {"gain": 1 - h.b1}

    def leaf(self, h: Any, g: Any, mu: Any, v: Any, residual: Any) -> Any:
        axes = _axes(g.shape)
        v = average_squares(v, squared_modulus(g) + h.eps, h.b2, axes)
        step = clipped_rms(divide_by_root(g, v, axes), h.clipping_threshold)
        mu = ema(mu, step, h.b1, h.gain)
        if axes is None:
            return mu, mu, v, residual
        instability = squared_modulus(step - mu) + h.eps_residual
        residual = average_squares(residual, instability, h.b3, axes)
        return divide_by_root(mu, residual, axes), mu, v, residual


def _axes(shape: tuple[int, ...]) -> Axes:
    """The axes that are factored: the last two, of an array with elements."""
    return (len(shape) - 2, len(shape) - 1) if len(shape) > 1 and 0 not in shape else None


@recipe
def came(
    learning_rate: ScalarOrSchedule,
    b1: Scalar = 0.9,
    b2: Scalar = 0.999,
    b3: Scalar = 0.9999,
    eps: Scalar = 1e-30,
    eps_residual: Scalar = 1e-16,
    clipping_threshold: Scalar = 1.0,
    weight_decay: ScalarOrSchedule = 0.0,
    mask: Any = None,
    mu_dtype: Any = None,
) -> Chain:
    r"""CAME: Adafactor with steps scaled by their confidence, the distance from their mean.

    .. math:: u_t = -\eta_t \left(\frac{\mu_t}{\sqrt{\hat S_t}} + \lambda_t\, \theta_t\right)

    with the mean step :math:`\mu` and the factored mean square :math:`\hat S` of the steps'
    distances from it; see `scale_by_came`. The second moments take next to no memory.

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        b1: Decay of the mean step.
        b2: Decay of the squared gradients.
        b3: Decay of the squared residuals.
        eps: Added to squared gradients.
        eps_residual: Added to squared residuals.
        clipping_threshold: The largest root mean square of a leaf's step.
        weight_decay: :math:`\lambda`, a number or a `Schedule` of its own.
        mask: Which leaves decay; see `add_decayed_weights`. None for all.
        mu_dtype: Storage dtype of the mean step; by default the params' own, but at least
            float32.

    Returns:
        A chain of `scale_by_came`, `add_decayed_weights` and `scale_by_learning_rate`, with the
        slots `mu`, `v` and `residual`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, params = fnopt.came(1.0), {"w": jnp.ones(2)}
        >>> updates, _ = tx.update({"w": jnp.full(2, 8.0)}, tx.init(params), params)
        >>> updates["w"].round(3)
        Array([-0.1, -0.1], dtype=float32)

    Reference:
        Luo et al., 2023, arXiv:2307.02047.
    """
    numbers = (b1, b2, b3, eps, eps_residual, clipping_threshold)
    return chain(
        scale_by_came(*numbers, mu_dtype),
        add_decayed_weights(weight_decay, mask),
        scale_by_learning_rate(learning_rate),
    )

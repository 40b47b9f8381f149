"""DiffGrad's direction: Adam's, slowed down where the gradient hardly changes."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import (
    Scalar,
    Slot,
    Transformation,
    hyper,
    increment,
    map_leaves,
    slot_zeros,
    static,
    zero_count,
)
from fnopt.transforms import as_dtype, bias_correction, ema, nonzero, root, squared


class ScaleByDiffgradState(NamedTuple):
    """Step count, the averages of the gradient and of its square, and the last gradient."""

    count: jax.Array
    mu: Slot
    nu: Slot
    previous: Slot


class scale_by_diffgrad(Transformation):
    r"""Adam's direction times a friction that depends on how much the gradient changed.

    .. math::
        \mu_t &= \beta_1 \mu_{t-1} + (1-\beta_1)\, g_t, \qquad
        \nu_t = \beta_2 \nu_{t-1} + (1-\beta_2)\, |g_t|^2 \\
        \xi_t &= \frac{1}{1 + e^{-|g_{t-1} - g_t|}}, \qquad
        u_t = \xi_t\, \frac{\hat\mu_t}{\sqrt{\hat\nu_t} + \epsilon}

    :math:`\hat\mu_t` and :math:`\hat\nu_t` are corrected for their start at zero as in Adam, and
    :math:`g_0 = 0`. The friction :math:`\xi_t` is between 1/2 (no change) and 1.

    Args:
        b1: :math:`\beta_1`, decay of the mean.
        b2: :math:`\beta_2`, decay of the mean square.
        eps: :math:`\epsilon`, added to the root.
        mu_dtype: Storage dtype of `mu`; by default the params' own, but at least float32.

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

    b1: Scalar = hyper(default=0.9, ge=0, lt=1)
    b2: Scalar = hyper(default=0.999, ge=0, lt=1)
    eps: Scalar = hyper(default=1e-8, ge=0)
    mu_dtype: Any = static(default=None, convert=as_dtype)

    def init(self, params: Any) -> ScaleByDiffgradState:
        """Zero averages, and a zero gradient before the first."""
        mu = slot_zeros(params, self.mu_dtype)
        nu = slot_zeros(params, real=True)
        return ScaleByDiffgradState(zero_count(), mu, nu, slot_zeros(params))

    def update(
        self, updates: Any, state: ScaleByDiffgradState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, ScaleByDiffgradState]:
        """One step of both averages, their quotient, and the friction."""
        count = increment(state.count)

        def leaf(h: Any, g: Any, mu: Any, nu: Any, previous: Any) -> Any:
            mu = ema(mu, g, h.b1)
            nu = ema(nu, squared(g), h.b2)
            mu_hat = mu / bias_correction(h.b1, count)
            nu_hat = nu / bias_correction(h.b2, count)
            friction = jax.nn.sigmoid(jnp.abs(previous - g))
            u = friction * mu_hat / nonzero(root(nu_hat) + h.eps)
            # The stored gradient is made to depend on the direction, which never changes it unless
            # all is NaN anyway: XLA then writes it last, in place of the old one that the
            # direction was computed from. Without it a copy of the params' size would be kept.
            return u, mu, nu, jnp.where(jnp.isnan(u), u, g)

        slots = {"mu": state.mu, "nu": state.nu, "previous": state.previous}
        updates, *new = map_leaves(leaf, updates, hyper=self, outputs=4, **slots)
        return updates, ScaleByDiffgradState(count, *new)

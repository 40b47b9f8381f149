"""Adam's direction: a bias-corrected mean over a bias-corrected root mean square."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax

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


class ScaleByAdamState(NamedTuple):
    """Step count, and the averages of the gradient and of its square."""

    count: jax.Array
    mu: Slot
    nu: Slot


class scale_by_adam(Transformation):
    r"""Divides the mean gradient by its root mean square, both bias-corrected.

    .. math::
        \mu_t &= \beta_1 \mu_{t-1} + (1-\beta_1)\, g_t, \qquad
        \nu_t = \beta_2 \nu_{t-1} + (1-\beta_2)\, |g_t|^2 \\
        u_t &= \frac{\hat\mu_t}{\sqrt{\hat\nu_t + \bar\epsilon} + \epsilon}, \qquad
        \hat\mu_t = \frac{\mu_t}{1-\beta_1^t}, \quad \hat\nu_t = \frac{\nu_t}{1-\beta_2^t}

    With `nesterov`, :math:`\hat\mu_t = \beta_1 \mu_t / (1-\beta_1^{t+1}) +
    (1-\beta_1) g_t / (1-\beta_1^t)`.

    Args:
        b1: :math:`\beta_1`, decay of the mean.
        b2: :math:`\beta_2`, decay of the mean square.
        eps: :math:`\epsilon`, added to the root. With both epsilons zero, an element that never
            saw a gradient gets a zero update (0/0 is taken as 0).
        eps_root: :math:`\bar\epsilon`, added under the root. Hyper-gradients are finite without
            it too: the derivative of the root at 0 is taken as 0.
        mu_dtype: Storage dtype of `mu`; by default the params' own, but at least float32.
        nesterov: Whether to look ahead (Nadam).

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.scale_by_adam()
        >>> updates, state = tx.update({"w": jnp.full(2, 8.0)}, tx.init({"w": jnp.ones(2)}))
        >>> updates["w"].round(4), state.count
        (Array([1., 1.], dtype=float32), Array(1, dtype=int32))

    Reference:
        Kingma and Ba, 2014, arXiv:1412.6980; Dozat, 2016 (Nesterov).
    """

    b1: Scalar = hyper(default=0.9, ge=0, lt=1)
    b2: Scalar = hyper(default=0.999, ge=0, lt=1)
    eps: Scalar = hyper(default=1e-8, ge=0)
    eps_root: Scalar = hyper(default=0.0, ge=0)
    mu_dtype: Any = static(default=None, convert=as_dtype)
    nesterov: bool = static(default=False)

    def init(self, params: Any) -> ScaleByAdamState:
        """Zero averages: they are filled by the first updates, and bias correction knows it."""
        mu = slot_zeros(params, self.mu_dtype)
        return ScaleByAdamState(zero_count(), mu, slot_zeros(params, real=True))

    def update(
        self, updates: Any, state: ScaleByAdamState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, ScaleByAdamState]:
        """One step of both averages, and their quotient."""
        count = increment(state.count)

        def leaf(h: Any, g: Any, mu: Any, nu: Any) -> Any:
            mu = ema(mu, g, h.b1)
            nu = ema(nu, squared(g), h.b2)
            mu_hat = mu / bias_correction(h.b1, count)
            if self.nesterov:
                mu_hat = h.b1 * mu / bias_correction(h.b1, increment(count))
                mu_hat += (1 - h.b1) * g / bias_correction(h.b1, count)
            nu_hat = nu / bias_correction(h.b2, count)
            return mu_hat / nonzero(root(nu_hat + h.eps_root) + h.eps), mu, nu

        slots = {"mu": state.mu, "nu": state.nu}
        updates, mu, nu = map_leaves(leaf, updates, hyper=self, outputs=3, **slots)
        return updates, ScaleByAdamState(count, mu, nu)

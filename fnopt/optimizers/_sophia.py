"""Sophia: momentum divided by an estimate of the Hessian's diagonal."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import (
    Member,
    RealSlot,
    Scalar,
    ScalarOrSchedule,
    Slot,
    Transformation,
    as_transformation,
    hyper,
    map_leaves,
    slot_zeros,
    static,
)
from fnopt.errors import check_inexact
from fnopt.numerics import as_dtype, bias_correction, ema, safe_increment, zero_count
from fnopt.optimizers._recipe import clip_modulus, descend, recipe
from fnopt.transforms import Chain


class HutchinsonState(NamedTuple):
    """State of `hutchinson_estimator_diag_hessian`.

    Attributes:
        count: Number of estimates. The seed and the count determine the random signs.
    """

    count: jax.Array


class hutchinson_estimator_diag_hessian(Transformation):
    r"""Replace updates by an estimate of the diagonal of the Hessian.

    .. math:: \hat h = z \odot (H z), \qquad z_i = \pm 1

    with the Hessian :math:`H` and random signs :math:`z`. An estimate costs about two gradients.
    `update` needs the loss as a function of the parameters alone, as the extra argument `obj_fn`.

    Args:
        random_seed: The integer seed of the signs.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, x = fnopt.hutchinson_estimator_diag_hessian(), jnp.ones(2)
        >>> curve = lambda x: x[0] ** 2 + 3 * x[1] ** 2
        >>> tx.update(x, tx.init(x), x, obj_fn=curve)[0]
        Array([2., 6.], dtype=float32)

    Reference:
        Hutchinson, 1990; Bekas, Kokiopoulou and Saad, 2007.
    """

    State = HutchinsonState
    needs_params = True

    random_seed: int = static(default=0)

    def update(
        self,
        updates: Any,
        state: HutchinsonState,
        params: Any = None,
        *,
        obj_fn: Any,
        **extra_args: Any,
    ) -> tuple[Any, HutchinsonState]:
        """Return the estimate; the updates are ignored."""
        check_inexact(params, "params")
        # The key depends only on the seed and the count, so a restored run samples the same signs.
        key = jax.random.fold_in(jax.random.key(self.random_seed), state.count)
        leaves, treedef = jax.tree.flatten(params)
        signs = treedef.unflatten(
            [
                jax.random.rademacher(jax.random.fold_in(key, i), jnp.shape(p), jnp.int8).astype(
                    jnp.result_type(p)
                )
                for i, p in enumerate(leaves)
            ]
        )
        _, product = jax.jvp(jax.grad(obj_fn), (params,), (signs,))
        estimate = map_leaves(lambda h, z: h * z, product, signs=signs)
        return estimate, HutchinsonState(safe_increment(state.count))


class ScaleBySophiaState(NamedTuple):
    r"""State of `scale_by_sophia`.

    Attributes:
        count: :math:`t`, the number of steps.
        mu: :math:`\mu_t`, the moving average of the gradient.
        nu: :math:`\nu_t`, the moving average of the estimated Hessian diagonal.
        hessian_fn_state: The state of the estimator.
    """

    count: jax.Array
    mu: Slot
    nu: RealSlot
    hessian_fn_state: Any


class scale_by_sophia(Transformation):
    r"""Divide the averaged gradient by the averaged Hessian diagonal, and clip the quotient.

    .. math::
        \mu_t &= \beta_1 \mu_{t-1} + (1-\beta_1)\, g_t, \qquad
        u_t = \operatorname{clip}\left(\frac{\hat\mu_t}{\max(\gamma\, \nu_{t-1},\, \epsilon)},\,
        c\right) \\
        \nu_t &= \beta_2 \nu_{t-1} + (1-\beta_2)\, \hat h_t \quad \text{every } k \text{ steps}

    where :math:`\hat h_t` is the estimated diagonal, and :math:`\hat\mu_t` is bias-corrected as in
    Adam. The paper divides by :math:`\nu_t`, without bias correction. In fnopt, a step uses the
    previous average :math:`\nu_{t-1}`, so the first update consists of signs. Non-finite elements
    of an estimate don't change :math:`\nu`. A non-finite gradient makes :math:`\mu` NaN, as in
    Adam. To skip such steps, wrap the optimizer in `apply_if_finite`.

    Args:
        b1: :math:`\beta_1`, decay rate of :math:`\mu`, the moving average of the gradient.
        b2: :math:`\beta_2`, decay rate of :math:`\nu`, the moving average of the estimates.
        eps: :math:`\epsilon`, the lower bound of the divisor.
        gamma: :math:`\gamma`, a factor of the divisor; with smaller values, more elements are
            clipped.
        clip_threshold: :math:`c`, the largest modulus of an element; None disables clipping.
        update_interval: :math:`k`, the number of steps between two estimates.
        hessian_diagonal_fn: A transform that estimates the Hessian's diagonal. The arguments of its
            `update` are the gradients, the params and all extra arguments. None uses
            `hutchinson_estimator_diag_hessian()`, which needs `obj_fn` (Sophia-H).
            `gauss_newton_bartlett_estimator_diag_hessian()` needs `logits_fn` (Sophia-G).
        mu_dtype: Storage dtype of `mu`; None uses the wider of float32 and the params' dtype.

    Example:
        >>> import jax, jax.numpy as jnp, fnopt
        >>> curve = lambda x: x[0] ** 2 + 300 * x[1] ** 2
        >>> tx, x = fnopt.scale_by_sophia(gamma=1.0, b2=0.0, update_interval=1), jnp.ones(2)
        >>> first, state = tx.update(jax.grad(curve)(x), tx.init(x), x, obj_fn=curve)
        >>> second, state = tx.update(jax.grad(curve)(x) / 2, state, x, obj_fn=curve)
        >>> print(first, second.round(2))
        [1. 1.] [0.75 0.75]

    Reference:
        Liu, Li, Hall, Liang and Ma, 2023, arXiv:2305.14342.
    """

    needs_params = True

    # b1, b2, gamma and the interval are from Liu et al. (2023).
    b1: Scalar = hyper(default=0.965, ge=0, lt=1)
    b2: Scalar = hyper(default=0.99, ge=0, lt=1)
    eps: Scalar = hyper(default=1e-8, gt=0)
    gamma: Scalar = hyper(default=0.01, gt=0)
    clip_threshold: Scalar | None = hyper(default=1.0, gt=0, infinite=True)
    update_interval: int = static(default=10, least=1)
    hessian_diagonal_fn: Any = None
    mu_dtype: Any = static(default=None, convert=as_dtype)

    def __post_init__(self) -> None:
        estimator = self.hessian_diagonal_fn
        estimator = hutchinson_estimator_diag_hessian() if estimator is None else estimator
        name = "scale_by_sophia: hessian_diagonal_fn"
        self._set("hessian_diagonal_fn", as_transformation(estimator, name))
        super().__post_init__()

    def members(self, state: Any = None) -> tuple[Member, ...]:
        """Return the estimator."""
        inner = None if state is None else state.hessian_fn_state
        return (Member("hessian", self.hessian_diagonal_fn, inner),)

    def init(self, params: Any) -> ScaleBySophiaState:
        """Return zero averages, and the estimator's state."""
        mu, nu = slot_zeros(params, self.mu_dtype), slot_zeros(params, real=True)
        return ScaleBySophiaState(zero_count(), mu, nu, self.hessian_diagonal_fn.init(params))

    def update(
        self, updates: Any, state: ScaleBySophiaState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, ScaleBySophiaState]:
        """Return the clipped quotient; estimate the Hessian's diagonal if due."""
        count = safe_increment(state.count)
        numbers = {"b1": self.b1, "eps": self.eps, "gamma": self.gamma}
        if self.clip_threshold is not None:
            numbers["limit"] = self.clip_threshold
        # The correction is computed once; `map_leaves` casts it to the dtype of each leaf.
        b1 = jnp.asarray(self.b1, jnp.result_type(float))
        numbers["correction"] = bias_correction(b1, count)

        def step_leaf(h: Any, g: Any, mu: Any, nu: Any) -> Any:
            mu = ema(mu, g, h["b1"])
            # As in the paper, an element without positive curvature has the divisor eps, and is
            # clipped to a step along the sign.
            u = (mu / h["correction"]) / jnp.maximum(h["gamma"] * nu, h["eps"])
            return (clip_modulus(u, h["limit"]) if "limit" in h else u), mu, nu

        new, mu, _ = map_leaves(
            step_leaf, updates, hyper=numbers, outputs=3, mu=state.mu, nu=state.nu
        )
        estimator = self.hessian_diagonal_fn

        def estimate() -> tuple[Any, Any]:
            diagonal, inner = estimator.update(
                updates, state.hessian_fn_state, params, **extra_args
            )

            def average(b2: Any, h: Any, nu: Any) -> Any:
                new = ema(nu, jnp.real(h), b2)
                # A non-finite average would stay non-finite, and all later steps would be 0 or NaN.
                return h, jnp.where(jnp.isfinite(new), new, nu)

            nu = map_leaves(average, diagonal, hyper=self.b2, outputs=2, nu=state.nu)[1]
            like = state.hessian_fn_state
            return nu, jax.tree.map(lambda x, y: x.astype(y.dtype), inner, like)

        is_due = state.count % self.update_interval == 0
        # `select` instead of `cond` would estimate the diagonal in every step.
        nu, inner = jax.lax.cond(is_due, estimate, lambda: (state.nu, state.hessian_fn_state))
        return new, ScaleBySophiaState(count, mu, nu, inner)


@recipe
def sophia(
    learning_rate: ScalarOrSchedule,
    b1: Scalar = 0.965,
    b2: Scalar = 0.99,
    eps: Scalar = 1e-8,
    weight_decay: ScalarOrSchedule = 1e-4,
    weight_decay_mask: Any = None,
    gamma: Scalar = 0.01,
    clip_threshold: Scalar | None = 1.0,
    update_interval: int = 10,
    hessian_diagonal_fn: Any = None,
    mu_dtype: Any = None,
) -> Chain:
    r"""Sophia: clipped steps along the averaged gradient over the averaged Hessian diagonal.

    .. math:: u_t = -\eta_t \left(\operatorname{clip}\left(\frac{\hat\mu_t}
              {\max(\gamma\, \nu_{t-1},\, \epsilon)},\, c\right) + \lambda_t\, \theta_t\right)

    `scale_by_sophia` defines the averages :math:`\hat\mu` and :math:`\nu`.

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        b1: :math:`\beta_1`, decay rate of :math:`\mu`, the moving average of the gradient.
        b2: :math:`\beta_2`, decay rate of :math:`\nu`, the average of the Hessian diagonal.
        eps: :math:`\epsilon`, the lower bound of the divisor.
        weight_decay: :math:`\lambda`, the decoupled weight decay; a number or a `Schedule`.
        weight_decay_mask: The leaves with weight decay; see `add_decayed_weights`. None means all
            leaves.
        gamma: :math:`\gamma`, a factor of the divisor; with smaller values, more elements are
            clipped.
        clip_threshold: :math:`c`, the largest modulus of an element; None disables clipping.
        update_interval: The number of steps between two estimates of the Hessian diagonal.
        hessian_diagonal_fn: The transform that estimates the diagonal; see `scale_by_sophia`.
        mu_dtype: Storage dtype of `mu`; None uses the wider of float32 and the params' dtype.

    Returns:
        A chain of `scale_by_sophia`, `add_decayed_weights` and `scale_by_learning_rate`. With the
        default estimator, `update` needs `obj_fn`, the loss as a function of the params.

    Example:
        >>> import jax, jax.numpy as jnp, fnopt
        >>> curve = lambda x: x[0] ** 2 + 300 * x[1] ** 2
        >>> tx, x = fnopt.sophia(0.5, weight_decay=0.0), jnp.ones(2)
        >>> updates, _ = tx.update(jax.grad(curve)(x), tx.init(x), x, obj_fn=curve)
        >>> fnopt.apply_updates(x, updates)
        Array([0.5, 0.5], dtype=float32)

    Reference:
        Liu, Li, Hall, Liang and Ma, 2023, arXiv:2305.14342.
    """
    direction = scale_by_sophia(
        b1, b2, eps, gamma, clip_threshold, update_interval, hessian_diagonal_fn, mu_dtype
    )
    return descend(direction, learning_rate, weight_decay, weight_decay_mask)

"""Learned step sizes: Mechanic, hypergradient descent, and distance over gradients."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import (
    CustomSlot,
    Leafwise,
    Scalar,
    Slot,
    cast_like,
    global_norm,
    hyper,
    map_leaves,
    slot_copy,
    slot_zeros,
    static,
)
from fnopt.numerics import as_dtype, compute_dtype, joint_norm, nonzero, real_dtype, safe_sqrt
from fnopt.transforms._chain import Wrapper
from fnopt.transforms._tree_algebra import inner as inner_product
from fnopt.transforms._tree_algebra import numbers, real_dtype_of, real_sum, scale_tree


class MechanizeState(NamedTuple):
    """Rewards, largest products, sums of squares and scales of the bets, and the initial params."""

    r: jax.Array
    m: jax.Array
    v: jax.Array
    s: jax.Array
    x0: Slot
    inner_state: Any


class mechanize(Wrapper):
    r"""Learn the scale of an optimizer's updates by online learning (Mechanic).

    .. math:: \theta_{t+1} = \theta_0 + \Big(\sum_i s_{t,i}\Big)\, \Delta_{t+1}, \qquad
              \Delta_{t+1} = \Delta_t + \mathrm{inner}(g_t)

    The scales :math:`s` grow with the reward :math:`\langle g_t, -\Delta_t \rangle`. The optimizer
    should have a learning rate of order one, or a schedule of this order. As in the authors'
    version for JAX, a reward is clipped to the largest product of all previous steps. A negative
    sum of rewards is replaced by zero.

    Args:
        inner: The optimizer, a `Transformation` or any (init, update) pair.
        weight_decay: The strength of weight decay, relative to the gradient's norm over the params'
            norm.
        eps: A small constant that keeps quotients finite.
        s_init: The initial scales.
        num_betas: The number of scales; their decays are :math:`1 - 10^{-i}`.

    Example:
        >>> import jax, jax.numpy as jnp, fnopt
        >>> tx, params = fnopt.mechanize(fnopt.sgd(1.0)), {"w": jnp.asarray([2.0])}
        >>> def step(carry, _):
        ...     params, state = carry
        ...     updates, state = tx.update(params, state, params)
        ...     return (fnopt.apply_updates(params, updates), state), None
        >>> (params, _), _ = jax.lax.scan(step, (params, tx.init(params)), length=300)
        >>> print(abs(params["w"]) < 0.1)
        [ True]

    Reference:
        Cutkosky, Defazio and Mehta, 2023, arXiv:2306.00144.
    """

    needs_params = True

    weight_decay: Scalar = hyper(default=1e-2, ge=0)
    eps: Scalar = hyper(default=1e-8, ge=0)
    s_init: Scalar = hyper(default=1e-6, gt=0)
    num_betas: int = static(default=6, least=1)

    def init(self, params: Any) -> MechanizeState:
        """Return the state before the first bet."""
        dtype = real_dtype_of(params)
        # Separate arrays, because a donated state may not contain an array twice.
        r, m, v = (jnp.zeros(self.num_betas, dtype) for _ in range(3))
        s = jnp.full(self.num_betas, jnp.array(self.s_init, dtype))
        return MechanizeState(r, m, v, s, slot_copy(params), self.inner.init(params))

    def update(
        self, updates: Any, state: MechanizeState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, MechanizeState]:
        """Return the updates to the point of the new scales."""
        dtype = state.s.dtype
        h = numbers(self, dtype, skip=("inner",))
        step, inner_state = self.inner.update(updates, state.inner_state, params, **extra_args)
        total = jnp.sum(state.s)
        decay = h.weight_decay * total * global_norm(updates).astype(dtype)
        decay = decay / (global_norm(params).astype(dtype) + h.eps)
        scalars = {"decay": decay, "total": total, "eps": h.eps}

        # The sum of inner updates, Delta, isn't stored: -Delta = (x0 - p) / total.
        def product_leaf(h: Any, g: Any, p: Any, x0: Any) -> Any:
            return jnp.conj(g + h["decay"] * p) * ((x0 - p) / (h["total"] + h["eps"]))

        products = map_leaves(product_leaf, updates, hyper=scalars, params=params, x0=state.x0)
        reward = real_sum(products, dtype)
        r, m, v, s = _update_bets(state, reward, h, self.num_betas)

        def step_leaf(h: Any, u: Any, p: Any, x0: Any) -> Any:
            minus_delta = (x0 - p) / (h["total"] + h["eps"])
            return x0 - h["scale"] * (minus_delta - u) - p

        scalars["scale"] = jnp.sum(s)
        new_updates = map_leaves(step_leaf, step, hyper=scalars, params=params, x0=state.x0)
        inner_state = cast_like(inner_state, state.inner_state)
        return new_updates, MechanizeState(r, m, v, s, state.x0, inner_state)


def _update_bets(state: MechanizeState, reward: jax.Array, h: Any, n: int) -> tuple[Any, ...]:
    """Update the rewards, largest products, sums of squares and scales of the bets."""
    # The decays of Cutkosky et al. (2023): 0.9, 0.99, ... The scales are added, so the best decay
    # dominates without tuning.
    betas = jnp.asarray([1.0 - 0.1**i for i in range(1, n + 1)], reward.dtype)
    clipped = jnp.clip(reward, -state.m, state.m)
    m = jnp.maximum(betas * state.m, jnp.abs(reward) + h.eps)
    v = betas**2 * state.v + reward**2
    r = betas * state.r + clipped * state.s
    wealth = h.s_init / n * m + jnp.maximum(r, jnp.zeros_like(r))
    floor = jnp.finfo(v.dtype).tiny  # keeps the derivative of the root finite for v = 0
    return r, m, v, wealth / (jnp.sqrt(jnp.maximum(v, floor)) + h.eps)


class HypergradientState(NamedTuple):
    """Learning rate, last direction, and inner state."""

    learning_rate: jax.Array
    direction: Slot
    inner_state: Any


class hypergradient(Wrapper):
    r"""Adapt the learning rate by hypergradient descent.

    .. math:: u_t = -\eta_t\, d_t, \qquad \eta_t = \max(0,\, \eta'), \quad \eta' = \begin{cases}
              \eta_{t-1} + \beta\, \langle g_t, d_{t-1} \rangle \\
              \eta_{t-1} \left(1 + \beta\, \dfrac{\langle g_t, d_{t-1} \rangle}
              {\lVert g_t \rVert \lVert d_{t-1} \rVert}\right) & \text{normalized} \end{cases}

    The derivative of the loss after the last step with respect to the learning rate of this step is
    :math:`-\langle g_t, d_{t-1} \rangle`. The learning rate increases while successive steps have
    similar directions, and decreases when the direction reverses. Updates include the minus sign of
    descent. A learning rate below zero, which the paper allows, is set to zero here. A non-finite
    product doesn't change the learning rate.

    Args:
        inner: The direction, without a learning rate: `identity()` for plain descent (SGD-HD),
            `trace(0.9, nesterov=True)` (SGDN-HD), `scale_by_adam()` (Adam-HD).
        learning_rate: :math:`\eta_0`.
        hyper_rate: :math:`\beta`, the learning rate of the learning rate.
        normalized: Whether the change is relative, by the cosine between the gradient and the
            direction, so that :math:`\beta` is independent of the gradients' scale.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, params = fnopt.hypergradient(fnopt.identity(), 0.5, 0.25), {"w": jnp.ones(1)}
        >>> updates, state = tx.update({"w": jnp.ones(1)}, tx.init(params), params)
        >>> updates, state = tx.update({"w": jnp.ones(1)}, state, params)
        >>> updates, state.learning_rate
        ({'w': Array([-0.75], dtype=float32)}, Array(0.75, dtype=float32))

    Reference:
        Baydin, Cornish, Martinez Rubio, Schmidt and Wood, 2018, arXiv:1703.04782.
    """

    learning_rate: Scalar = hyper(ge=0)
    hyper_rate: Scalar = hyper(ge=0)
    normalized: bool = static(default=False)

    def init(self, params: Any) -> HypergradientState:
        """Return the initial learning rate, and a zero direction."""
        # A copy, because donating the state would delete the buffer of `self.learning_rate`.
        rate = jnp.array(self.learning_rate, real_dtype_of(params))
        return HypergradientState(rate, slot_zeros(params), self.inner.init(params))

    def update(
        self, updates: Any, state: HypergradientState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, HypergradientState]:
        """Step along the new direction, with the adapted learning rate."""
        rate = self._rate(updates, state)
        new_direction, inner_state = self.inner.update(
            updates, state.inner_state, params, **extra_args
        )
        # `map_leaves` casts the direction to the storage dtype of the slot.
        direction = map_leaves(
            lambda d, old: (d, d), new_direction, outputs=2, last=state.direction
        )[1]
        return scale_tree(-rate, new_direction), HypergradientState(rate, direction, inner_state)

    def _rate(self, gradients: Any, state: HypergradientState) -> jax.Array:
        """Compute the learning rate of this step from the last direction."""
        last_rate = state.learning_rate
        dtype = last_rate.dtype
        h = numbers(self, dtype, skip=("inner",))
        if self.normalized:
            cosine = inner_product(_normalize(gradients), _normalize(state.direction)).astype(dtype)
            # The relative change is at most `hyper_rate`, independently of the scale of the loss.
            rate = last_rate * (1 + h.hyper_rate * cosine)
        else:
            product = inner_product(gradients, state.direction).astype(dtype)
            rate = last_rate + h.hyper_rate * product
        # A non-finite learning rate would stay non-finite in all later steps.
        return jnp.where(jnp.isfinite(rate), jnp.maximum(rate, jnp.zeros_like(rate)), last_rate)


def _normalize(tree: Any) -> Any:
    """Divide a tree by its global norm, unless the norm is zero."""
    norm = nonzero(global_norm(tree))
    return map_leaves(lambda x: x / norm.astype(x.real.dtype), tree)


class ScaleByDistanceOverGradientsState(NamedTuple):
    """Per leaf: largest distance from the initial value, norm of all gradients, initial value."""

    max_dist: CustomSlot
    grad_norm: CustomSlot
    init_params: Slot


class scale_by_distance_over_gradients(Leafwise):
    r"""Scale every leaf by its distance from the initial value, divided by its gradients' norm.

    .. math:: u_t = c\, \frac{\max_{i \le t} \lVert \theta_i - \theta_0 \rVert}
              {\sqrt{\sum_{i \le t} \lVert g_i \rVert^2 + \epsilon}}\, g_t

    The initial distance is :math:`r\,(1 + \lVert \theta_0 \rVert)`. `dog` uses one step size for
    all leaves.

    Args:
        reps_rel: :math:`r`.
        eps: :math:`\epsilon`.
        param_dtype: Storage dtype of the initial params; None uses the dtype of the params, at
            least float32.
        global_scale: :math:`c`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, params = fnopt.scale_by_distance_over_gradients(0.5), {"w": jnp.asarray([3.0, 4.0])}
        >>> tx.update({"w": jnp.asarray([0.0, 2.0])}, tx.init(params), params)[0]["w"].round(1)
        Array([0., 3.], dtype=float32)

    Reference:
        Ivgi, Hinder and Carmon, 2023, arXiv:2302.12022.
    """

    State = ScaleByDistanceOverGradientsState
    fill: ClassVar[Any] = {"init_params": "params"}
    storage: ClassVar[Any] = {"init_params": "param_dtype"}
    needs_params = True

    # Ivgi et al. (2023), section 3: the first distance is 1e-6 (1 + |x|).
    reps_rel: Scalar = hyper(default=1e-6, ge=0)
    eps: Scalar = hyper(default=1e-8, ge=0)
    param_dtype: Any = static(default=None, convert=as_dtype)
    global_scale: Scalar = hyper(default=1.0)

    def start(self, slot: str, p: Any) -> Any:
        """Return the initial distance, and a zero norm of gradients."""
        dtype = real_dtype(compute_dtype(p.dtype))
        if slot == "grad_norm":
            return jnp.zeros((), dtype)
        return jnp.asarray(self.reps_rel, dtype) * (1 + global_norm(p).astype(dtype))

    def scalars(self, h: Any, t: Any) -> dict[str, Any]:
        """Compute the square root of epsilon, which is combined with norms instead of squares."""
        return {"eps_root": safe_sqrt(h.eps)}

    def leaf(self, h: Any, g: Any, p: Any, max_dist: Any, norm: Any, start: Any) -> Any:
        max_dist = jnp.maximum(max_dist, global_norm(p - start))
        # Norms instead of squared norms, which may overflow.
        norm = joint_norm([norm, global_norm(g).astype(norm.dtype)])
        step = h.global_scale * max_dist / nonzero(joint_norm([norm, h.eps_root]))
        return step * g, max_dist, norm, start

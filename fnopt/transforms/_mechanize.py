"""Mechanic: a learned scale of any optimizer's updates."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import (
    Scalar,
    Slot,
    cast_like,
    global_norm,
    hyper,
    map_leaves,
    slot_copy,
    static,
)
from fnopt.transforms._tree_algebra import numbers, real_dtype_of, real_sum
from fnopt.transforms._wrapper import Wrapper


class MechanizeState(NamedTuple):
    """Bets of several decays: rewards, largest products, their squares, scales; the start."""

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
    should have a learning rate of order one, or its schedule. As in the authors' version for JAX, a
    reward is clipped by the largest so far. It may be negative; the bet is then zero.

    Args:
        inner: The optimizer, fnopt's or any (init, update) pair.
        weight_decay: Pulls towards zero, in units of the gradient's norm over that of the params.
        eps: Keeps quotients finite.
        s_init: What the scales begin with.
        num_betas: How many scales there are; their decays are :math:`1 - 10^{-i}`.

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
        """No bets so far."""
        dtype = real_dtype_of(params)
        r, m, v = (jnp.zeros(self.num_betas, dtype) for _ in range(3))
        s = jnp.full(self.num_betas, jnp.array(self.s_init, dtype))
        return MechanizeState(r, m, v, s, slot_copy(params), self.inner.init(params))

    def update(
        self, updates: Any, state: MechanizeState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, MechanizeState]:
        """The way from here to the scaled point."""
        dtype = state.s.dtype
        h = numbers(self, dtype, skip=("inner",))
        way, inner_state = self.inner.update(updates, state.inner_state, params, **extra_args)
        total = jnp.sum(state.s)
        decay = h.weight_decay * total * global_norm(updates).astype(dtype)
        decay = decay / (global_norm(params).astype(dtype) + h.eps)
        scalars = {"decay": decay, "total": total, "eps": h.eps}

        def product(h: Any, g: Any, p: Any, x0: Any) -> Any:
            return jnp.conj(g + h["decay"] * p) * ((x0 - p) / (h["total"] + h["eps"]))

        products = map_leaves(product, updates, hyper=scalars, params=params, x0=state.x0)
        reward = real_sum(products, dtype)
        r, m, v, s = _bets(state, reward, h, self.num_betas)

        def move(h: Any, u: Any, p: Any, x0: Any) -> Any:
            before = (x0 - p) / (h["total"] + h["eps"])
            return x0 - h["scale"] * (before - u) - p

        scalars["scale"] = jnp.sum(s)
        moved = map_leaves(move, way, hyper=scalars, params=params, x0=state.x0)
        inner_state = cast_like(inner_state, state.inner_state)
        return moved, MechanizeState(r, m, v, s, state.x0, inner_state)


def _bets(state: MechanizeState, reward: jax.Array, h: Any, n: int) -> tuple[Any, ...]:
    """The rewards, largest products, squares and scales after a product of gradient and way."""
    betas = jnp.asarray([1.0 - 0.1**i for i in range(1, n + 1)], reward.dtype)
    clipped = jnp.clip(reward, -state.m, state.m)
    m = jnp.maximum(betas * state.m, jnp.abs(reward) + h.eps)
    v = betas**2 * state.v + reward**2
    r = betas * state.r + clipped * state.s
    wealth = h.s_init / n * m + jnp.maximum(r, jnp.zeros_like(r))
    floor = jnp.finfo(v.dtype).tiny  # a finite slope where nothing was seen
    return r, m, v, wealth / (jnp.sqrt(jnp.maximum(v, floor)) + h.eps)

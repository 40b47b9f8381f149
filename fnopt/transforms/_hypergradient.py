"""Hypergradient descent on the learning rate."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import Scalar, Slot, global_norm, hyper, map_leaves, nonzero, slot_zeros, static
from fnopt.transforms._tree_algebra import inner as inner_product
from fnopt.transforms._tree_algebra import numbers, real_dtype_of, scale_tree
from fnopt.transforms._wrapper import Wrapper


class HypergradientState(NamedTuple):
    """The learning rate, the last direction, and the inner state."""

    learning_rate: jax.Array
    direction: Slot
    inner_state: Any


class hypergradient(Wrapper):
    r"""Adapt the learning rate of a direction by the hypergradient.

    .. math:: u_t = -\eta_t\, d_t, \qquad \eta_t = \max(0,\, \eta'), \quad \eta' = \begin{cases}
              \eta_{t-1} + \beta\, \langle g_t, d_{t-1} \rangle \\
              \eta_{t-1} \left(1 + \beta\, \dfrac{\langle g_t, d_{t-1} \rangle}
              {\lVert g_t \rVert \lVert d_{t-1} \rVert}\right) & \text{normalized} \end{cases}

    The loss after the last step has the derivative :math:`-\langle g_t, d_{t-1} \rangle` with
    respect to the rate of that step. The rate grows while steps agree, and shrinks where they turn
    back. The minus sign of descent is in it. A rate below zero, which the paper allows, is zero
    here; a product that isn't finite doesn't change the rate.

    Args:
        inner: The direction, without a learning rate: `identity()` for plain descent (SGD-HD),
            `trace(0.9, nesterov=True)` (SGDN-HD), `scale_by_adam()` (Adam-HD).
        learning_rate: :math:`\eta_0`.
        hyper_rate: :math:`\beta`, the rate of the rate.
        normalized: Whether the change is relative, by the cosine between gradient and direction,
            so that :math:`\beta` doesn't depend on the size of gradients.

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
        """The first rate, and no direction."""
        rate = jnp.array(self.learning_rate, real_dtype_of(params))
        return HypergradientState(rate, slot_zeros(params), self.inner.init(params))

    def update(
        self, updates: Any, state: HypergradientState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, HypergradientState]:
        """A step along the new direction, with the rate that the last one asks for."""
        rate = self._rate(updates, state)
        new, inner_state = self.inner.update(updates, state.inner_state, params, **extra_args)
        kept = map_leaves(lambda d, old: (d, d), new, outputs=2, last=state.direction)[1]
        return scale_tree(-rate, new), HypergradientState(rate, kept, inner_state)

    def _rate(self, gradients: Any, state: HypergradientState) -> jax.Array:
        before = state.learning_rate
        h = numbers(self, before.dtype, skip=("inner",))
        if self.normalized:
            cosine = inner_product(_unit(gradients), _unit(state.direction)).astype(before.dtype)
            rate = before * (1 + h.hyper_rate * cosine)
        else:
            product = inner_product(gradients, state.direction).astype(before.dtype)
            rate = before + h.hyper_rate * product
        return jnp.where(jnp.isfinite(rate), jnp.maximum(rate, jnp.zeros_like(rate)), before)


def _unit(tree: Any) -> Any:
    length = nonzero(global_norm(tree))
    return map_leaves(lambda x: x / length.astype(x.real.dtype), tree)

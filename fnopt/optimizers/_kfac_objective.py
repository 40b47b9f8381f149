"""The mean loss of a batch around some params: value, gradient, and the quadratic model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from fnopt.core import cast_like

if TYPE_CHECKING:
    from fnopt.curvature import Combination, KroneckerModel


class Objective:
    r"""The mean loss plus :math:`\tfrac\eta2 \|\theta\|^2`, from one pass through the model.

    Args:
        model: The model with its batch.
        params: Where it is taken.
        l2: :math:`\eta`.
    """

    def __init__(self, model: KroneckerModel, params: Any, l2: jax.Array) -> None:
        self.model, self.params, self.l2 = model, params, l2
        self.outputs, self.push = jax.linearize(model.outputs, params)
        self.wide = jax.tree.map(lambda p: p.astype(model.dtype), params)

    def value_and_gradient(self) -> tuple[jax.Array, Any]:
        """The gradient is float32 or wider."""
        value, slope = jax.value_and_grad(self.model.mean_loss)(self.outputs)
        (gradient,) = jax.linear_transpose(self.push, self.params)(slope)
        gradient = jax.tree.map(lambda g, p: g.astype(p.dtype) + self.l2 * p, gradient, self.wide)
        return value + self._penalty(self.wide), gradient

    def best(self, gradient: Any, directions: tuple[Any, Any], damping: jax.Array) -> Combination:
        """The combination of two directions that minimises the damped quadratic model."""
        from fnopt.curvature import best_combination

        slope = jax.grad(self.model.mean_loss)
        return best_combination(
            lambda v: self.push(cast_like(v, self.params)),
            lambda v: jax.jvp(slope, (self.outputs,), (v,))[1],
            gradient,
            directions,
            damping,
            self.l2,
        )

    def at(self, params: Any) -> jax.Array:
        """The value at other params."""
        wide = jax.tree.map(lambda p: p.astype(self.model.dtype), params)
        return self.model.mean_loss(self.model.outputs(params)) + self._penalty(wide)

    def _penalty(self, params: Any) -> jax.Array:
        squares = [jnp.sum(p * p) for p in jax.tree.leaves(params)]
        return self.l2 / 2 * sum(squares[1:], squares[0])

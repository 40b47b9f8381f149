"""The objective of K-FAC: the mean loss of a batch, and its quadratic model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import cast_like
from fnopt.errors import check_batch, leaf_text, leaves_with_names
from fnopt.numerics import is_static_zero

if TYPE_CHECKING:
    from fnopt.curvature import Combination, KroneckerModel, Matrices, StackedDirection


class Objective:
    r"""The mean loss plus :math:`\tfrac\eta2 \|\theta\|^2`, from one pass through the model.

    Args:
        model: The model with its batch.
        params: The parameters at which the objective is evaluated.
        l2: :math:`\eta`; the penalty isn't computed if :math:`\eta` is a concrete 0.
    """

    def __init__(self, model: KroneckerModel, params: Any, l2: Any) -> None:
        self.model, self.params = model, params
        self.l2, self._penalised = jnp.asarray(l2).astype(model.dtype), not is_static_zero(l2)
        self._own = model.own(params)
        # One pass through the model gives the value and all products with the model's Jacobian.
        self.outputs, self._push = jax.linearize(model.outputs, self._own)
        self.wide = jax.tree.map(lambda p: p.astype(model.dtype), params)

    def value_and_gradient(self) -> tuple[jax.Array, Any, jax.Array]:
        """Value, gradient (float32 or wider), and the rounding error of the value."""
        value, slope = jax.value_and_grad(self.model.mean_loss)(self.outputs)
        (gradient,) = jax.linear_transpose(self._push, self._own)(slope)
        gradient = jax.tree.map(lambda g, p: g.astype(p.dtype), gradient, self.wide)
        value, gradient = self.model.total((value, gradient))
        if self._penalised:
            gradient = jax.tree.map(lambda g, p: g + self.l2 * p, gradient, self.wide)
        return value + self._penalty(self.wide), gradient, self._noise(value, slope)

    def _noise(self, value: jax.Array, slope: jax.Array) -> jax.Array:
        """Combine the independent rounding errors of sums and of the model's outputs."""
        dtypes = [jnp.result_type(p) for p in jax.tree.leaves(self.params)]
        eps = max(float(jnp.finfo(d).eps) for d in dtypes)
        size = self.outputs.size * self.model.devices
        of_outputs = self.model.total(jnp.sum(jnp.abs(slope * self.outputs))) / size**0.5
        return 8 * (jnp.finfo(value.dtype).eps * jnp.abs(value) + eps * of_outputs)

    def best(
        self,
        gradient: Matrices,
        directions: tuple[StackedDirection, StackedDirection],
        damping: jax.Array,
    ) -> Combination:
        """Return the combination of two directions that minimizes the damped quadratic model."""
        from fnopt.curvature import best_combination

        return best_combination(
            lambda v: self._push(self.model.own(cast_like(v, self.params))),
            self.model.hessian_product(self.outputs),
            gradient,
            directions,
            damping,
            self.l2,
            self.model.total,
        )

    def value_at(self, params: Any) -> jax.Array:
        """Return the objective at other parameters."""
        wide = jax.tree.map(lambda p: p.astype(self.model.dtype), params)
        share = self.model.mean_loss(self.model.outputs(self.model.own(params)))
        return self.model.total(share) + self._penalty(wide)

    def _penalty(self, params: Any) -> jax.Array:
        if not self._penalised:
            return jnp.zeros((), self.model.dtype)
        # Zero without `l2`, even for params whose squares overflow.
        squares = [jnp.sum(p * (self.l2 / 2 * p)) for p in jax.tree.leaves(params)]
        return sum(squares[1:], squares[0])


class ExampleShapes(NamedTuple):
    """Shapes and dtypes of the leaves of a batch, without the example axis."""

    tree: Any
    leaves: tuple[tuple[tuple[int, ...], Any], ...]

    @property
    def batch(self) -> Any:
        """A batch of one example, as shapes."""
        leaves = [jax.ShapeDtypeStruct((1, *shape), dtype) for shape, dtype in self.leaves]
        return jax.tree.unflatten(self.tree, leaves)


def example_shapes(batch: Any) -> ExampleShapes:
    """The shapes of one example, from a batch or the shapes of a batch."""
    if isinstance(batch, ExampleShapes):
        return batch
    batch = jax.tree.map(lambda x: x if hasattr(x, "dtype") else jnp.asarray(x), batch)
    check_batch([(leaf_text(path), leaf) for path, leaf in leaves_with_names(batch)[0]], "kfac")
    leaves, tree = jax.tree.flatten(batch)
    return ExampleShapes(tree, tuple((tuple(x.shape[1:]), x.dtype) for x in leaves))

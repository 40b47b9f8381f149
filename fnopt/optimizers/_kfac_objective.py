"""Objective of K-FAC: the mean loss of a batch with an L2 penalty, and its quadratic model."""

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
    r"""Mean loss of a batch plus the penalty :math:`\tfrac\eta2 \|\theta\|^2`.

    Args:
        model: The model and its batch.
        params: :math:`\theta`.
        l2: :math:`\eta`. The penalty isn't computed if :math:`\eta` is a concrete 0.
    """

    def __init__(self, model: KroneckerModel, params: Any, l2: Any) -> None:
        self.model, self.params = model, params
        self.l2, self._has_penalty = jnp.asarray(l2).astype(model.dtype), not is_static_zero(l2)
        self._local_params = model.mark_varying(params)
        # One pass through the model computes the outputs and linearizes them for all products with
        # the Jacobian.
        self.outputs, self._jvp = jax.linearize(model.outputs, self._local_params)
        self._wide_params = jax.tree.map(lambda p: p.astype(model.dtype), params)

    def value_and_gradient(self) -> tuple[jax.Array, Any, jax.Array]:
        """Return the value, the gradient in at least float32, and the value's rounding error."""
        value, cotangent = jax.value_and_grad(self.model.mean_loss)(self.outputs)
        (gradient,) = jax.linear_transpose(self._jvp, self._local_params)(cotangent)
        gradient = jax.tree.map(lambda g, p: g.astype(p.dtype), gradient, self._wide_params)
        value, gradient = self.model.total((value, gradient))
        if self._has_penalty:
            gradient = jax.tree.map(lambda g, p: g + self.l2 * p, gradient, self._wide_params)
        value_error = self._rounding_error(value, cotangent)
        return value + self._penalty(self._wide_params), gradient, value_error

    def _rounding_error(self, value: jax.Array, cotangent: jax.Array) -> jax.Array:
        """Estimate the rounding error of the value, from its sum and from the model's outputs."""
        dtypes = [jnp.result_type(p) for p in jax.tree.leaves(self.params)]
        eps = max(float(jnp.finfo(d).eps) for d in dtypes)
        size = self.outputs.size * self.model.devices
        # Errors of the outputs are independent, so the error of the sum is the sum of the moduli
        # divided by sqrt(size).
        output_error = self.model.total(jnp.sum(jnp.abs(cotangent * self.outputs))) / size**0.5
        # A few rounding errors of every number, 8 as in `minimize`.
        return 8 * (jnp.finfo(value.dtype).eps * jnp.abs(value) + eps * output_error)

    def best(
        self,
        gradient: Matrices,
        directions: tuple[StackedDirection, StackedDirection],
        damping: jax.Array,
    ) -> Combination:
        """Minimize the damped quadratic model over linear combinations of two directions."""
        from fnopt.curvature import best_combination

        return best_combination(
            lambda v: self._jvp(self.model.mark_varying(cast_like(v, self.params))),
            self.model.hessian_product(self.outputs),
            gradient,
            directions,
            damping,
            self.l2,
            self.model.total,
        )

    def value_at(self, params: Any) -> jax.Array:
        """Evaluate the objective at other parameters."""
        wide_params = jax.tree.map(lambda p: p.astype(self.model.dtype), params)
        local_loss = self.model.mean_loss(self.model.outputs(self.model.mark_varying(params)))
        return self.model.total(local_loss) + self._penalty(wide_params)

    def _penalty(self, params: Any) -> jax.Array:
        if not self._has_penalty:
            return jnp.zeros((), self.model.dtype)
        # p (l2 / 2 p) instead of l2 / 2 p^2, because p^2 may overflow (inf * 0 is NaN for l2 = 0).
        squares = [jnp.sum(p * (self.l2 / 2 * p)) for p in jax.tree.leaves(params)]
        return sum(squares[1:], squares[0])


class ExampleShapes(NamedTuple):
    """Shapes and dtypes of the leaves of a batch, without the example axis."""

    tree: Any
    leaves: tuple[tuple[tuple[int, ...], Any], ...]

    @property
    def batch(self) -> Any:
        """The shapes of a batch with one example."""
        leaves = [jax.ShapeDtypeStruct((1, *shape), dtype) for shape, dtype in self.leaves]
        return jax.tree.unflatten(self.tree, leaves)


def example_shapes(batch: Any) -> ExampleShapes:
    """Return the shapes and dtypes of one example of a batch, which may consist of shapes only."""
    if isinstance(batch, ExampleShapes):
        return batch
    batch = jax.tree.map(lambda x: x if hasattr(x, "dtype") else jnp.asarray(x), batch)
    check_batch([(leaf_text(path), leaf) for path, leaf in leaves_with_names(batch)[0]], "kfac")
    leaves, tree = jax.tree.flatten(batch)
    return ExampleShapes(tree, tuple((tuple(x.shape[1:]), x.dtype) for x in leaves))

"""Mean loss of a batch, and its quadratic model as a function of the outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.curvature._batch_jacobian import BatchJacobian, batch_jacobian
from fnopt.curvature._bound import bind, checked_batches
from fnopt.curvature._output_root import OutputHessian, check_loss, output_hessian
from fnopt.jacobians import RealVector
from fnopt.sharding import all_gather_tree, psum, replicate

_TOO_WIDE = "Use fnopt.kfac with sample_fn for such a loss."


class _Part(NamedTuple):
    """Loss of one model, with its batch and the layout of the model's outputs."""

    layout: RealVector
    loss_fn: Callable[[Any, Any], jax.Array]
    batch: Any
    size: int

    def loss(self, outputs: jax.Array, example: Any) -> jax.Array:
        """Loss of one example, from its outputs as a vector."""
        return self.loss_fn(self.layout.unflatten(outputs), example)

    def mean(self, outputs: jax.Array) -> jax.Array:
        """Mean loss over the examples, from outputs `[n, C]`."""
        losses = jax.vmap(self.loss)(outputs, self.batch)
        return jnp.mean(losses.astype(outputs.dtype))


class BatchLoss:
    r"""Sum of the models' mean losses, with derivatives with respect to the outputs `f`.

    .. math:: L = \sum_m \frac{1}{n_m} \sum_i \ell_m(f_m(\theta, x_{mi}), x_{mi}), \qquad
              \nabla L = J^\top \frac{\partial L}{\partial f}, \qquad G = J^\top H J

    The outputs of all examples and models are concatenated in one vector of size `N`.

    Args:
        model_fn: `f(params, example) -> outputs` of ONE example, or a tuple of such functions.
        loss_fn: `loss(outputs, example) -> scalar`, or a tuple with one loss per model.
        params: The params.
        batch: The examples, or a tuple with one batch per model.
        dtype: The dtype of factorizations in the output space.
        method: As in `batch_jacobian`.
        chunk_size: As in `batch_jacobian`.
        name: The public function that the user called, for messages.
        axis_name: The named axis along which a larger batch is sharded, if any.
    """

    def __init__(
        self,
        model_fn: Any,
        loss_fn: Any,
        params: Any,
        batch: Any,
        *,
        dtype: Any,
        method: str,
        chunk_size: int | None,
        name: str,
        axis_name: Any = None,
    ) -> None:
        single = callable(model_fn)
        models, losses = ((model_fn,), (loss_fn,)) if single else (model_fn, loss_fn)
        batches = (batch,) if single else checked_batches(batch, len(models), name)
        self.dtype, self.name, self.parts = dtype, name, []
        for model, loss, examples in zip(models, losses, batches, strict=True):
            bound, layout = bind(model, jax.tree.map(replicate, params), examples, name)
            # Every device solves the system in the output space for all examples, so it needs the
            # labels of all examples. XLA removes the gather of inputs that the loss doesn't read.
            gathered = all_gather_tree(jax.tree.map(replicate, examples), axis_name)
            part = _Part(layout, loss, gathered, bound.size * psum(1, axis_name))
            check_loss(part.loss, layout.size, dtype, examples, name)
            self.parts.append(part)
        jacobian_at = batch_jacobian(
            model_fn, method=method, chunk_size=chunk_size, axis_name=axis_name
        )
        self.J: BatchJacobian = jacobian_at(params, batch)
        self.outputs = self.J.vector.astype(dtype)
        self.value, self.slope = jax.value_and_grad(self._mean)(self.outputs)
        self._hessians = [
            output_hessian(part.loss, f, part.batch, name, _TOO_WIDE)
            for part, f in zip(self.parts, self.J.split(self.outputs), strict=True)
        ]
        pairs = zip(self._hessians, self.parts, strict=True)
        self.curvature: jax.Array = jnp.concatenate(
            [jnp.ravel(h.values / p.size) for h, p in pairs]
        )
        """The eigenvalues of `H`, `[N]`."""

    def value_at(self, params: Any) -> jax.Array:
        """Loss at other params, computed by a forward pass."""
        return self._mean(self.J.vector_at(params).astype(self.dtype))

    def gram(self) -> jax.Array:
        r""":math:`Q^\top J J^\top Q`, in coordinates in which `H` is diagonal."""
        K = self.J.gram().astype(self.dtype)
        return self.rotate(self.rotate(K).T)

    def times_gram(self, x: jax.Array) -> jax.Array:
        """Product of the Gram matrix with a vector, by a backward and a forward pass."""
        product = self.J.mv(self.J.rmv(self.rotate_back(x)))
        return self.rotate(self.J.flatten(self.J.parts(product)).astype(self.dtype))

    def rotate(self, x: jax.Array) -> jax.Array:
        r"""Transform `x`, `[N, ...]`, to coordinates in which `H` is diagonal: :math:`Q^\top x`."""
        return self._map_parts(OutputHessian.rotate, x)

    def rotate_back(self, x: jax.Array) -> jax.Array:
        """Transform `x`, `[N, ...]`, from coordinates in which `H` is diagonal: `Q x`."""
        return self._map_parts(OutputHessian.rotate_back, x)

    def rounding(self, eps: float) -> jax.Array:
        """Standard error of the loss if all outputs have independent rounding errors of `eps`."""
        # Variances of independent errors add, so the error of a sum of N terms is proportional to
        # N^(1/2), not to N.
        propagated = jnp.sum(jnp.abs(self.slope * self.outputs)) / self.outputs.size**0.5
        return jnp.finfo(self.dtype).eps * jnp.abs(self.value) + eps * propagated

    def _mean(self, outputs: jax.Array) -> jax.Array:
        means = [p.mean(f) for p, f in zip(self.parts, self.J.split(outputs), strict=True)]
        return sum(means[1:], means[0])

    def _map_parts(
        self, rotate: Callable[[OutputHessian, jax.Array], jax.Array], x: Any
    ) -> jax.Array:
        pieces = [part.reshape(-1, *x.shape[1:]) for part in self.J.split(x)]
        rotated = [rotate(h, part) for h, part in zip(self._hessians, pieces, strict=True)]
        return jnp.concatenate(rotated)

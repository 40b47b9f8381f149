"""A user's loss, traced once for one example, and what is computed with it on many."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import compute_dtype
from fnopt.gradients._loss import BoundLoss
from fnopt.gradients.ghost import _reduce
from fnopt.gradients.ghost._plan import Plan, make_plan
from fnopt.gradients.ghost._record import Tape, record


class Ghost(NamedTuple):
    """A traced loss.

    Attributes:
        plan: How the gradient of every param is measured and summed.
        params: The leaves of the params.
        params_tree: Their structure.
        out_tree: The structure of `(loss, aux)`.
    """

    plan: Plan
    params: list[Any]
    params_tree: Any
    out_tree: Any

    def measure(self, batch: Any) -> Measured:
        """One forward and one backward pass over a batch (or a chunk of one)."""
        tape = record(self.plan, self.params, jax.tree.leaves(batch))
        numbered = dict(enumerate(self.params))
        formed = [_reduce.form(group, tape, numbered) for group in self.plan.groups]
        return Measured(self, tape, formed)


class Measured(NamedTuple):
    """What is known about the gradients of a batch.

    Attributes:
        ghost: The loss.
        tape: What the gradients are made of.
        formed: By group: the gradients, where they are formed.
    """

    ghost: Ghost
    tape: Tape
    formed: list[_reduce.Formed]

    @property
    def loss_and_aux(self) -> tuple[jax.Array, Any]:
        """What the loss returned, with a leading example axis."""
        return jax.tree.unflatten(self.ghost.out_tree, self.tape.outputs)

    def norms(self) -> jax.Array:
        """The global norm of every example's gradient."""
        squares = [
            _reduce.squared_norms(group, formed, self.tape)
            for group, formed in zip(self.ghost.plan.groups, self.formed, strict=True)
        ]
        dtype = compute_dtype(*(p.dtype for p in self.ghost.plan.params))
        dtype = jnp.finfo(dtype).dtype
        total = jnp.zeros(self.tape.outputs[0].shape, dtype)
        for square in squares:
            total = total if square is None else total + square.astype(dtype)
        return safe_root(total)

    def weighted_sum(self, weights: jax.Array) -> Any:
        """The sum of the gradients, each times the weight of its example; float32 or wider."""
        numbered = dict(enumerate(self.ghost.params))
        sums: dict[int, jax.Array] = {}
        for group, formed in zip(self.ghost.plan.groups, self.formed, strict=True):
            sums |= _reduce.weighted_sum(group, formed, self.tape, weights, numbered)
        leaves = [self._like(p, sums.get(i)) for i, p in enumerate(self.ghost.plan.params)]
        return jax.tree.unflatten(self.ghost.params_tree, leaves)

    def _like(self, param: Any, total: jax.Array | None) -> jax.Array:
        dtype = compute_dtype(param.dtype)
        return jnp.zeros(param.shape, dtype) if total is None else total.astype(dtype)


def safe_root(squares: jax.Array) -> jax.Array:
    """The square root, with a finite derivative at zero."""
    positive = squares > 0
    root = jnp.sqrt(jnp.where(positive, squares, jnp.ones_like(squares)))
    # Rounding may leave less than nothing of gradients that cancel; NaN must stay NaN.
    return jnp.where(positive, root, jnp.where(squares <= 0, jnp.zeros_like(squares), squares))


def trace(bound: BoundLoss) -> Ghost:
    """Traces a loss for one example, and plans."""
    params, params_tree = jax.tree.flatten(bound.params)
    batch, batch_tree = jax.tree.flatten(bound.batch)
    params = [jnp.asarray(p) for p in params]

    def run(params: list[Any], example: list[Any]) -> Any:
        return bound.loss(
            jax.tree.unflatten(params_tree, params), jax.tree.unflatten(batch_tree, example)
        )

    example = [jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x in batch]
    closed, shapes = jax.make_jaxpr(run, return_shape=True)(params, example)
    plan = make_plan(closed, len(params))
    return Ghost(plan, params, params_tree, jax.tree.structure(shapes))

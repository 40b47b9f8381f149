"""A user's loss, traced once for one example, and what is computed with it on many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import compute_dtype, is_inexact
from fnopt.gradients._clip_rule import safe_root
from fnopt.gradients._loss import BoundLoss
from fnopt.gradients._sums import only_where
from fnopt.gradients.ghost import _gram, _reduce
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

    def measure(self, batch: Any, blocks: Sequence[int] | None = None) -> Measured:
        """One forward and one backward pass over a batch (or a chunk of one).

        Args:
            batch: The examples.
            blocks: By leaf of the params, the block that it is measured with; all together if
                `None`. Params that enter together but are in different blocks are formed.
        """
        tape = record(self.plan, self.params, jax.tree.leaves(batch))
        numbered = dict(enumerate(self.params))
        blocks = [0] * len(self.params) if blocks is None else blocks
        formed = []
        for group in self.plan.groups:
            apart = len({blocks[i] for i in group.leaves}) > 1
            form = _reduce.by_param if apart else _reduce.form
            formed.append(form(group, tape, numbered))
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

    def squares(self) -> list[jax.Array]:
        """Squared norms, `[n]` each, by leaf; what several leaves share is with their first one."""
        dtype = compute_dtype(*(p.dtype for p in self.ghost.plan.params))
        zero = jnp.zeros(self.tape.outputs[0].shape, jnp.finfo(dtype).dtype)
        squares = [zero] * len(self.ghost.params)
        for group, formed in zip(self.ghost.plan.groups, self.formed, strict=True):
            for i, square in _reduce.squared_norms(group, formed, self.tape).items():
                squares[i] = square.astype(zero.dtype)
        return squares

    def norms(self) -> jax.Array:
        """The global norm of every example's gradient."""
        squares = self.squares()
        return safe_root(sum(squares[1:], squares[0]))

    def inner_products(self, other: Measured) -> jax.Array:
        """The inner products of these gradients with those of other examples, `[n, m]`."""
        dtype = jnp.finfo(compute_dtype(*(p.dtype for p in self.ghost.plan.params))).dtype
        shape = (self.tape.outputs[0].shape[0], other.tape.outputs[0].shape[0])
        total = jnp.zeros(shape, dtype)
        groups = zip(self.ghost.plan.groups, self.formed, other.formed, strict=True)
        for group, mine, theirs in groups:
            found = _gram.inner_matrix(group, (mine, self.tape), (theirs, other.tape))
            total = total if found is None else total + found.astype(dtype)
        return total

    def only(self, wanted: jax.Array) -> Measured:
        """The same without what is known of other examples, whose values may be NaN."""

        def kept(x: jax.Array) -> jax.Array:
            return only_where(wanted, x) if is_inexact(x) else x

        tape = self.tape._replace(
            records=jax.tree.map(kept, self.tape.records),
            cotangents=jax.tree.map(kept, self.tape.cotangents),
        )
        return self._replace(tape=tape, formed=jax.tree.map(kept, self.formed))

    def weighted_sum(self, weights: Sequence[jax.Array]) -> Any:
        """The sum of the gradients, each times a weight; float32 or wider.

        Args:
            weights: By leaf of the params, the weights of the examples, `[n]`.
        """
        numbered = dict(enumerate(self.ghost.params))
        sums: dict[int, jax.Array] = {}
        for group, formed in zip(self.ghost.plan.groups, self.formed, strict=True):
            sums |= _reduce.weighted_sum(group, formed, self.tape, weights, numbered)
        leaves = [self._like(p, sums.get(i)) for i, p in enumerate(self.ghost.plan.params)]
        return jax.tree.unflatten(self.ghost.params_tree, leaves)

    def _like(self, param: Any, total: jax.Array | None) -> jax.Array:
        dtype = compute_dtype(param.dtype)
        return jnp.zeros(param.shape, dtype) if total is None else total.astype(dtype)


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

"""Trace of the loss of one example, and reductions of the gradients of a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.gradients._loss import BoundLoss
from fnopt.gradients._sums import block_norms, scaled_rows, zero_excluded
from fnopt.gradients.ghost import _differences, _gram, _tape
from fnopt.gradients.ghost._plan import Plan, make_plan
from fnopt.gradients.ghost._tape import Tape, record
from fnopt.numerics import compute_dtype, is_inexact
from fnopt.sharding import replicate, reshard_like


class Ghost(NamedTuple):
    """A traced loss of one example, with its params.

    Attributes:
        plan: The plan for the gradient of every param.
        params: The leaves of the params.
        params_tree: The tree structure of the params.
        out_tree: The tree structure of `(loss, aux)`.
    """

    plan: Plan
    params: list[Any]
    params_tree: Any
    out_tree: Any

    def measure(self, batch: Any, blocks: Sequence[int] | None = None) -> GhostMeasurements:
        """Record the gradients of a chunk by one forward and one backward pass.

        Args:
            batch: The examples.
            blocks: The norm block of every leaf of the params; `None` for one block. If params
                share sites but are in different blocks, the gradients of these params are formed.
        """
        tape = record(self.plan, self.params, jax.tree.leaves(batch))
        numbered = dict(enumerate(self.params))
        blocks = [0] * len(self.params) if blocks is None else blocks
        formed = []
        for group in self.plan.groups:
            # Factors yield only the norm of a group, which can't be split among blocks.
            by_param = len({blocks[i] for i in group.leaves}) > 1
            form = _tape.by_param if by_param else _tape.form
            formed.append(form(group, tape, numbered))
        return GhostMeasurements(self, tape, formed)

    def like_params(self, sums: Mapping[int, jax.Array]) -> Any:
        """Convert sums keyed by param index to a tree like the params; missing sums are zero."""

        def sum_of_param(i: int, param: Any) -> jax.Array:
            dtype = compute_dtype(param.dtype)
            total = sums[i].astype(dtype) if i in sums else jnp.zeros(param.shape, dtype)
            return reshard_like(total, param)

        return self.params_tree.unflatten([sum_of_param(i, p) for i, p in enumerate(self.params)])


class GhostMeasurements(NamedTuple):
    """Gradients of a batch as a tape, from which norms, sums and inner products are computed.

    Attributes:
        ghost: The traced loss.
        tape: The factors of the gradients.
        formed: For each group, the formed gradients, or `None` if the plan doesn't form them.
        factors: Scale factors of the gradients in inner products, `[n]`; `None` for 1.
    """

    ghost: Ghost
    tape: Tape
    formed: list[_tape.Formed]
    factors: jax.Array | None = None

    @property
    def loss_and_aux(self) -> tuple[jax.Array, Any]:
        """The results of the loss, with a leading example axis."""
        return jax.tree.unflatten(self.ghost.out_tree, self.tape.outputs)

    def squares(self) -> list[jax.Array]:
        """Squared norms `[n]` per leaf, or per group in the entry of the group's first leaf."""
        return self._totals_by_leaf(_tape.squared_norms)

    def norms(self, blocks: Sequence[int] | None = None, count: int = 1) -> jax.Array:
        """Norms of every example's gradient per block of leaves, `[blocks, n]`."""
        if not self.ghost.params:
            return jnp.zeros((count, *self.tape.outputs[0].shape), jnp.float32)
        blocks = [0] * len(self.ghost.params) if blocks is None else blocks
        return block_norms(self.squares(), lambda: self._totals_by_leaf(_tape.norms), blocks, count)

    def moments(self, mask: jax.Array) -> tuple[Any, list[jax.Array]]:
        """Mean gradient, and for every leaf the sum of squared deviations from the mean.

        Args:
            mask: 1 for selected examples, 0 for all other examples, whose gradients are zero.
        """
        numbered = dict(enumerate(self.ghost.params))
        means: dict[int, jax.Array] = {}

        def deviations_of_group(group: Any, formed: _tape.Formed, tape: Tape) -> dict[int, Any]:
            group_moments = _differences.moments(group, formed, tape, mask, numbered)
            means.update(group_moments.mean)
            return {**group_moments.deviations}

        deviations = self._totals_by_leaf(deviations_of_group, ())
        return self.ghost.like_params(means), deviations

    def scaled(self, factors: jax.Array) -> GhostMeasurements:
        """Scale every gradient by a factor `[n]`, for inner products."""
        formed = jax.tree.map(lambda x: scaled_rows(factors, x), self.formed)
        return self._replace(formed=formed, factors=factors)

    def _totals_by_leaf(
        self, reduce_group: Any, shape: tuple[int, ...] | None = None
    ) -> list[jax.Array]:
        """Reduce every group; leaves without an entry are zero, of shape `[n]` by default."""
        dtype = compute_dtype(*(p.dtype for p in self.ghost.plan.params))
        shape = self.tape.outputs[0].shape if shape is None else shape
        zero = jnp.zeros(shape, jnp.finfo(dtype).dtype)
        totals = [zero] * len(self.ghost.params)
        for group, formed in zip(self.ghost.plan.groups, self.formed, strict=True):
            for i, x in reduce_group(group, formed, self.tape).items():
                totals[i] = x.astype(zero.dtype)
        return totals

    def inner_products(self, other: GhostMeasurements) -> jax.Array:
        """Inner products of these gradients with the gradients of other examples, `[n, m]`."""
        dtype = jnp.finfo(compute_dtype(*(p.dtype for p in self.ghost.plan.params))).dtype
        shape = (self.tape.outputs[0].shape[0], other.tape.outputs[0].shape[0])
        total = jnp.zeros(shape, dtype)
        # The rows of the result stay sharded; the columns need all examples on every device.
        formed, tape, factors = jax.tree.map(
            lambda x: replicate(x, 0), (other.formed, other.tape, other.factors)
        )
        groups = zip(self.ghost.plan.groups, self.formed, formed, strict=True)
        for group, row_formed, column_formed in groups:
            rows = _gram.GradientPart(row_formed, self.tape, self.factors)
            columns = _gram.GradientPart(column_formed, tape, factors)
            products = _gram.inner_matrix(group, rows, columns)
            total = total if products is None else total + products.astype(dtype)
        return total

    def zero_excluded(self, mask: jax.Array) -> GhostMeasurements:
        """Set the gradients of excluded examples to zero, even if they are NaN."""

        def zero_others(x: jax.Array) -> jax.Array:
            return zero_excluded(mask, x) if is_inexact(x) else x

        # NaN in a record or a cotangent would make the products with other examples NaN.
        tape = self.tape._replace(
            records=jax.tree.map(zero_others, self.tape.records),
            cotangents=jax.tree.map(zero_others, self.tape.cotangents),
        )
        return self._replace(tape=tape, formed=jax.tree.map(zero_others, self.formed))

    def weighted_sum(self, weights: Sequence[jax.Array]) -> Any:
        """Sum of the gradients over the examples, float32 or wider.

        Args:
            weights: For every leaf of the params, the weights of the examples, `[n]`.
        """
        numbered = dict(enumerate(self.ghost.params))
        sums: dict[int, jax.Array] = {}
        for group, formed in zip(self.ghost.plan.groups, self.formed, strict=True):
            sums |= _tape.weighted_sum(group, formed, self.tape, weights, numbered)
        return self.ghost.like_params(sums)


def trace_ghost(bound: BoundLoss) -> Ghost:
    """Trace a loss for one example and plan the form of every param's gradient."""
    params, params_tree = jax.tree.flatten(bound.params)
    batch, batch_tree = jax.tree.flatten(bound.batch)
    params = [jnp.asarray(p) for p in params]

    def loss_of_leaves(params: list[Any], example: list[Any]) -> Any:
        return bound.loss(
            jax.tree.unflatten(params_tree, params), jax.tree.unflatten(batch_tree, example)
        )

    example = [jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x in batch]
    closed, shapes = jax.make_jaxpr(loss_of_leaves, return_shape=True)(params, example)
    plan = make_plan(closed, len(params))
    return Ghost(plan, params, params_tree, jax.tree.structure(shapes))

"""Kronecker-factored blocks of the Gauss-Newton matrix of any model and loss."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.curvature._bound import bind
from fnopt.curvature._eigenbasis import eigenbases, is_corrected, times_corrected
from fnopt.curvature._kronecker_inverse import (
    Factors,
    inverse_factors,
    stacked_blocks,
    times_inverse,
)
from fnopt.curvature._output_root import (
    check_loss,
    drawn_rows,
    keys_of,
    output_curvature,
    output_rows,
)
from fnopt.curvature._softmax_loss import is_softmax_loss, softmax_rows
from fnopt.errors import check_choice, count_text
from fnopt.gradients import BoundLoss
from fnopt.gradients.ghost import (
    KroneckerBlock,
    block_factors,
    block_moments,
    plan_blocks,
    record_tape,
    trace_ghost,
)
from fnopt.jacobians import check_real
from fnopt.numerics import compute_dtype, matmul
from fnopt.sharding import (
    concatenate,
    explicit_spec,
    is_sharded,
    psum,
    pvary_like,
    replicate,
    reshard_to,
    wait_for,
)

Matrices = tuple[jax.Array, ...]
"""One array per stack: `[T, D, K]`, or `[T, D]` for blocks with fewer than two factors."""

SHARING = ("expand", "reduce")
# 8 GiB per device for the rows of the output Hessian's root and the cotangents of the model. This
# is a tenth of an accelerator with 80 GB.
_MAX_BYTES = 2**33


class KroneckerSpec(NamedTuple):
    """Specification of the curvature to approximate: model, loss, and options.

    Attributes:
        model_fn: `f(params, example) -> outputs` of ONE example.
        loss_fn: `loss(outputs, example) -> scalar`.
        samples: Number of random rows of the square root of the output Hessian; `None` for the
            exact root.
        sample_fn: Function that draws a label from the model, `(key, outputs, example) -> example`;
            or `None`.
        sharing: `'expand'` or `'reduce'`.
        max_side: The largest side of a dense factor.
        eigenbasis: Whether second moments in the eigenbases replace the eigenvalues (EKFAC).
        name: The public function that the user called, for messages.
        axis_name: The named axis along which a larger batch is sharded, if any.
    """

    model_fn: Callable[[Any, Any], Any]
    loss_fn: Callable[[Any, Any], jax.Array]
    samples: int | None = 1
    sample_fn: Callable[[Any, Any, Any], Any] | None = None
    sharing: str = "expand"
    max_side: int = 512
    eigenbasis: bool = False
    name: str = "kfac"
    axis_name: Any = None


class KroneckerModel:
    """A spec bound to params and a batch, valid within one trace.

    Args:
        spec: The spec.
        params: The params, arrays.
        batch: The examples; `blocks` needs only their shapes and dtypes.
    """

    def __init__(self, spec: KroneckerSpec, params: Any, batch: Any) -> None:
        check_choice(spec.sharing, SHARING, "sharing", spec.name)
        self.spec, self.batch = spec, batch
        self.devices: int = psum(1, spec.axis_name)
        params = self.mark_varying(params)
        self.bound, self.layout = bind(spec.model_fn, params, batch, spec.name)
        self.dtype = common_dtype(params)
        check_loss(self.loss, self.layout.size, self.dtype, batch, spec.name)
        example = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), batch)
        self.is_softmax = is_softmax_loss(self.loss, self.layout.size, self.dtype, example)
        rows = spec.samples or self.layout.size
        # With E[V^T V] = H, the Gauss-Newton matrix is the second moment of the gradients of V f
        # (`_output_root`). Therefore the tape records the residuals V f for rows V.
        seeds = jax.ShapeDtypeStruct((self.bound.size, rows, self.layout.size), self.dtype)

        def residuals(params: Any, pair: Any) -> tuple[jax.Array, None]:
            example, rows = pair
            return matmul(rows, self.bound.loss(params, example)[0]), None

        bound = BoundLoss(residuals, params, (batch, seeds), self.bound.size, params)  # pyright: ignore[reportArgumentType]
        self.ghost = trace_ghost(bound)
        # Memory is checked before the computation, because a failed allocation doesn't name the
        # cause.
        self._check_memory(rows)
        self.blocks = plan_blocks(self.ghost.plan, spec.max_side)
        self.stacks = stacked_blocks(self.blocks)

    def _check_memory(self, rows: int) -> None:
        """Check that the cotangents of all examples fit in memory."""
        tap_bytes = sum(map(self.ghost.plan.tap_bytes, self.ghost.plan.taps))
        # Twice: a cotangent and its copy that is reshaped to rows.
        bytes_per_row = self.layout.size * self.dtype.itemsize + 2 * tap_bytes
        n, max_bytes = self.bound.size, _MAX_BYTES * jax.device_count()
        if self.spec.samples is None and n * rows * bytes_per_row > max_bytes:
            raise ValueError(
                f"{self.spec.name}: curvature='exact' backpropagates "
                f"{count_text(rows, 'cotangent')} per example. A batch of {n} needs "
                f"{n * rows * bytes_per_row / 1e9:.3g} GB, expected {max_bytes / 1e9:.3g} GB at "
                "most. Pass smaller batches, or curvature='sampled', which needs "
                f"{n * bytes_per_row / 1e9:.2g} GB per sample."
            )

    def mark_varying(self, tree: Any) -> Any:
        """Mark a tree as device-varying, so that derivatives refer to this device's examples."""
        if self.spec.axis_name is None:
            return tree
        return pvary_like(tree, jax.lax.axis_index(self.spec.axis_name))

    def total(self, sums: Any) -> Any:
        """Sum over the examples of all devices."""
        return psum(sums, self.spec.axis_name)

    def outputs(self, params: Any) -> jax.Array:
        """Outputs of this device's examples as vectors, `[n, C]`."""
        return jax.vmap(lambda e: self.bound.loss(params, e)[0])(self.batch)

    def loss(self, outputs: jax.Array, example: Any) -> jax.Array:
        """Loss of one example from its outputs as a vector."""
        return self.spec.loss_fn(self.layout.unflatten(outputs), example)

    def mean_loss(self, outputs: jax.Array) -> jax.Array:
        """This device's part of the mean loss over all examples, from `[n, C]`."""
        mean = jnp.mean(jax.vmap(self.loss)(outputs, self.batch).astype(self.dtype))
        return mean if self.devices == 1 else mean / self.devices

    def hessian_product(self, outputs: jax.Array) -> Callable[[jax.Array], jax.Array]:
        """Product of `[n, C]` with the Hessian of the mean loss with respect to the outputs."""
        product = None
        if self.spec.sample_fn is None and not self.is_softmax:
            product = output_curvature(self.loss, outputs, self.batch, self.spec.name)
        if product is not None:
            return lambda v: product(v) / (outputs.shape[0] * self.devices)
        # Forward over reverse, which takes one more forward pass of the loss per product.
        slope = jax.grad(self.mean_loss)
        return lambda v: jax.jvp(slope, (outputs,), (v,))[1]

    def factors(self, outputs: jax.Array, key: jax.Array) -> tuple[Factors, ...]:
        """Factors of all stacks, from the outputs at the current params."""
        return self.factors_of(self.tape(outputs, key))

    def tape(self, outputs: jax.Array, key: jax.Array) -> Any:
        """Record the inputs and cotangents of all products, for factors and moments."""
        # The factors are constants of a step, so derivatives don't propagate through the curvature.
        rows = jax.lax.stop_gradient(self._rows(outputs, key).astype(self.dtype))
        if is_sharded(outputs):  # the examples are sharded over devices
            rows = reshard_to(rows, (explicit_spec(outputs)[0], None, None))
        return record_tape(self.ghost, (self.batch, rows))

    def factors_of(self, tape: Any) -> tuple[Factors, ...]:
        """Factors of all stacks, from a tape."""
        factors = block_factors(self.ghost, self.blocks, tape, self.spec.sharing)
        return self._average(self._join_stacks(factors))

    def moments(self, tape: Any, bases: tuple[Factors, ...]) -> tuple[Factors, ...]:
        """Second moments of the gradients in the eigenbases, for every stack with eigenbases."""
        # Bases are stored per stack, but moments are computed per block.
        bases_of: dict[int, Factors] = {}
        for stack, pair in zip(self.stacks, bases, strict=True):
            split_bases = (
                zip(*map(stack.split_by_block, pair), strict=True)
                if pair
                else [()] * len(stack.blocks)
            )
            bases_of |= dict(zip(stack.numbers, split_bases, strict=True))
        pairs = [bases_of[i] for i in range(len(self.blocks))]
        moments = block_moments(self.ghost, self.blocks, tape, pairs)
        return self._average(self._join_stacks(moments))

    def _join_stacks(self, factors: tuple[Factors, ...]) -> tuple[Factors, ...]:
        """Concatenate the factors of blocks into the factors of stacks."""
        return tuple(
            tuple(
                map(concatenate, map(list, zip(*(factors[i] for i in stack.numbers), strict=True)))
            )
            for stack in self.stacks
        )

    def _average(self, means: Any) -> Any:
        """Average the means of all devices."""
        means = jax.tree.map(lambda x: x.astype(self.dtype), means)
        if self.spec.axis_name is None:
            return means
        return self.total(jax.tree.map(lambda x: x / self.devices, means))

    def _rows(self, outputs: jax.Array, key: jax.Array) -> jax.Array:
        spec, draw = self.spec, self.spec.sample_fn
        if draw is None and spec.samples and self.is_softmax:
            rows = functools.partial(softmax_rows, self.loss, samples=spec.samples)
            return jax.vmap(rows)(outputs, self.batch, keys_of(outputs, key, spec.axis_name))
        if draw is None:
            arguments = self.loss, outputs, self.batch, key, spec.samples, spec.name
            return output_rows(*arguments, spec.axis_name)

        def draw_label(key: jax.Array, f: jax.Array, example: Any) -> Any:
            return draw(key, self.layout.unflatten(f), example)

        arguments = self.loss, draw_label, outputs, self.batch, key, spec.samples or 1
        return drawn_rows(*arguments, spec.axis_name)

    def inverses(self, factors: tuple[Factors, ...], damping: jax.Array) -> tuple[Factors, ...]:
        """Compute the inverses of all damped factors."""
        return inverse_factors(self.stacks, factors, damping, self.spec.axis_name)

    def bases(self, factors: tuple[Factors, ...], damping: jax.Array) -> tuple[Factors, ...]:
        """Compute eigenbases of blocks with two factors, and inverses of other damped blocks."""
        vectors = eigenbases(self.stacks, factors)
        single = [i for i, b in enumerate(self.stacks) if not is_corrected(b)]
        inverses = inverse_factors(
            [self.stacks[i] for i in single],
            # On a CPU, concurrent batches of LAPACK calls can deadlock.
            [wait_for(factors[i], vectors) for i in single],
            damping,
            self.spec.axis_name,
        )
        other_inverses = dict(zip(single, inverses, strict=True))
        return tuple(other_inverses.get(i, pair) for i, pair in enumerate(vectors))

    def matrices(self, tree: Any) -> Matrices:
        """Convert a tree like the params to matrices, one array per stack."""
        leaves = [x.astype(self.dtype) for x in jax.tree.leaves(tree)]
        return tuple(stack.matrix(leaves) for stack in self.stacks)

    def tree(self, matrices: Matrices) -> Any:
        """Convert matrices to a tree like the params."""
        leaves_by_index: dict[int, jax.Array] = {}
        for stack, m in zip(self.stacks, matrices, strict=True):
            for parts in stack.leaves_of(m, self.ghost.plan.params):
                # The blocks of a split param are summed.
                leaves_by_index |= {
                    k: leaves_by_index[k] + x if k in leaves_by_index else x
                    for k, x in parts.items()
                }
        leaves = [leaves_by_index[i] for i in range(len(self.ghost.params))]
        return jax.tree.unflatten(self.ghost.params_tree, leaves)

    def multiply_inverse(
        self,
        matrices: Matrices,
        inverses: tuple[Factors, ...],
        damping: jax.Array,
        moments: tuple[Factors, ...] = (),
    ) -> Matrices:
        """Multiply matrices by the inverse of the damped curvature.

        Args:
            matrices: One array per stack.
            inverses: The result of `inverses` or `bases`.
            damping: The damping with which `inverses` were computed.
            moments: Second moments in the eigenbases.
        """
        groups = zip(matrices, inverses, moments or ((),) * len(inverses), strict=True)
        return tuple(
            times_corrected(inverse, moment[0], damping, m)
            if moment
            else times_inverse(inverse, damping, m)
            for m, inverse, moment in groups
        )


def common_dtype(params: Any) -> Any:
    """Compute dtype of the params: their common dtype, at least float32."""
    return compute_dtype(*(jnp.result_type(p) for p in jax.tree.leaves(params)))


def planned_blocks(spec: KroneckerSpec, params: Any, batch: Any) -> tuple[KroneckerBlock, ...]:
    """Plan the blocks from shapes and dtypes, without computation."""
    check_real(params, spec.name)
    spec = spec._replace(axis_name=None)  # a plan from shapes needs no axis of examples
    blocks: list[KroneckerBlock] = []

    def plan(params: Any, batch: Any) -> None:
        blocks.extend(KroneckerModel(spec, jax.tree.map(replicate, params), batch).blocks)

    jax.eval_shape(plan, params, batch)
    return tuple(blocks)

"""Local SGD with an outer optimizer (DiLoCo)."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import (
    Member,
    Scalar,
    Slot,
    Transformation,
    apply_updates,
    as_transformation,
    cast_like,
    hyper,
    map_leaves,
    slot_copy,
    slot_zeros,
    static,
)
from fnopt.distributed._meshes import axis_names
from fnopt.distributed._packing import compressed_sum
from fnopt.distributed._quantized_delta import checked_block_size
from fnopt.errors import where
from fnopt.numerics import safe_increment, zero_count
from fnopt.transforms import scale


class DilocoState(NamedTuple):
    """State of `diloco`: count, anchor parameters, states of both optimizers, rounding error.

    `error` is the accumulated rounding error of this worker's messages, or None for float messages.
    """

    count: jax.Array
    anchor: Slot
    inner_state: Any
    outer_state: Any
    error: Slot | None = None


def _checked_block(block_size: Any) -> int | None:
    return None if block_size is None else checked_block_size(block_size, "diloco")


class diloco(Transformation):
    r"""Local SGD: independent steps of each worker, and periodic steps of an outer optimizer.

    .. math:: \theta_k &\leftarrow \theta_k + \mathrm{inner}(g_k + \mu\, (\theta_k - \phi)),
              \qquad \text{and every } H \text{ steps:} \\
              \phi &\leftarrow \phi + \mathrm{outer}\Bigl(\frac{\sum_k n_k (\phi - \theta_k)}
              {\sum_k n_k}\Bigr), \quad \theta_k \leftarrow \phi

    The outer optimizer's gradient is minus the mean change of the params since the last
    synchronization. Special cases are local SGD and FedAvg (`outer=None`, which averages the
    params), FedOpt (any outer optimizer; FedAdam with `adam`), FedProx (`proximal`), and DiLoCo
    (`inner=adamw(...)`, `outer=sgd(0.7, momentum=0.9, nesterov=True)`).

    Workers communicate in one all-reduce of the params' size every `H` steps instead of every step.
    With `block_size`, messages are 8-bit codes, which reduce the traffic to a quarter: two bytes
    per number and worker instead of eight. Each worker sums its part after an all-to-all, and an
    all-gather returns the sums. The rounding error of a message is added to the next message (error
    feedback), so rounding delays updates but doesn't lose them.

    Use `diloco` inside `jax.shard_map` (or `jax.vmap` with a name), where each worker has its own
    params and state. Outside of `jax.shard_map`, params and state have a leading axis of workers.
    `update` has two optional scalars per worker: `num_examples`, the weight :math:`n_k`, and
    `participates`, whether the worker participates in this synchronization. Workers that don't
    participate also receive the common params. If no worker participates, :math:`\phi` doesn't
    change. A worker with non-finite params or weight, or a weight that isn't positive, is excluded.
    `apply_if_finite` around `inner` keeps a worker's params finite. Otherwise a worker with NaN
    params can't recover, because NaN plus an update is NaN.

    A synchronization returns updates that `apply_updates` adds, so the params equal :math:`\phi` up
    to the rounding of a sum. `fnopt.slots(state)["anchor"]` is :math:`\phi`, equal on all workers.

    Args:
        inner: The optimizer of a worker, with its own state.
        outer: The optimizer of the common params; None for `scale(-1)`, which sets the common
            params to the workers' mean.
        every: :math:`H`, the number of steps of a worker between synchronizations.
        axis: The named axis of the workers, or several.
        proximal: :math:`\mu`, the weight of the proximal term.
        block_size: None for float messages; for 8-bit codes, the number of elements that share a
            scale, such as 256.

    Raises:
        ValueError: If `every` or `block_size` isn't at least 1; in `update`, if the axis isn't
            bound.

    Example:
        >>> from fnopt import distributed
        >>> tx = distributed.diloco(fnopt.sgd(1.0), None, every=1, axis="workers")
        >>> params = {"w": jnp.zeros(())}
        >>> def worker(grad):
        ...     updates, state = tx.update({"w": grad}, tx.init(params), params)
        ...     return fnopt.apply_updates(params, updates)["w"]
        >>> jax.vmap(worker, axis_name="workers")(jnp.asarray([1.0, 3.0]))
        Array([-2., -2.], dtype=float32)

    Reference:
        McMahan et al., 2016, arXiv:1602.05629; Li et al., 2018, arXiv:1812.06127; Reddi et al.,
        2020, arXiv:2003.00295; Douillard et al., 2023, arXiv:2311.08105; for the codes, Tang et
        al., 2021, arXiv:2102.02888.
    """

    needs_params = True

    inner: Any
    outer: Any
    every: int = static(least=1)
    axis: Any = static(convert=axis_names)
    proximal: Scalar = hyper(default=0.0, ge=0)
    block_size: int | None = static(default=None, convert=_checked_block)

    def __post_init__(self) -> None:
        self._set("inner", as_transformation(self.inner, "diloco: inner"))
        outer = scale(-1.0) if self.outer is None else self.outer
        self._set("outer", as_transformation(outer, "diloco: outer"))
        super().__post_init__()

    def members(self, state: Any = None) -> tuple[Member, ...]:
        """The inner and the outer optimizer."""
        inner, outer = (None, None) if state is None else (state.inner_state, state.outer_state)
        return Member("inner", self.inner, inner), Member("outer", self.outer, outer)

    def init(self, params: Any) -> DilocoState:
        """Make the state, with the params as anchor."""
        # The anchor is a copy, because a step may donate the buffers of the params.
        anchor = slot_copy(params)
        error = None if self.block_size is None else slot_zeros(params)
        inner, outer = self.inner.init(params), self.outer.init(anchor)
        return DilocoState(zero_count(), anchor, inner, outer, error)

    def update(
        self,
        updates: Any,
        state: DilocoState,
        params: Any = None,
        *,
        num_examples: Any = None,
        participates: Any = None,
        **extra_args: Any,
    ) -> tuple[Any, DilocoState]:
        """Return the worker's updates; at a synchronization, the updates to the common params."""
        proximal_updates = add_proximal_gradient(updates, self.proximal, params, state.anchor)
        inner_updates, inner_state = self.inner.update(
            proximal_updates, state.inner_state, params, **extra_args
        )
        # Both branches of the `cond` below must return equal dtypes.
        inner_updates = cast_like(inner_updates, state.anchor)
        count = safe_increment(state.count)
        weight = _weight(num_examples, participates)

        def synchronize() -> tuple[Any, ...]:
            change = _outer_gradient(state.anchor, params, inner_updates)
            # A worker with non-finite params or an invalid weight has weight zero.
            valid = all_finite(change) & jnp.isfinite(weight) & (weight > 0)
            valid_weight = jnp.where(valid, weight, jnp.zeros_like(weight))
            gradient, error, has_weight = self._mean(change, valid_weight, state.error, count)
            new_anchor, outer_state = self.outer.update(gradient, state.outer_state, state.anchor)
            new_anchor = apply_updates(state.anchor, cast_like(new_anchor, state.anchor))
            outer_state = cast_like(outer_state, state.outer_state)
            new_anchor, outer_state, error = jax.tree.map(
                lambda a, b: jnp.where(has_weight, a, b),
                (new_anchor, outer_state, error),
                (state.anchor, state.outer_state, state.error),
            )
            to_anchor = jax.tree.map(lambda a, p: a - p.astype(a.dtype), new_anchor, params)
            return to_anchor, new_anchor, outer_state, error

        is_synchronization = count % jnp.asarray(self.every, count.dtype) == 0
        # `cond` and not `where`, so that workers communicate only in synchronizations.
        updates, anchor, outer_state, error = jax.lax.cond(
            is_synchronization,
            synchronize,
            lambda: (inner_updates, state.anchor, state.outer_state, state.error),
        )
        return updates, DilocoState(count, anchor, inner_state, outer_state, error)

    def _mean(
        self, changes: Any, weight: jax.Array, error: Any, count: jax.Array
    ) -> tuple[Any, Any, jax.Array]:
        """Weighted mean over workers, its rounding error, and whether any weight is positive."""
        try:
            # With normalized weights, the weighted sum stays in the range of the changes.
            total = jax.lax.psum(weight, self.axis)
            has_weight = total > 0
            fraction = weight / jnp.where(has_weight, total, jnp.ones_like(total))

            def weigh(x: jax.Array) -> jax.Array:
                # `where` is needed, because zero times NaN (of a diverged worker) is NaN.
                factor = fraction.astype(jnp.finfo(x.dtype).dtype)
                return jnp.where(weight > 0, x, jnp.zeros_like(x)) * factor

            weighted = jax.tree.map(weigh, changes)
            if self.block_size is None:
                return jax.lax.psum(weighted, self.axis), None, has_weight
            return *compressed_sum(weighted, error, self.axis, self.block_size, count), has_weight
        # JAX raises a NameError for an unbound axis
        except NameError:
            raise ValueError(
                f"{where()}the axis {self.axis!r} isn't bound here, expected an axis in scope. "
                "Call update inside jax.shard_map over a mesh with this axis, or inside "
                "jax.vmap(..., axis_name=...). In a plain loop over clients, use "
                "fnopt.distributed.federated."
            ) from None


def _weight(num_examples: Any, participates: Any) -> jax.Array:
    weight = jnp.ones((), jnp.float32)
    if num_examples is not None:
        weight = jnp.asarray(num_examples, jnp.float32)
    if participates is not None:
        weight = jnp.where(jnp.asarray(participates, bool), weight, jnp.zeros_like(weight))
    if weight.shape != ():
        raise ValueError(
            f"{where()}num_examples and participates have shape {weight.shape}, expected one "
            "number for this worker."
        )
    return weight


def add_proximal_gradient(updates: Any, strength: Any, params: Any, start: Any) -> Any:
    """Add the gradient of `strength / 2 * |params - start|^2`."""
    pull = lambda mu, g, p, start: g + mu * (p - start)  # noqa: E731
    return map_leaves(pull, updates, hyper=strength, params=params, start=start)


def all_finite(tree: Any) -> jax.Array:
    """Whether all elements of all leaves are finite."""
    finite = [jnp.isfinite(x).all() for x in jax.tree.leaves(tree)]
    return functools.reduce(jnp.logical_and, finite, jnp.asarray(True))


def _outer_gradient(anchor: Any, params: Any, updates: Any) -> Any:
    """Outer gradient: minus a worker's change of the params since the last synchronization."""

    def change(a: Any, p: Any, u: Any) -> Any:
        # The worker's params started from the anchor rounded to their dtype.
        start = a.astype(jnp.result_type(p)).astype(a.dtype)
        return start - (p.astype(a.dtype) + u)

    return jax.tree.map(change, anchor, params, updates)

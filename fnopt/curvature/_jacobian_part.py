"""Jacobian rows of one residual function on a batch, in chunks and on several devices."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.curvature._bound import BoundResiduals
from fnopt.gradients import BoundLoss, gradient_bytes
from fnopt.gradients.ghost import GhostRows, multiply_rows, record_rows, trace_ghost
from fnopt.jacobians import map_in_chunks
from fnopt.numerics import (
    HIGHEST,
    compute_dtype,
    map_chunks,
    materialized_transpose,
    matmul,
    scan_chunks,
    widen,
)
from fnopt.sharding import all_gather_tree, explicit_spec, psum, pvary_like, replicate, reshard_to


class FormedRows(NamedTuple):
    """Formed rows of `n` examples with `k` residuals each.

    Attributes:
        residuals: The residuals, `[n, k]`.
        rows: A tree like the params, with leaves `[n, k, *param]`.
    """

    residuals: jax.Array
    rows: Any

    def gram(self, other: FormedRows) -> jax.Array:
        """Inner products of all rows with the rows of another Jacobian, `[n k, m l]`."""
        pairs = zip(jax.tree.leaves(self.rows), jax.tree.leaves(other.rows), strict=True)
        products = [matmul(_matrix(a), _matrix(b).T) for a, b in pairs]
        dtype = compute_dtype(*(x.dtype for x in products))
        zeros = jnp.zeros((self.residuals.size, other.residuals.size), dtype)
        return sum((x.astype(dtype) for x in products), zeros)

    def matrix(self) -> jax.Array:
        """Matrix of all rows, with the params concatenated, `[n k, P]`, float32 or wider."""
        matrices = [_matrix(rows) for rows in jax.tree.leaves(self.rows)]
        dtype = compute_dtype(*(x.dtype for x in matrices))
        return jnp.concatenate([x.astype(dtype) for x in matrices], axis=1)

    def pull(self, weights: jax.Array) -> Any:
        r"""The product :math:`J^\top a`, a tree like the params, float32 or wider."""

        def pull_leaf(rows: jax.Array) -> jax.Array:
            J = widen(replicate(rows))
            return jnp.tensordot(a.astype(J.dtype), J, 2, precision=HIGHEST)

        a = replicate(weights)  # an explicit mesh may shard an axis of the sum
        return jax.tree.map(pull_leaf, self.rows)

    def push(self, direction: Any) -> jax.Array:
        """The product `J v`, `[n, k]`, float32 or wider."""
        parts = jax.tree.leaves(jax.tree.map(multiply_rows, self.rows, direction))
        dtype = compute_dtype(*(x.dtype for x in parts))
        return sum((x.astype(dtype) for x in parts), jnp.zeros(self.residuals.shape, dtype))


def _matrix(rows: jax.Array) -> jax.Array:
    # JAX can't merge the first two axes if an explicit mesh shards the first axis.
    J = widen(replicate(rows))
    return J.reshape(J.shape[0] * J.shape[1], -1)


def form_rows(bound: BoundLoss, batch: Any) -> FormedRows:
    """Form the rows by one backward pass per residual of an example."""

    def rows_of_example(example: Any) -> tuple[jax.Array, Any]:
        r, pull, _ = jax.vjp(lambda p: bound.loss(p, example), bound.params, has_aux=True)
        return r, jax.vmap(lambda e: pull(e)[0])(pvary_like(jnp.eye(r.size, dtype=r.dtype), r))

    return FormedRows(*jax.vmap(rows_of_example)(batch))


def multiply_all_rows(
    product: Callable[[Any], jax.Array], rows: GhostRows | FormedRows, axis_name: Any
) -> jax.Array:
    """Products with the rows of all devices, concatenated: `[n, devices m]`.

    In every round each device sends rows to the next device, so a device stores the rows of at
    most two devices.

    Args:
        product: Function that returns the products of this device's rows with other rows, `[n, m]`.
        rows: The rows of this device.
        axis_name: The named axis of the devices.
    """
    count, device = jax.lax.psum(1, axis_name), jax.lax.axis_index(axis_name)
    # Of a tape only the arrays are sent, because all devices have the same plan.
    is_formed = isinstance(rows, FormedRows)
    arrays, treedef = jax.tree.flatten(rows if is_formed else (rows.tape, rows.formed))
    ring = [(i, (i + 1) % count) for i in range(count)]

    def pass_on(arrays: list[jax.Array], i: jax.Array) -> tuple[list[jax.Array], jax.Array]:
        received = treedef.unflatten(arrays)
        received_rows = (
            received if is_formed else rows._replace(tape=received[0], formed=received[1])
        )
        return [jax.lax.ppermute(x, axis_name, ring) for x in arrays], product(received_rows)

    arrays = pvary_like(arrays, device)
    blocks = jax.lax.scan(pass_on, arrays, None, length=count)[1]
    # In round i, this device has the rows of the device i places before it in the ring.
    order = jnp.mod(device - jnp.arange(count, dtype=device.dtype), count)
    blocks = jnp.take(blocks, order, axis=0, mode="clip")  # the permutation is its own inverse
    return jnp.moveaxis(blocks, 0, 1).reshape(blocks.shape[1], -1)


class JacobianPart:
    """Jacobian rows of one residual function, for the examples of this device.

    Args:
        residuals: The function, with params and a batch.
        method: As in `batch_jacobian`.
        chunk_size: As in `batch_jacobian`.
        axis_name: As in `batch_jacobian`.
    """

    def __init__(
        self, residuals: BoundResiduals, method: str, chunk_size: int | None, axis_name: Any
    ) -> None:
        self.bound, self.layout = residuals
        self.axis_name = axis_name
        size = self.bound.size
        self.total: int = size * psum(1, axis_name)
        is_unchunked = chunk_size is None or chunk_size >= size
        self.chunk_size = None if is_unchunked else chunk_size
        self.ghost = None if method == "formed" else trace_ghost(self.bound)
        if method == "auto" and self.ghost is not None:
            tape_is_smaller = self.ghost.plan.bytes < gradient_bytes(self.bound.params)
            self.ghost = self.ghost if tape_is_smaller else None

    def local_rows(self, x: jax.Array) -> jax.Array:
        """Select this device's rows from an array with the rows of all devices."""
        if self.axis_name is None:
            return x
        n = self.bound.size
        return jax.lax.dynamic_slice_in_dim(x, n * jax.lax.axis_index(self.axis_name), n)

    def take(self, batch: Any) -> GhostRows | FormedRows:
        """Compute the rows of a chunk of examples, formed or on a tape."""
        if self.ghost is None:
            return form_rows(self.bound, batch)
        return record_rows(self.ghost, batch)

    @functools.cached_property
    def rows(self) -> GhostRows | FormedRows:
        """Rows of all examples."""
        return self.take(self.bound.batch)

    @functools.cached_property
    def residuals(self) -> jax.Array:
        """The residuals, `[n, k]`."""
        if self.chunk_size is None:
            return self.rows.residuals
        return self.residuals_at(self.bound.params)

    def residuals_at(self, params: Any) -> jax.Array:
        """The residuals at other params, `[n, k]`."""
        values = jax.vmap(lambda e: self.bound.loss(params, e)[0])
        return self.over_chunks(values, self.bound.batch)

    def over_chunks(self, fn: Callable[[Any], Any], batch: Any) -> Any:
        """Apply a function to all chunks, and concatenate the results along the example axis."""
        return map_chunks(fn, batch, self.bound.size, self.chunk_size)

    def gather_examples(self) -> JacobianPart:
        """Copy this part with the examples of all devices; rows are computed on demand."""
        batch = all_gather_tree(self.bound.batch, self.axis_name)
        part = copy.copy(self)
        part.__dict__.pop("rows", None)
        part.__dict__.pop("residuals", None)
        # The copy shares the recorded program, so the batch must have the recorded varying axes.
        part.bound = self.bound._replace(batch=pvary_like(batch, self.bound.batch), size=self.total)
        return part

    def gram(self, other: JacobianPart) -> jax.Array:
        """Inner products of all rows with the rows of another part, `[n k, m l]`."""
        if self.axis_name is None:
            return self._products(other)
        if self.chunk_size is None and other.chunk_size is None:
            product = functools.partial(_gram, self.rows)
            gram_rows = multiply_all_rows(product, other.rows, self.axis_name)
        else:
            gram_rows = self._products(other.gather_examples())
        return all_gather_tree(gram_rows, self.axis_name)

    def _products(self, other: JacobianPart) -> jax.Array:
        if self.chunk_size is None and other.chunk_size is None:
            return _gram(self.rows, other.rows)
        # One pair of chunks is in memory at a time. Blocks `[n_i, k, m_j, l]` are concatenated over
        # the chunks j of `other`, then over the chunks i of this part.
        k, width = self.layout.size, other.layout.size

        def block_row(chunk: Any) -> jax.Array:
            rows = self.take(chunk)

            def block(chunk: Any) -> jax.Array:
                other_rows = other.take(chunk)
                products = _gram(other_rows, rows)
                return products.reshape(other_rows.residuals.shape[0], width, *rows.residuals.shape)

            return jnp.moveaxis(other.over_chunks(block, other.bound.batch), (2, 3), (0, 1))

        products = self.over_chunks(block_row, self.bound.batch)
        return products.reshape(self.bound.size * k, other.bound.size * width)

    def pull(self, weights: jax.Array) -> Any:
        r"""Product :math:`J^\top a` for `a` of shape `[n, k]`, summed over devices."""
        axes = explicit_spec(jax.tree.leaves(self.bound.batch)[0])[0]
        if axes is not None:  # sharded like the examples
            weights = reshard_to(weights, (axes, None))
        if self.chunk_size is None:
            return psum(self.rows.pull(weights), self.axis_name)

        def add_chunk(total: Any, chunk: Any) -> tuple[Any, None]:
            batch, a = chunk
            return jax.tree.map(jnp.add, total, self.take(batch).pull(a)), None

        zeros = jax.tree.map(
            lambda p: jnp.zeros_like(p, compute_dtype(jnp.result_type(p))), self.bound.params
        )
        chunks = (self.bound.batch, weights)
        total = scan_chunks(add_chunk, zeros, chunks, self.bound.size, self.chunk_size)[0]
        return psum(total, self.axis_name)

    def normal(self) -> jax.Array:
        r"""Product :math:`J^\top J`, `[P, P]`, from formed rows, summed over devices."""

        def square(rows: FormedRows) -> jax.Array:
            matrix = rows.matrix()
            return replicate(matmul(materialized_transpose(matrix), matrix))

        def add_chunk(total: jax.Array, chunk: Any) -> tuple[jax.Array, None]:
            return total + square(form_rows(self.bound, chunk)), None

        if self.chunk_size is None:
            rows = self.rows
            formed = (
                rows if isinstance(rows, FormedRows) else form_rows(self.bound, self.bound.batch)
            )
            return psum(square(formed), self.axis_name)
        leaves = jax.tree.leaves(self.bound.params)
        size = sum(math.prod(jnp.shape(leaf)) for leaf in leaves)
        zeros = jnp.zeros((size, size), compute_dtype(*map(jnp.result_type, leaves)))
        # Inside shard_map, the initial carry of a scan must vary like its result.
        zeros = pvary_like(zeros, self.bound.batch)
        product = scan_chunks(add_chunk, zeros, self.bound.batch, self.bound.size, self.chunk_size)[
            0
        ]
        return psum(product, self.axis_name)

    def push(self, direction: Any) -> jax.Array:
        """Product `J v`, `[n, k]`."""
        if self.chunk_size is None:
            return self.rows.push(direction)
        return self.over_chunks(lambda batch: self.take(batch).push(direction), self.bound.batch)


def _gram(rows: Any, other_rows: Any) -> jax.Array:
    """Inner products of rows, which are formed or recorded on a tape."""
    if isinstance(rows, FormedRows) is isinstance(other_rows, FormedRows):
        return rows.gram(other_rows)
    if isinstance(rows, FormedRows):
        return _push_rows(other_rows, rows)
    return _push_rows(rows, other_rows).T


def _push_rows(rows: Any, formed: FormedRows) -> jax.Array:
    """Inner products of formed rows with rows on a tape, `[formed, recorded]`."""
    vectors = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), formed.rows)
    count = jax.tree.leaves(vectors)[0].shape[0]
    row = lambda i: jax.tree.map(lambda x: x[i], vectors)  # noqa: E731
    return map_in_chunks(lambda v: rows.push(v).reshape(-1), row, count)

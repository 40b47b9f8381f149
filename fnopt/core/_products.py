"""Matrix products in full precision."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fnopt.sharding import product_sharding

# By default a GPU rounds the factors of a float32 product to 10 bits (TF32), a TPU to 7 (bfloat16).
# A gradient J^T r near its zero, a predicted reduction or a squared condition number is all
# cancellation: it has no digits left then. Nothing is lost on a CPU, where all is exact anyway.
HIGHEST = jax.lax.Precision.HIGHEST


def matmul(a: jax.Array, b: jax.Array) -> jax.Array:
    """The product `a @ b` in the full precision of its dtype, on accelerators too.

    Every product of the library's own is made so; those of the user's model keep their precision.
    """
    batch = max(jnp.ndim(b) - 2, 0)
    sharding = product_sharding(a, b, (-1, batch), batch)
    if sharding is None:
        return jnp.matmul(a, b, precision=HIGHEST)
    # matmul takes no sharding for stacks of one matrix: it squeezes them before.
    axes = ((jnp.ndim(a) - 1,), (batch,)), (range(batch), range(batch))
    return jax.lax.dot_general(a, b, axes, precision=HIGHEST, out_sharding=sharding)


def materialized_transpose(a: jax.Array) -> jax.Array:
    """The transpose of a matrix, to be the left factor of a product; of float64 it is written out.

    XLA on a CPU takes twice as long for a product of float64 whose left factor it reads along the
    columns. To write that out costs a tenth of it. In float32 neither is true.
    """
    return jax.lax.optimization_barrier(a.T) if a.dtype == jnp.float64 else a.T


def per_row(numbers: jax.Array, x: jax.Array) -> jax.Array:
    """One number for each row of an array, `[n]`, as `[n, 1, ...]` that broadcasts to it."""
    return numbers.reshape(-1, *[1] * (x.ndim - 1))


def weighted_rows(weights: jax.Array, x: jax.Array) -> jax.Array:
    """`sum_i weights[i] * x[i]`, in the full precision of the dtype."""
    sharding = product_sharding(weights, x, (0, 0))
    out: Any = {} if sharding is None else {"out_sharding": sharding}
    return jnp.tensordot(weights, x, axes=1, precision=HIGHEST, **out)

"""Histograms of magnitudes, computed from exponent bits."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fnopt.sharding import is_sharded

BINS = 32
LOWEST = -42  # bin k starts at 2^(LOWEST + 2k), and bin 0 also contains all smaller numbers
LOG_WIDTH = 1  # a bin contains 2^1 exponents, that is, two powers of two


def histogram_edges() -> tuple[float, ...]:
    r"""Return the edges between the bins of every histogram of `health` and `capture`.

    .. math:: \text{bin } 0: |x| < 2^{-40}, \quad
              \text{bin } k: 2^{-42+2k} \le |x| < 2^{-40+2k}, \quad
              \text{bin } 31: |x| \ge 2^{20}

    Fixed edges make histograms of all leaves and steps comparable. Zeros are in bin 0;
    infinities and NaN are in no bin.

    Returns:
        The 31 inner edges, ascending powers of two.

    Example:
        >>> from fnopt.monitor import histogram_edges
        >>> edges = histogram_edges()
        >>> len(edges), edges[20:23]
        (31, (1.0, 4.0, 16.0))
    """
    return tuple(2.0 ** (LOWEST + 2 * k) for k in range(1, BINS))


def _bins(x: jax.Array) -> jax.Array:
    """Bin of every element of a float32 or float64 array; `BINS` for non-finite elements."""
    info = jnp.finfo(x.dtype)
    integer: Any = {32: jnp.int32, 64: jnp.int64}[info.bits]
    # IEEE 754: the exponent is stored with the bias 1 - minexp.
    mantissa, bias = info.nmant, 1 - int(info.minexp)
    # All bits of the exponent, which are set for infinity and NaN; the mask drops the sign bit.
    exponent_mask = 2 * bias + 1
    bits = jax.lax.bitcast_convert_type(x, integer)
    biased_exponent = ((bits >> mantissa) & exponent_mask).astype(jnp.int32)
    index = jnp.clip((biased_exponent - bias - LOWEST) >> LOG_WIDTH, 0, BINS - 1)
    return jnp.where(biased_exponent == exponent_mask, BINS, index)


def _count_by_comparison(index: jax.Array) -> jax.Array:
    is_bin = index[..., None] == jnp.arange(BINS, dtype=jnp.int32)
    return jnp.sum(is_bin, axis=range(index.ndim), dtype=jnp.int32)


def histogram(x: jax.Array) -> jax.Array:
    """Histogram of a real array's exponents: the number of elements per bin, int32 `[BINS]`."""
    index = _bins(x)
    if is_sharded(index):  # a scatter would have to gather sharded indices first
        return _count_by_comparison(index)
    # On a CPU, a scatter-add into 32 bins is fastest. On an accelerator, thousands of threads would
    # contend for these bins, so every element is compared with all bins in one pass over memory.
    return jax.lax.platform_dependent(
        index,
        # An index of BINS is out of range and dropped.
        cpu=lambda i: jnp.zeros(BINS, jnp.int32).at[jnp.ravel(i)].add(1, mode="drop"),
        default=_count_by_comparison,
    )

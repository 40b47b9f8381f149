"""Rule for convolutions: one matrix product per offset in the window."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.gradients.ghost._factors import Dense, FactorLayout, Pair
from fnopt.gradients.ghost._sites import Site


def layout(site: Site) -> FactorLayout:
    """Layout: `T` is the group axis, `D` the window and input channels, `K` the output channels."""
    numbers, groups = site.eqn.params["dimension_numbers"], site.eqn.params["feature_group_count"]
    output_axis, input_axis, *window = numbers.rhs_spec
    shape = site.weight.aval.shape
    split = (groups, *(shape[d] for d in window), shape[input_axis], shape[output_axis] // groups)
    # The output axis of the kernel has the group as its major and the channel as its minor part.
    position: dict[int, tuple[int, ...]] = {
        output_axis: (0, len(split) - 1),
        input_axis: (len(split) - 2,),
    }
    position |= {d: (1 + i,) for i, d in enumerate(window)}
    perm = tuple(i for d in range(len(shape)) for i in position[d])
    return FactorLayout(site.weight, split, (1, len(window) + 1, 1), perm, shape)


def pair(site: Site, x: jax.Array, g: jax.Array) -> Pair:
    """Factors of one example: a block of input rows per window offset, and cotangent rows."""
    groups = site.eqn.params["feature_group_count"]
    blocks = tuple(_rows(patch, groups) for patch in _window_offsets(site, x))
    return Pair(Dense(blocks), output_rows(site, g))


def output_rows(site: Site, g: Any) -> Dense:
    """Reshape an array of the output's shape to one row per position."""
    numbers, groups = site.eqn.params["dimension_numbers"], site.eqn.params["feature_group_count"]
    return Dense((_rows(g.transpose(numbers.out_spec), groups),))


def _window_offsets(site: Site, x: jax.Array) -> Iterator[jax.Array]:
    """Yield the input entries at all output positions, `[N, C, ...]`, for each window offset."""
    p = site.eqn.params
    numbers = p["dimension_numbers"]
    x = x.transpose(numbers.lhs_spec)
    padded = zip(p["padding"], p["lhs_dilation"], strict=True)
    edges = [(0, 0, 0), (0, 0, 0), *((low, high, d - 1) for (low, high), d in padded)]
    # Interior padding of the input is the dilation of a transposed convolution.
    x = jax.lax.pad(x, jnp.zeros((), x.dtype), edges)
    window = [site.weight.aval.shape[d] for d in numbers.rhs_spec[2:]]
    extent = [site.eqn.outvars[0].aval.shape[d] for d in numbers.out_spec[2:]]
    for offset in itertools.product(*map(range, window)):
        # One strided slice per offset, because an array of all patches would multiply the memory by
        # the window size.
        start = [o * d for o, d in zip(offset, p["rhs_dilation"], strict=True)]
        steps = zip(start, extent, p["window_strides"], strict=True)
        stop = [s + (n - 1) * stride + 1 for s, n, stride in steps]
        strides = (1, 1, *p["window_strides"])
        yield jax.lax.slice(x, (0, 0, *start), (*x.shape[:2], *stop), strides)


def _rows(x: Any, groups: int) -> Any:
    """Reshape `[N, C, ...]` to `[groups, positions, C / groups]`."""
    n, channels = x.shape[:2]
    # Two reshapes, because JAX rejects a single reshape if the examples are sharded.
    x = x.reshape(n, channels, -1).reshape(n, groups, channels // groups, -1)
    return x.transpose(1, 0, 3, 2).reshape(groups, -1, channels // groups)

"""Rule for `dot_general`: `x @ w`, einsum, attention, products with an embedding table."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np

from fnopt.gradients.ghost._factors import Dense, FactorLayout, Pair
from fnopt.gradients.ghost._sites import Site
from fnopt.gradients.ghost._weights import Weight, without_transposes


class _Axes(NamedTuple):
    """Axes of a `dot_general`, sorted by the weight's axes before transposes.

    Attributes:
        base: The weight before transposes.
        weight: The batched, contracted and free axes of `base`.
        data: The batched and contracted axes of the other operand.
        out: The batched axes of the output, and the output axes of the weight's free axes.
    """

    base: Weight
    weight: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
    data: tuple[tuple[int, ...], tuple[int, ...]]
    out: tuple[tuple[int, ...], tuple[int, ...]]

    @property
    def swapped(self) -> bool:
        """Whether `D` has the free axes instead of the contracted axes.

        `D` is the side with the first axis of the weight, so that `x @ w` and a product with the
        transposed weight have the same layout.
        """
        _, contracted, free = self.weight
        return bool(free) and (not contracted or free[0] < contracted[0])


def _axes(site: Site) -> _Axes:
    contract, batch = site.eqn.params["dimension_numbers"]
    k = site.position
    base, perm = without_transposes(site.weight)
    free = [d for d in range(len(perm)) if d not in contract[k] and d not in batch[k]]
    n_batch, data_ndim = len(batch[k]), site.eqn.invars[1 - k].aval.ndim
    n_rows = data_ndim - n_batch - len(contract[k])
    first_free = n_batch + (n_rows if k == 1 else 0)

    def sort_axes(weight_axes: Any, *others: Any) -> list[tuple[int, ...]]:
        order = np.argsort([perm[d] for d in weight_axes]) if len(weight_axes) else ()
        lists = ([perm[d] for d in weight_axes], *others)
        return [tuple(int(x[i]) for i in order) for x in lists]

    batched, data_batch, out_batch = sort_axes(batch[k], batch[1 - k], range(n_batch))
    contracted, data_contract = sort_axes(contract[k], contract[1 - k])
    base_free, out_free = sort_axes(free, range(first_free, first_free + len(free)))
    return _Axes(
        base, (batched, contracted, base_free), (data_batch, data_contract), (out_batch, out_free)
    )


def layout(site: Site) -> FactorLayout:
    """Layout: `T` has the batched axes, `D` and `K` the contracted and free axes, or vice versa."""
    axes = _axes(site)
    batched, contracted, free = axes.weight
    parts = (batched, free, contracted) if axes.swapped else (batched, contracted, free)
    order = [d for part in parts for d in part]
    shape = axes.base.aval.shape
    return FactorLayout(
        axes.base,
        tuple(shape[d] for d in order),
        (len(parts[0]), len(parts[1]), len(parts[2])),
        tuple(int(i) for i in np.argsort(order)),
        shape,
    )


def cotangent_first(site: Site) -> bool:
    """Whether the left factor of the pair is the cotangents."""
    return _axes(site).swapped


def pair(site: Site, x: jax.Array, g: jax.Array) -> Pair:
    """Factors of one example: one row of the data and of the cotangent per position."""
    axes = _axes(site)
    inputs, cotangents = _rows(x, axes.data[0], axes.data[1]), output_rows(site, g)
    return Pair(cotangents, inputs) if axes.swapped else Pair(inputs, cotangents)


def output_rows(site: Site, g: Any) -> Dense:
    """Reshape an array of the output's shape to one row per position."""
    axes = _axes(site)
    return _rows(g, axes.out[0], axes.out[1])


def _rows(x: Any, batched: tuple[int, ...], features: tuple[int, ...]) -> Dense:
    positions = [d for d in range(x.ndim) if d not in batched and d not in features]
    sizes = [int(np.prod([x.shape[d] for d in part])) for part in (batched, positions, features)]
    return Dense((x.transpose(*batched, *positions, *features).reshape(sizes),))

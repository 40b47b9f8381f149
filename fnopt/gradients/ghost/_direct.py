"""Elementwise sites: biases, scales, and other sites whose derivative has the output's size."""

from __future__ import annotations

from typing import Any

import jax

from fnopt.gradients.ghost._sites import Site
from fnopt.gradients.ghost._weights import map_over_scans
from fnopt.programs import jaxprs
from fnopt.sharding import reshard_like


def tangent(
    site: Site, weight: Any, change: Any, others: list[Any], around: tuple[int, ...]
) -> jax.Array:
    """Tangent of a site's output along a tangent of its weight, for one example.

    Args:
        site: The site.
        weight: The stacked value of its weight.
        change: The tangent of the weight.
        others: The other operands; those of the example have an axis for every scan, weights are
            stacked.
        around: The shape of the output, which begins with the lengths of the scans.
    """
    whole = _map_over_scans(site, around)
    return jax.jvp(lambda w: whole(w, *others), (weight,), (change,))[1]


def gradient(site: Site, weight: Any, others: list[Any], g: jax.Array) -> jax.Array:
    """Gradient of one example with respect to the stacked value of the site's weight.

    Args:
        site: The site.
        weight: The stacked value of its weight.
        others: The other operands; those of the example have an axis for every scan, weights are
            stacked.
        g: The cotangent of the output.
    """
    whole = _map_over_scans(site, g.shape)
    # The output itself is needed only where the equation is nonlinear; else XLA removes it.
    out, transposed = jax.vjp(lambda w: whole(w, *others), weight)
    return transposed(reshard_like(g, out))[0]


def _map_over_scans(site: Site, around: tuple[int, ...]) -> Any:
    """Map an equation over the iterations of the enclosing scans, as a function of its operands."""
    k = site.position
    axes = [site.axes if isinstance(o, int) else o.axes for o in site.others]

    def bind_equation(w: Any, *others: Any) -> Any:
        (out,) = jaxprs.bind(site.eqn, [*others[:k], w, *others[k:]])
        return out

    return map_over_scans(bind_equation, site.axes, [site.weight.axes, *axes], around)

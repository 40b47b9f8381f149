"""Rule for elementwise sites, such as biases and scales: form the gradient of every example."""

from __future__ import annotations

from typing import Any

import jax

from fnopt.gradients.ghost._sites import Site
from fnopt.gradients.ghost._weights import map_over_scans
from fnopt.programs import jaxprs
from fnopt.sharding import reshard_like


def tangent(
    site: Site, weight: Any, weight_tangent: Any, others: list[Any], shape: tuple[int, ...]
) -> jax.Array:
    """Tangent of a site's output along a tangent of its weight, for one example.

    Args:
        site: The site.
        weight: The stacked value of the weight.
        weight_tangent: The tangent of the weight.
        others: The other operands. Values of the example have an axis for every scan; weights are
            stacked.
        shape: The shape of the output, which begins with the lengths of the scans.
    """
    equation = _map_over_scans(site, shape)
    return jax.jvp(lambda w: equation(w, *others), (weight,), (weight_tangent,))[1]


def gradient(site: Site, weight: Any, others: list[Any], g: jax.Array) -> jax.Array:
    """Gradient of one example with respect to the stacked value of the site's weight.

    Args:
        site: The site.
        weight: The stacked value of the weight.
        others: The other operands. Values of the example have an axis for every scan; weights are
            stacked.
        g: The cotangent of the output.
    """
    equation = _map_over_scans(site, g.shape)
    # XLA removes the forward pass if the equation is linear in the weight.
    out, transposed = jax.vjp(lambda w: equation(w, *others), weight)
    return transposed(reshard_like(g, out))[0]


def _map_over_scans(site: Site, shape: tuple[int, ...]) -> Any:
    """Function of the operands that maps the site's equation over the enclosing scans."""
    k = site.position
    axes = [site.axes if isinstance(o, int) else o.axes for o in site.others]

    def bind_equation(w: Any, *others: Any) -> Any:
        (out,) = jaxprs.bind(site.eqn, [*others[:k], w, *others[k:]])
        return out

    return map_over_scans(bind_equation, site.axes, [site.weight.axes, *axes], shape)

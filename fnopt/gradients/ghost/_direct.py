"""Biases, scales and all else whose derivative is hardly larger than the output."""

from __future__ import annotations

from typing import Any

import jax

from fnopt.gradients.ghost._sites import Site
from fnopt.gradients.ghost._weights import over_scans
from fnopt.programs import jaxprs


def gradient(site: Site, weight: Any, others: list[Any], g: jax.Array) -> jax.Array:
    """The gradient of one example with respect to the stacked value of the site's weight.

    Args:
        site: The site.
        weight: The stacked value of its weight.
        others: The other operands; of the example with an axis for every scan, weights stacked.
        g: The cotangent of the output.
    """
    k = site.position
    axes = [site.axes if isinstance(o, int) else o.axes for o in site.others]

    def run(w: Any, *others: Any) -> Any:
        (out,) = jaxprs.bind(site.eqn, [*others[:k], w, *others[k:]])
        return out

    whole = over_scans(run, site.axes, [site.weight.axes, *axes], g.shape)
    # Nothing of the output is needed where the equation is linear; the compiler drops it.
    _, transposed = jax.vjp(lambda w: whole(w, *others), weight)
    return transposed(g)[0]

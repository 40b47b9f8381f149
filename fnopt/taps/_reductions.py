"""Reductions of captured values: norms, means, histograms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.errors import names_text
from fnopt.numerics import exponents, floor_power_of_two, widen

Reduction = Callable[[Any], Any]


def _mean(x: jax.Array) -> jax.Array:
    # A sum, because `jnp.mean` of an empty array is NaN.
    return jnp.sum(widen(x)) / max(x.size, 1)


def _rms(x: jax.Array) -> jax.Array:
    magnitude = jnp.abs(widen(x))
    # The scale prevents underflow: squares of cotangents such as 1e-25 are zero in float32.
    scale = floor_power_of_two(jnp.max(magnitude, initial=0.0))
    return scale * jnp.sqrt(jnp.sum(jnp.square(magnitude / scale)) / max(x.size, 1))


REDUCTIONS: dict[str, Reduction] = {
    "mean": _mean,
    "rms": _rms,
    "max": lambda x: jnp.max(jnp.abs(widen(x)), initial=0.0),
    "zeros": lambda x: _mean(x == 0),
    # The last axis indexes features, and the other axes index examples.
    "dead": lambda x: _mean(jnp.all(x == 0, axis=tuple(range(x.ndim - 1)))),
    "nonfinite": lambda x: _mean(~jnp.isfinite(x)),
    "histogram": lambda x: exponents.histogram(jnp.abs(widen(x))),
}


def as_reduction(name: str, reduce: Any) -> Reduction | None:
    """Convert a name, a function, or a sequence or dict of both to a function of one array."""
    if reduce is None or callable(reduce):
        return reduce
    if isinstance(reduce, str):
        return _named_reduction(name, reduce)
    if not isinstance(reduce, Mapping):
        if any(map(callable, reduce)):
            raise TypeError(
                f"{name}: reduce is a sequence with a function without a name, expected names or "
                "a dict. Write {'rms': 'rms', 'mine': fn}."
            )
        reduce = {key: key for key in reduce}
    parts = {key: as_reduction(name, part) for key, part in reduce.items()}

    return lambda x: {key: x if part is None else part(x) for key, part in parts.items()}


def _named_reduction(name: str, reduce: str) -> Reduction:
    if reduce not in REDUCTIONS:
        raise ValueError(
            f"{name}: reduce is {reduce!r}, expected one of {names_text([*REDUCTIONS])} or a "
            "function of an array."
        )
    return REDUCTIONS[reduce]

"""The step counts of a saved state for those of a fresh one: members keep them where needed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

# The fields of wrappers that don't pass every call on: `accumulate`, `conditionally_mask`.
_STEPS_MADE = "gradient_step"
_HOLD_CALLS_BACK = (_STEPS_MADE, "step")


def recount(
    counts: Iterable[str], other: set[str], sources: dict[str, Any], given: int | None
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Gives fresh counts the number of saved ones, and takes away those that nobody needs.

    Args:
        counts: The names of the fresh tree's counts.
        other: The names of its other leaves.
        sources: The saved leaves by name; changed.
        given: The number of steps, for counts that weren't saved; None for that of the saved
            counts nearest to them in the tree, if these agree.

    Returns:
        What counts that weren't saved were taken from, by name; and the saved counts that the
        fresh tree has no place for, but whose number it has.
    """
    saved = {k: x for k, x in sources.items() if _is_count(k, x, other)}
    held = {
        k.removesuffix(_field(k))
        for k in other.intersection(sources)
        if _field(k) in _HOLD_CALLS_BACK
    }
    filled: dict[str, str] = {}
    for name in counts:
        if name in sources:
            continue
        pace = _pace(name, held)
        near = _nearest(name, [k for k in saved if _pace(k, held) == pace])
        if given is not None:
            sources[name], filled[name] = np.int32(given), "count="
        elif near and all(same(saved[near[0]], saved[k]) for k in near):
            sources[name], filled[name] = saved[near[0]], near[0]
    kept = {name: sources[name] for name in counts if name in sources}
    superfluous = [k for k in saved if k not in kept and k not in other]
    known = [k for k in superfluous if any(same(saved[k], x) for x in kept.values())]
    for name in known:
        del sources[name]
    return filled, tuple(name for name in known if name not in filled.values())


def _is_count(name: str, x: Any, other: set[str]) -> bool:
    counts = _field(name) == _STEPS_MADE or (_field(name) == "count" and name not in other)
    return counts and jnp.issubdtype(jnp.result_type(x), jnp.integer)


def _field(name: str) -> str:
    return name.rpartition("/")[2]


def _pace(name: str, held: Iterable[str]) -> str | None:
    """The place of the innermost wrapper around it that makes fewer steps than it is called."""
    return max((place for place in held if name.startswith(place)), key=len, default=None)


def _nearest(name: str, others: Iterable[str]) -> list[str]:
    """The names that begin most like this one: members of the same chain step together."""
    shared = {other: _common_parts(name, other) for other in others}
    return [other for other, n in shared.items() if n == max(shared.values())]


def _common_parts(a: str, b: str) -> int:
    same = [x == y for x, y in zip(a.split("/"), b.split("/"), strict=False)]
    return (*same, False).index(False)


def same(a: Any, b: Any) -> bool:
    """Whether two leaves are known to be equal: traced ones are if they are one object."""
    if a is b or isinstance(a, Tracer) or isinstance(b, Tracer):
        return a is b
    return np.array_equal(a, b)

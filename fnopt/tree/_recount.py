"""The step counts of a saved state for those of a fresh one: members keep them where needed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer


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
    saved = {k: x for k, x in sources.items() if k not in other and _is_count(k, x)}
    filled: dict[str, str] = {}
    for name in counts:
        if name in sources:
            continue
        near = _nearest(name, saved)
        if given is not None:
            sources[name], filled[name] = np.int32(given), "count="
        elif near and all(_same(saved[near[0]], saved[k]) for k in near):
            sources[name], filled[name] = saved[near[0]], near[0]
    kept = {name: sources[name] for name in counts if name in sources}
    known = [k for k in saved if k not in kept and any(_same(saved[k], x) for x in kept.values())]
    for name in known:
        del sources[name]
    return filled, tuple(name for name in known if name not in filled.values())


def _is_count(name: str, x: Any) -> bool:
    return name.rpartition("/")[2] == "count" and jnp.issubdtype(jnp.result_type(x), jnp.integer)


def _nearest(name: str, others: Iterable[str]) -> list[str]:
    """The names that begin most like this one: members of the same chain step together."""
    shared = {other: _shared_parts(name, other) for other in others}
    return [other for other, n in shared.items() if n == max(shared.values())]


def _shared_parts(a: str, b: str) -> int:
    same = [x == y for x, y in zip(a.split("/"), b.split("/"), strict=False)]
    return (*same, False).index(False)


def _same(a: Any, b: Any) -> bool:
    if a is b or isinstance(a, Tracer) or isinstance(b, Tracer):
        return a is b
    return np.array_equal(a, b)

"""The compiler's own figures for a program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from fnopt.costs._remarks import Compiled


def compiled_cost(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Compiled:
    """Compiles `fn` for the default backend and reads its analysis; nothing is executed.

    A function that is jitted already is compiled as it is, so its donated arguments count once.
    """
    jitted: Any = fn if hasattr(fn, "lower") else jax.jit(fn)
    compiled = jitted.lower(*args, **kwargs).compile()
    analysis, memory = compiled.cost_analysis() or {}, compiled.memory_analysis()
    analysis = analysis[0] if isinstance(analysis, list) else analysis
    kinds = ("argument", "output", "temp", "alias")
    own, host = (
        [int(getattr(memory, f"{prefix}{kind}_size_in_bytes", 0)) for kind in kinds]
        for prefix in ("", "host_")
    )
    return Compiled(
        flops=float(analysis.get("flops", 0.0)),
        transcendentals=float(analysis.get("transcendentals", 0.0)),
        bytes_accessed=float(analysis.get("bytes accessed", 0.0)),
        argument_bytes=own[0],
        output_bytes=own[1],
        temp_bytes=own[2],
        peak_bytes=_total(own),
        host_bytes=_total(host),
    )


def _total(sizes: list[int]) -> int:
    """Arguments, results and working memory, less what is donated."""
    *parts, shared = sizes
    return sum(parts) - shared

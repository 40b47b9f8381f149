"""FLOPs and bytes of a function, from its jaxpr and from the compiler."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from fnopt.costs._count import count
from fnopt.costs._graph import prune, trace_graph
from fnopt.costs._remarks import Compiled
from fnopt.costs._result import Cost
from fnopt.errors import is_integer, leaf_text, leaves_with_names

TripCounts = int | Mapping[str, int] | None


def cost(
    fn: Callable[..., Any], *, trip_counts: TripCounts = None, compile: bool = False
) -> Callable[..., Cost]:
    r"""Count the FLOPs and bytes of a function without running it.

    The function is traced for the shapes of its arguments, and the costs of all operations on which
    the result depends are summed. The cost of a loop's body is multiplied by the trip count. For a
    cond, the maximum over the branches is counted, separately for FLOPs and bytes; if the branches
    have different costs, the result is `at_most`.

    A matrix product of `[m, k]` and `[k, n]` takes `2 m k n` FLOPs. A convolution takes 2 FLOPs for
    each product of a kernel entry and an input element. Other floating-point operations take 1 FLOP
    for each element of the result. A reduction of `n` numbers (also max, argmax) takes `n - 1`
    FLOPs, as in the compiler's count. exp, log, tanh, sqrt, ... are counted separately. Casts and
    integer operations aren't counted.

    The byte count assumes that all elementwise operations are fused. The operands and results of
    matrix products, convolutions, sorts and factorizations are counted in every iteration of a
    loop. Other arguments and results of `fn` are counted once.

    Args:
        fn: Any function of arrays that JAX can trace, such as a jitted function, a gradient, or a
            training step.
        trip_counts: Trip counts of while loops: an integer for all loops, or a dict keyed by the
            names of loops in the result. A `jax.lax.fori_loop` with concrete bounds (constants, or
            integers among the arguments) needs no entry. Without an entry, a loop that may end
            early, such as `(error > tol) & (i < 50)`, is counted with its limit, and the result is
            `at_most`. For other loops without an entry, one iteration is counted, and the result is
            neither `at_most` nor `exact`.
        compile: Whether to compile `fn` as well, for the memory use and the compiler's FLOP count
            (which counts the body of every loop once).

    Returns:
        A function of the arguments of `fn` (arrays or `jax.ShapeDtypeStruct`s) that returns a
        `Cost`.

    Raises:
        TypeError: If `fn` isn't a function, or an argument isn't an array.
        ValueError: If `trip_counts` names a loop that doesn't exist, or a trip count is negative,
            or an argument has a symbolic dimension.

    Example:
        >>> from fnopt.costs import cost
        >>> def rnn(w, x):
        ...     return jax.lax.scan(lambda h, _: (jnp.tanh(h @ w), None), x, length=100)[0]
        >>> w, x = jnp.ones((64, 64)), jnp.ones((8, 64))
        >>> c = cost(rnn, compile=True)(w, x)
        >>> c.matmul_flops == 100 * 2 * 8 * 64 * 64, c.transcendentals == 100 * 8 * 64
        (True, True)
        >>> c.compiled.flops < 2 * c.flops / 100
        True
    """
    if not callable(fn):
        raise TypeError(f"cost: fn is {type(fn).__name__}, expected a function of arrays.")
    counts = checked_trip_counts(trip_counts)

    @functools.wraps(fn, updated=())
    def cost_fn(*args: Any, **kwargs: Any) -> Cost:
        check_arrays("cost", args, kwargs)
        graph, _ = prune(trace_graph(fn, args, kwargs))
        result = count(graph, counts)
        check_all_used(counts, result)
        return dataclasses.replace(
            result, compiled=compiled_cost(fn, args, kwargs) if compile else None
        )

    return cost_fn


def check_all_used(trip_counts: Mapping[str, int], result: Cost) -> None:
    """Raise a ValueError if `trip_counts` names a loop that doesn't exist."""
    loops = [loop.name for loop in result.loops if loop.is_while]
    for name in set(trip_counts) - {"*", *loops}:
        raise ValueError(
            f"cost: trip_counts has the unknown key {name!r}, expected names of while loops: "
            f"{loops}. A scan needs no trip count, because its length is known."
        )


def checked_trip_counts(trip_counts: TripCounts) -> dict[str, int]:
    """Check trip counts; return a dict keyed by loop names, `'*'` for all other loops."""
    named = trip_counts if isinstance(trip_counts, Mapping) else {"*": trip_counts}
    counts = {name: n for name, n in named.items() if n is not None}
    for name, n in counts.items():
        if not is_integer(n, 0):
            loop = "" if name == "*" else f" of {name!r}"
            raise ValueError(f"cost: trip_counts{loop} is {n!r}, expected an integer >= 0.")
    return {name: int(n) for name, n in counts.items()}


def check_arrays(what: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Check that every leaf of the arguments is an array of known shape."""
    for name, leaf in leaves_with_names((args, dict(kwargs)))[0]:
        # `0/1/w` is leaf `w` of the second positional argument, `1/x` the keyword argument `x`.
        kind, first, *rest = name.split("/")
        argument = f"argument {first}" if kind == "0" else f"keyword argument {first!r}"
        path = f"{leaf_text('/'.join(rest))} of {argument}" if rest else argument
        if isinstance(leaf, (bool, int, float, complex, np.generic)):
            continue
        if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
            raise TypeError(
                f"{what}: {path} is {type(leaf).__name__}, expected an array or a "
                "jax.ShapeDtypeStruct. Close over other values, as in "
                f"{what}(lambda x: fn(x, setting))(x)."
            )
        if not all(isinstance(d, (int, np.integer)) for d in leaf.shape):
            raise ValueError(
                f"{what}: {path} has the shape {tuple(leaf.shape)}, expected integers. Replace "
                "symbolic sizes by concrete sizes."
            )


def compiled_cost(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Compiled:
    """Compile `fn` for the default backend and return XLA's analysis; nothing is executed.

    The donated arguments of a jitted function stay donated, so they are counted once.
    """
    jitted: Any = fn if hasattr(fn, "lower") else jax.jit(fn)
    compiled = jitted.lower(*args, **kwargs).compile()
    analysis, memory = compiled.cost_analysis() or {}, compiled.memory_analysis()
    # Older releases of JAX return a list with an entry for each partition.
    analysis = analysis[0] if isinstance(analysis, list) else analysis
    kinds = ("argument", "output", "temp", "alias")
    device, host = (
        [int(getattr(memory, f"{prefix}{kind}_size_in_bytes", 0)) for kind in kinds]
        for prefix in ("", "host_")
    )
    peak_bytes, host_bytes = (
        arguments + results + temporaries - donated
        for arguments, results, temporaries, donated in (device, host)
    )
    return Compiled(
        flops=float(analysis.get("flops", 0.0)),
        transcendentals=float(analysis.get("transcendentals", 0.0)),
        bytes_accessed=float(analysis.get("bytes accessed", 0.0)),
        argument_bytes=device[0],
        output_bytes=device[1],
        temp_bytes=device[2],
        peak_bytes=peak_bytes,
        host_bytes=host_bytes,
    )

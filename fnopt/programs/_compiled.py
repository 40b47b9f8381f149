"""Compilation once for a program, not once for a function."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax.core import Tracer, eval_jaxpr

# Programs. On a CPU one of a least-squares fit takes some 310 memory mappings, and Linux gives a
# process 65,530 by default; a compilation that gets none ends in an error or ends the process.
KEPT = 32
_CONFIG: Any = jax.config  # its fields are made at run time


@dataclass(frozen=True)
class _Program:
    """A lowered program; equal to any other of the same text, for the same types and devices."""

    digest: str
    types: tuple[Any, ...]  # the text doesn't show which are weak
    devices: tuple[Any, ...]
    lowered: Any = field(compare=False)


def call_compiled(fn: Callable[..., Any], *args: Any) -> Any:
    r"""Calls `jax.jit(fn)(*args)`, but never compiles the same program twice.

    `jax.jit` keeps its programs by the identity of a function, and whatever else the function
    reads is as it was at the first call. A function that is called with closures of a user
    (residuals that close over data, most often) needs the opposite: here it is traced in every
    call, so nothing can be stale, and what is compiled is looked up by the program that comes out.
    Arrays that it closes over are arguments of that program: other data of the same shapes need
    no other compilation.

    Tracing takes a small part of the time of a compilation, but it is not free: a loop of many
    calls belongs into a function under `jax.jit`. There, or under `jax.grad` and `jax.vmap`, this
    is `jax.jit(fn)(*args)`; and so it is where the program calls back to Python, because its text
    doesn't say to whom.

    Args:
        fn: A function of pytrees of arrays.
        *args: Its arguments.

    Returns:
        What `fn` returns.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.programs import call_compiled
        >>> [float(call_compiled(lambda x: x * scale, jnp.float32(2))) for scale in (1.0, 3.0)]
        [2.0, 6.0]
    """
    if not runs_now(args):
        return jax.jit(fn)(*args)
    closed, shapes = jax.make_jaxpr(fresh(fn), return_shape=True)(*args)
    if any_traced(closed.consts):
        return jax.jit(fn)(*args)
    leaves = (*closed.consts, *jax.tree.leaves(args))

    def run(*leaves: Any) -> list[Any]:
        consts, inputs = leaves[: len(closed.consts)], leaves[len(closed.consts) :]
        return eval_jaxpr(closed.jaxpr, consts, *inputs)

    lowered = jax.jit(run).lower(*leaves)
    text = lowered.as_text()
    if "callback" in text:
        compiled = lowered.compile()
    else:
        types = (*map(jax.typeof, leaves), *closed.out_avals)
        compiled = _compile(_Program(_digest(text), types, _devices(leaves), lowered))
    return jax.tree.unflatten(jax.tree.structure(shapes), compiled(*leaves))


def fresh(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The same function as another object, so that JAX doesn't take an earlier trace of it.

    `jax.eval_shape` and `jax.make_jaxpr` remember what a function did by its identity; one that
    reads something which has changed since would be described as it was.
    """
    return lambda *args, **kwargs: fn(*args, **kwargs)


@functools.lru_cache(maxsize=KEPT)
def _compile(program: _Program) -> Any:
    return program.lowered.compile()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _devices(leaves: tuple[Any, ...]) -> tuple[Any, ...]:
    return (
        _CONFIG.jax_default_device,
        *(getattr(leaf, "sharding", None) for leaf in leaves),
    )


def runs_now(args: Any) -> bool:
    """Whether a program of these arguments would be run, and not be a part of another one."""
    return not (_is_staged() or _CONFIG.jax_disable_jit or any_traced(args))


def _is_staged() -> bool:
    """Whether operations are being recorded rather than run."""
    return isinstance(jax.lax.add(np.int32(0), np.int32(0)), Tracer)


def any_traced(tree: Any) -> bool:
    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(tree))

"""Whether a step is being traced into a program."""

from __future__ import annotations

from typing import Any

from jax.interpreters import partial_eval

# If a release of JAX names it otherwise, nothing is taken for staged: right, and slower to trace.
_STAGED: Any = getattr(partial_eval, "DynamicJaxprTracer", ())


def is_staged(*arrays: Any) -> bool:
    """Whether one of the arrays belongs to a program that is being traced.

    Operations become equations of that program then, of known numbers too. Under a `vmap` or a
    `grad` outside of `jit` they run one by one.
    """
    for x in arrays:  # noqa: SIM110  (an eager update asks it of every member)
        if isinstance(x, _STAGED):
            return True
    return False

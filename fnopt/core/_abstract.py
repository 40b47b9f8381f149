"""Arrays without values: shapes in place of params, and tracers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core as jex
from jax.interpreters import partial_eval

from fnopt.core._errors import names_text, where
from fnopt.core._paths import leaves_with_names


def is_abstract(params: Any) -> bool:
    """Whether a leaf is a `jax.ShapeDtypeStruct`."""
    return any(isinstance(p, jax.ShapeDtypeStruct) for p in jax.tree.leaves(params))


def zeros_for(init: Callable[[Any], Any], params: Any, caller: str = "") -> Any:
    """Zeros in place of shapes, for an `init` whose state depends on no value of the params.

    Args:
        init: Makes the state from params.
        params: The params; at least one leaf is a `jax.ShapeDtypeStruct`.
        caller: The name of the function in the message.

    Raises:
        ValueError: If the state depends on values; the message names its leaves.
    """
    names = _leaves_from_values(init, params)
    if names:
        raise ValueError(
            f"{caller}{where()}the state's {names_text(names)} begin with values of the params, of "
            "which only shapes were given: give the params as arrays, or call "
            "jax.eval_shape(tx.init, params) for the shapes of the state."
        )
    return jax.tree.map(_zeros, params)


def _zeros(p: Any) -> Any:
    if not isinstance(p, jax.ShapeDtypeStruct):
        return p
    return jnp.zeros(p.shape, p.dtype, device=p.sharding)


def _leaves_from_values(init: Callable[[Any], Any], params: Any) -> list[str]:
    bare = jax.tree.map(lambda p: jax.ShapeDtypeStruct(jnp.shape(p), jnp.result_type(p)), params)
    closed, state = jax.make_jaxpr(init, return_shape=True)(bare)
    known = {*closed.jaxpr.invars}
    for eqn in closed.jaxpr.eqns:
        if known & {x for x in eqn.invars if not isinstance(x, jex.Literal)}:
            known |= {*eqn.outvars}
    named = zip(leaves_with_names(state)[0], closed.jaxpr.outvars, strict=True)
    return [name for (name, _), x in named if not isinstance(x, jex.Literal) and x in known]


# If a release of JAX names it otherwise, nothing is taken for staged: right, and slower to trace.
_TRACER: Any = getattr(partial_eval, "DynamicJaxprTracer", ())


def is_traced(*arrays: Any) -> bool:
    """Whether one of the arrays belongs to a program that is being traced.

    Operations become equations of that program then, of known numbers too. Under a `vmap` or a
    `grad` outside of `jit` they run one by one.
    """
    for x in arrays:  # noqa: SIM110  (an eager update asks it of every member)
        if isinstance(x, _TRACER):
            return True
    return False

"""States made from the shapes of params."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core as jex

from fnopt.errors import leaves_with_names, names_text, where


def is_abstract(params: Any) -> bool:
    """Whether a leaf is a `jax.ShapeDtypeStruct`."""
    return any(isinstance(p, jax.ShapeDtypeStruct) for p in jax.tree.leaves(params))


def zeros_for(init: Callable[[Any], Any], params: Any, caller: str = "") -> Any:
    """Call `init` with zeros in place of shapes, if the state doesn't depend on the params' values.

    Args:
        init: Function that makes the state from params.
        params: The params, of which at least one leaf is a `jax.ShapeDtypeStruct`.
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
    return jax.tree.map(
        lambda p: jnp.zeros(p.shape, p.dtype, device=p.sharding) if is_abstract(p) else p, params
    )


def _leaves_from_values(init: Callable[[Any], Any], params: Any) -> list[str]:
    # Forward reachability in the jaxpr: a value depends on the params if one of its operands does.
    # Literals and constants have no equation, so zeros of any shape stay outside.
    bare = jax.tree.map(lambda p: jax.ShapeDtypeStruct(jnp.shape(p), jnp.result_type(p)), params)
    closed, state = jax.make_jaxpr(init, return_shape=True)(bare)
    known = {*closed.jaxpr.invars}
    for eqn in closed.jaxpr.eqns:
        if known & {x for x in eqn.invars if not isinstance(x, jex.Literal)}:
            known |= {*eqn.outvars}
    named = zip(leaves_with_names(state)[0], closed.jaxpr.outvars, strict=True)
    return [name for (name, _), x in named if not isinstance(x, jex.Literal) and x in known]

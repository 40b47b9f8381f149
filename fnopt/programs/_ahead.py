"""Loop-invariant operations, computed once ahead of a loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.extend import core as jex

from fnopt.programs import _read as jaxprs
from fnopt.programs._tracing import traced_once
from fnopt.sharding import explicit_spec

_LATER = object()  # stands for a value that isn't known yet


def products_ahead(fn: Callable[..., Any], *args: Any, largest: int) -> Callable[..., Any]:
    r"""Compute the matrix products of a function that don't depend on its arguments.

    The Jacobian of :math:`f(A x)` is :math:`f'(A x)\, A`. Forward mode gets the `A` in it as the
    product with all unit vectors, anew at every `x`, for the price of :math:`A^T A`. XLA moves
    such a product out of a loop, but not out of a branch within the loop.

    Args:
        fn: A function of arrays; what else it reads it closes over.
        *args: Arrays like those that it will be called with, or their shapes and dtypes.
        largest: How many numbers a product may have: those that are made ahead are all kept.

    Returns:
        The same function, traced once; as it is where there is no such product.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from fnopt.programs import products_ahead
        >>> A, x = jnp.eye(2), jnp.ones(2)
        >>> fn = products_ahead(lambda x: (A @ A) * (A @ x), x, largest=4)
        >>> str(jax.make_jaxpr(fn)(x)).count("dot_general")
        1
    """
    fn = traced_once(fn)
    closed, out = jax.make_jaxpr(fn, return_shape=True)(*args)
    structure = jax.tree.structure(out)
    products: dict[jaxprs.Place, list[Any]] = {}

    def early(place: jaxprs.Place, eqn: jex.JaxprEqn, ins: list[Any]) -> list[Any]:
        if eqn.effects or any(value is _LATER for value in ins):
            return [_LATER] * len(eqn.outvars)
        outs = jaxprs.bind(eqn, ins)
        if eqn.primitive.name == "dot_general" and outs[0].size <= largest:
            products[place] = outs
        return outs

    def late(place: jaxprs.Place, eqn: jex.JaxprEqn, ins: list[Any]) -> list[Any]:
        return products[place] if place in products else jaxprs.bind(eqn, ins)

    def run(*args: Any) -> Any:
        leaves = jax.tree.leaves(args)
        if any(
            explicit_spec(x) != explicit_spec(t)
            for x, t in zip(leaves, closed.in_avals, strict=True)
        ):
            return fn(*args)  # spread over devices otherwise than it was traced for
        return jax.tree.unflatten(structure, jaxprs.run(closed.jaxpr, closed.consts, args, late))

    jaxprs.run(closed.jaxpr, closed.consts, [_LATER] * len(args), early)
    return run if products else fn

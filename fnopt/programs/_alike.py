"""A function in which alike operations on many arrays are one operation on all of them.

A function of a tree with a thousand leaves does the same with each of them, most often: its
program has a few operations a leaf, of which a compiler makes a kernel each, anew in every copy of
the program and of its derivatives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.extend import core as jex

from fnopt.programs import _read as jaxprs
from fnopt.programs._at_once import AtOnce
from fnopt.programs._order import is_one_of, numbers
from fnopt.programs._tracing import traced_once, uncached
from fnopt.sharding import is_sharded

_SHORT = 50  # operations, with which nothing is to be won
_KEPT = 4096  # numbers, that are kept rather than made of fewer again and again
_WORTH = 0.5  # of the operations, that may be left for it to be worth it


def alike_together(fn: Callable[[jax.Array], Any], x: jax.Array) -> Callable[[jax.Array], Any]:
    """Batch similar operations of a function, where that at least halves their number.

    Operations are alike if they are the same but for their arrays, which have the same shapes (of
    up to 4,096 numbers), and need as many operations before them. What doesn't depend on the
    argument is computed now. Sums may be rounded otherwise; nothing else changes.

    Args:
        fn: A function of one array; what else it reads it closes over.
        x: An array like those that it will be called with.

    Returns:
        The same function, traced once; `fn` itself where little is alike in it, where it is short,
        has effects, or where arrays are spread over devices.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from fnopt.programs import alike_together
        >>> def fn(x):
        ...     return jnp.stack([jnp.sin(part[0]) for part in jnp.split(x, 40)])
        >>> x = jnp.arange(40.0)
        >>> str(jax.make_jaxpr(alike_together(fn, x))(x)).count("sin ")
        1
    """
    if not jax.sharding.get_abstract_mesh().empty:
        return fn
    closed, shapes = jax.make_jaxpr(uncached(fn), return_shape=True)(x)
    spread = any(map(is_sharded, closed.consts))
    if spread or closed.effects or jaxprs.program_size(closed.jaxpr) < _SHORT:
        return fn

    def inlined(x: jax.Array) -> list[Any]:
        return jaxprs.run(closed.jaxpr, closed.consts, [x], lambda _, *eqn: jaxprs.bind(*eqn))

    program = jax.make_jaxpr(inlined)(x)
    together = jax.make_jaxpr(AtOnce(program).run)(x)
    if len(together.jaxpr.eqns) > _WORTH * len(program.jaxpr.eqns):
        return fn
    run, structure = _with_the_known(together), jax.tree.structure(shapes)
    return traced_once(lambda x: jax.tree.unflatten(structure, run(x)))


def _with_the_known(closed: jex.ClosedJaxpr) -> Callable[[jax.Array], list[Any]]:
    """A program of one array, with what doesn't depend on that computed now."""
    jaxpr = closed.jaxpr
    known = jaxprs.Environment(jaxpr, closed.consts, [None])
    names: list[jex.Var] = []
    later, rest = set(jaxpr.invars), []
    for eqn in jaxpr.eqns:
        if _grows(eqn) or any(is_one_of(atom, later) for atom in eqn.invars):
            rest.append(eqn)
            later.update(eqn.outvars)
        else:
            known.write(eqn.outvars, jaxprs.bind(eqn, known.read(eqn.invars)))
            names.extend(eqn.outvars)
    values = known.read(names)

    def run(x: jax.Array) -> list[Any]:
        env = jaxprs.Environment(jaxpr, closed.consts, [x])
        env.write(names, values)
        for eqn in rest:
            env.write(eqn.outvars, jaxprs.bind(eqn, env.read(eqn.invars)))
        return env.read(jaxpr.outvars)

    return run


def _grows(eqn: jex.JaxprEqn) -> bool:
    """Whether what an operation makes is large, and more than what it is made of."""
    return sum(map(numbers, eqn.outvars)) > max(sum(map(numbers, eqn.invars)), _KEPT)

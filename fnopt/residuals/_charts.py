"""Params on manifolds as tangent coordinates with movable base points."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fnopt.manifolds import in_tangents, map_points
from fnopt.numerics import compute_dtype
from fnopt.residuals._curved import Charts, Parametrisation, curved
from fnopt.residuals._parameters import fixed, parametrised, tied


def charted(params: Any, constraints: Any = None) -> Parametrisation:
    """Separate the free variables; base points of manifolds are arguments of `assemble`.

    Args:
        params: As in :func:`parametrised`.
        constraints: As in :func:`parametrised`.

    Returns:
        The result of :func:`parametrised`. With params on manifolds, the free tree ends with their
        base points.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.manifolds import SO2, on
        >>> from fnopt.residuals import charted
        >>> made = charted(on(SO2, jnp.eye(2)))
        >>> coordinates, base = made.free
        >>> turned = made.assemble((coordinates + jnp.pi / 6, base))
        >>> print(coordinates, turned.value[1, 0].round(4))
        [1.] 0.5
    """
    made = parametrised(params, constraints)
    moving = [isinstance(kind, curved) for kind in made.kinds]
    if not any(moving):
        return made
    leaves, treedef = jax.tree.flatten(params)
    fitted = [kind for kind in made.kinds if not isinstance(kind, (fixed, tied))]
    size = len(fitted)

    def parametrised_at(bases: Any) -> Parametrisation:
        rest = iter(bases)
        here = [next(rest) if m else leaf for m, leaf in zip(moving, leaves, strict=True)]
        return parametrised(treedef.unflatten(here), constraints)

    def points(tree: Any) -> tuple[jax.Array, ...]:
        return tuple(x for m, x in zip(moving, jax.tree.leaves(tree), strict=True) if m)

    def assemble(free: Any) -> Any:
        found = parametrised_at(free[size:]).assemble(free[:size])
        return map_points(lambda _, p, x: x.astype(jnp.result_type(p)), params, found)

    def rebase(free: Any) -> Any:
        at = iter(free[size:])
        heads, reached = [], []
        for kind, u in zip(fitted, free[:size], strict=True):
            if isinstance(kind, curved):
                reached.append(kind.point(next(at), u))
                u = jnp.ones_like(u)
            heads.append(u)
        return (*heads, *reached)

    def tangent(free: Any) -> Any:
        given = iter(free)
        rows = [None if isinstance(kind, (fixed, tied)) else next(given) for kind in made.kinds]
        flat = jax.tree.leaves(in_tangents(assemble(free)))
        return [u if m else leaf for m, u, leaf in zip(moving, rows, flat, strict=True)]

    bases = tuple(jnp.asarray(x, compute_dtype(jnp.result_type(x))) for x in points(params))
    heads = parametrised_at(bases).free
    charts = Charts(sum(map(jnp.size, heads)), size, rebase, tangent)
    return Parametrisation((*heads, *bases), assemble, made.kinds, charts)

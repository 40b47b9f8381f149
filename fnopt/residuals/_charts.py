"""Parametrization of params on manifolds by tangent coordinates with variable base points."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fnopt.manifolds import in_tangents, map_points
from fnopt.numerics import compute_dtype
from fnopt.residuals._curved import Charts, Parametrization, curved
from fnopt.residuals._parameters import fixed, parametrize, tied


def charted(params: Any, constraints: Any = None) -> Parametrization:
    """Separate the free variables, with the base points of manifolds as extra variables.

    Args:
        params: As in :func:`parametrize`.
        constraints: As in :func:`parametrize`.

    Returns:
        The result of :func:`parametrize`. If params are on manifolds, the free tree ends with
        their base points, so `assemble` doesn't depend on fixed base points.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.manifolds import SO2, on
        >>> from fnopt.residuals import charted
        >>> parametrization = charted(on(SO2, jnp.eye(2)))
        >>> coordinates, base = parametrization.free
        >>> rotated = parametrization.assemble((coordinates + jnp.pi / 6, base))
        >>> print(coordinates, rotated.value[1, 0].round(4))
        [1.] 0.5
    """
    parametrization = parametrize(params, constraints)
    kinds = parametrization.kinds
    on_manifold = [isinstance(kind, curved) for kind in kinds]
    if not any(on_manifold):
        return parametrization
    leaves, treedef = jax.tree.flatten(params)
    fitted_kinds = [kind for kind in kinds if not isinstance(kind, (fixed, tied))]
    size = len(fitted_kinds)

    def parametrize_at(bases: Any) -> Parametrization:
        points = iter(bases)
        new = [next(points) if on else x for on, x in zip(on_manifold, leaves, strict=True)]
        return parametrize(treedef.unflatten(new), constraints)

    def points_of(tree: Any) -> tuple[jax.Array, ...]:
        return tuple(x for on, x in zip(on_manifold, jax.tree.leaves(tree), strict=True) if on)

    def assemble(free: Any) -> Any:
        assembled = parametrize_at(free[size:]).assemble(free[:size])
        # Points are computed in at least float32 and returned in the dtypes of the params.
        return map_points(lambda _, p, x: x.astype(jnp.result_type(p)), params, assembled)

    def rebase(free: Any) -> Any:
        bases = iter(free[size:])
        variables, points = [], []
        for kind, u in zip(fitted_kinds, free[:size], strict=True):
            if isinstance(kind, curved):
                points.append(kind.point(next(bases), u))
                u = jnp.ones_like(u)  # the coordinates of a base point, see `curved`
            variables.append(u)
        return (*variables, *points)

    def tangent(free: Any) -> Any:
        variables = iter(free)
        rows = [None if isinstance(kind, (fixed, tied)) else next(variables) for kind in kinds]
        flat = jax.tree.leaves(in_tangents(assemble(free)))
        return [u if on else x for on, u, x in zip(on_manifold, rows, flat, strict=True)]

    bases = tuple(jnp.asarray(x, compute_dtype(jnp.result_type(x))) for x in points_of(params))
    variables = parametrize_at(bases).free
    charts = Charts(sum(map(jnp.size, variables)), size, rebase, tangent)
    return Parametrization((*variables, *bases), assemble, kinds, charts)

"""Auxiliary outputs of residual functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from fnopt.core import where
from fnopt.residuals import example_residuals


def without_aux(residual_fn: Any, batch: Any = None) -> tuple[Any, Callable[..., Any]]:
    """A function of `(residuals, aux)`, or a container of such, as two: one for each.

    Args:
        residual_fn: `residual_fn(params, *args)` returns a pair; or a list, tuple or dict of such
            functions.
        batch: The examples, if they are functions of one.

    Returns:
        The residual function or functions, and the function of the rest, whose values are in a
        container like `residual_fn`.
    """
    if callable(residual_fn):
        aux = _part(residual_fn, 1)
        aux = aux if batch is None else example_residuals(aux, batch)
        return _part(residual_fn, 0), aux
    residuals = jax.tree.map(lambda fn: _part(fn, 0), residual_fn)
    if batch is not None:
        parts = jax.tree.map(lambda fn: _part(fn, 1), residual_fn)
        return residuals, example_residuals(parts, batch)

    def aux(*args: Any) -> Any:
        return jax.tree.map(lambda fn: _part(fn, 1)(*args), residual_fn)

    return residuals, aux


def _part(fn: Callable[..., Any], i: int) -> Callable[..., Any]:
    return lambda *args: _pair(fn(*args))[i]


def _pair(value: Any) -> Any:
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise TypeError(
            f"{where()}has_aux = True, but residual_fn returned {type(value).__name__}, expected a "
            "pair (residuals, aux)."
        )
    return value

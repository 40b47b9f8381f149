"""Auxiliary outputs of residual functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from fnopt.core import where


def without_aux(residual_fn: Any) -> tuple[Any, Callable[..., Any]]:
    """A function of `(residuals, aux)`, or a container of such, as two: one for each.

    Args:
        residual_fn: `residual_fn(params, *args)` returns a pair; or a list, tuple or dict of such
            functions.

    Returns:
        The residual function or functions, and the function of the rest, whose values are in a
        container like `residual_fn`.
    """
    if callable(residual_fn):
        return _part(residual_fn, 0), _part(residual_fn, 1)
    residuals = jax.tree.map(lambda fn: _part(fn, 0), residual_fn)

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

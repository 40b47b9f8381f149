"""The model of a batch of fits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.curves._curve_start import check_count_of_params, check_takes_tree
from fnopt.curves._residuals import call_model, has_jacobian
from fnopt.curves.batched._data import NAME, BatchData, one_fit
from fnopt.curves.batched._start import ParamLayout
from fnopt.errors import explain_jax_errors, explain_missing_keys
from fnopt.jacobians import lacks_forward
from fnopt.programs import TracedFunction, is_eager, trace_function

_MOST_PARAMS = 16  # unrolled factorization, so compile time grows with the cube of this number

Params = tuple[jax.Array, ...]
"""One number for each parameter of a fit."""
Predict = Callable[[Params, Any], jax.Array]
"""`predict(numbers, x)` returns the values of one fit."""
Jacobian = Callable[[Params, Any], jax.Array]
"""`jacobian(numbers, x)` returns the derivatives of these values, `[..., n]`."""


def checked_model(
    f: Callable[..., Any], layout: ParamLayout, data: BatchData
) -> Predict | TracedFunction:
    """Convert a user's function of one fit to a value if possible.

    The function is traced for one fit, so error messages refer to one fit.
    """
    numbers, points = one_fit(data)
    n, at = len(numbers), points.x
    if n > _MOST_PARAMS:
        raise ValueError(
            f"{NAME}: p0 has {n} params per fit, expected at most {_MOST_PARAMS}, because "
            "the factorization is unrolled. Use jax.vmap over fnopt.least_squares for larger "
            "problems."
        )

    def predict(x: Params, at: Any) -> Any:
        params = layout.params(x)
        with explain_missing_keys(params):
            return call_model(f, layout.passing, params, at)

    if layout.passing == "tree":
        check_takes_tree(f, at, layout.shapes, NAME)
    else:
        check_count_of_params(f, len(layout.names), NAME)
    with explain_jax_errors(NAME):
        found = _recorded(predict, data)
        value = jax.eval_shape(predict, numbers, at) if found is predict else found.returns
    _check_value(value, data.own.y.shape[1:])
    return found


def checked_jacobian(
    jac: Any, layout: ParamLayout, data: BatchData
) -> Jacobian | TracedFunction | None:
    """Convert a user's Jacobian of one fit to a value if possible."""
    if not has_jacobian(jac, layout.passing, NAME):
        return None
    numbers, points = one_fit(data)
    m, n, at = math.prod(points.y.shape), len(numbers), points.x

    def jacobian(x: Params, at: Any) -> jax.Array:
        J = jnp.asarray(jac(at, *x))
        if J.shape != (m, n):
            raise ValueError(
                f"{NAME}: jac returned shape {J.shape} for one fit, expected {(m, n)}: "
                "(points of one fit, params)."
            )
        return J

    with explain_jax_errors(NAME, "jac"):
        found = _recorded(jacobian, data)
        if found is jacobian:
            jax.eval_shape(jacobian, numbers, at)
    return found


def has_no_forward_mode(predict: Predict | TracedFunction, data: BatchData) -> bool:
    """Whether the model contains a `custom_vjp`."""
    if isinstance(predict, TracedFunction):  # a `TracedFunction` contains no `custom_vjp`
        return False
    numbers, points = one_fit(data)
    return lacks_forward(predict, numbers, points.x)


def _recorded(fn: Any, data: BatchData) -> Any:
    """Trace a function of one fit to a value; under `jit` or on a mesh, return it unchanged."""
    if not is_eager(data) or not jax.sharding.get_abstract_mesh().empty:
        return fn
    numbers, points = one_fit(data)
    found = trace_function(fn, numbers, points.x)
    return fn if found is None else found


def _check_value(value: Any, shape: tuple[int, ...]) -> None:
    if not hasattr(value, "shape") or jnp.issubdtype(value.dtype, jnp.complexfloating):
        raise TypeError(f"{NAME}: f returned {value!r}, expected a real array like y[0].")
    if value.shape not in {shape, ()}:
        raise ValueError(
            f"{NAME}: f returned shape {value.shape} for one fit, but one fit's data have "
            f"shape {shape}; expected the same. If x has an axis for the fits, pass "
            "x_per_fit=True."
        )

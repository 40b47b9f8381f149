"""Checks of the model and the Jacobian of a batch of fits, traced for one fit."""

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
from fnopt.errors import count_text, explain_jax_errors, explain_missing_keys
from fnopt.jacobians import lacks_forward
from fnopt.programs import TracedFunction, is_eager, trace_function

# The program of the unrolled factorization and solution has 96, 416, 2,240 and 14,208 operations
# for 4, 8, 16 and 32 params, and compiles in 0.4, 1.0, 2.7 and 11 s (CPU time).
_MOST_PARAMS = 16

Params = tuple[jax.Array, ...]
"""One number for each parameter of a fit."""
Predict = Callable[[Params, Any], jax.Array]
"""`predict(numbers, x)` returns the values of one fit."""
Jacobian = Callable[[Params, Any], jax.Array]
"""`jacobian(numbers, x)` returns the Jacobian of the values of one fit, `[..., n]`."""


def checked_model(
    f: Callable[..., Any], layout: ParamLayout, data: BatchData
) -> Predict | TracedFunction:
    """Check a user's model, and convert it to a `TracedFunction` if possible.

    The model is traced for one fit, so the shapes in error messages are the shapes of one fit.
    """
    numbers, points = one_fit(data)
    n, positions = len(numbers), points.x
    if n > _MOST_PARAMS:
        raise ValueError(
            f"{NAME}: p0 has {n} params per fit, expected at most {_MOST_PARAMS}, because the "
            "factorization is unrolled. Use jax.vmap of fnopt.least_squares for larger problems."
        )

    def predict(x: Params, positions: Any) -> Any:
        params = layout.params(x)
        with explain_missing_keys(params):
            return call_model(f, layout.passing, params, positions)

    if layout.passing == "tree":
        check_takes_tree(f, positions, layout.shapes, NAME)
    else:
        check_count_of_params(f, len(layout.names), NAME)
    with explain_jax_errors(NAME):
        traced = _trace(predict, data)
        value = jax.eval_shape(predict, numbers, positions) if traced is predict else traced.returns
    _check_value(value, data.own.y.shape[1:])
    return traced


def checked_jacobian(
    jac: Any, layout: ParamLayout, data: BatchData
) -> Jacobian | TracedFunction | None:
    """Check a user's Jacobian, and convert it to a `TracedFunction` if possible."""
    if not has_jacobian(jac, layout.passing, NAME):
        return None
    numbers, points = one_fit(data)
    m, n, positions = math.prod(points.y.shape), len(numbers), points.x

    def jacobian(x: Params, positions: Any) -> jax.Array:
        J = jnp.asarray(jac(positions, *x))
        if J.shape != (m, n):
            raise ValueError(
                f"{NAME}: jac returned shape {J.shape} for one fit, expected {(m, n)} for "
                f"{count_text(m, 'point')} and {count_text(n, 'param')}."
            )
        return J

    with explain_jax_errors(NAME, "jac"):
        traced = _trace(jacobian, data)
        if traced is jacobian:
            jax.eval_shape(jacobian, numbers, positions)
    return traced


def has_no_forward_mode(predict: Predict | TracedFunction, data: BatchData) -> bool:
    """Whether the model contains a `custom_vjp`."""
    if isinstance(predict, TracedFunction):  # `trace_function` doesn't trace a `custom_vjp`
        return False
    numbers, points = one_fit(data)
    return lacks_forward(predict, numbers, points.x)


def _trace(fn: Any, data: BatchData) -> Any:
    """Trace a function of one fit to a `TracedFunction`, which can be compared.

    A second call with an equal function then reuses the compiled program. Under `jax.jit`, on a
    mesh, or if tracing fails, the function is returned unchanged.
    """
    if not is_eager(data) or not jax.sharding.get_abstract_mesh().empty:
        return fn
    numbers, points = one_fit(data)
    traced = trace_function(fn, numbers, points.x)
    return fn if traced is None else traced


def _check_value(value: Any, shape: tuple[int, ...]) -> None:
    if not hasattr(value, "shape") or jnp.issubdtype(value.dtype, jnp.complexfloating):
        raise TypeError(f"{NAME}: f returned {value!r}, expected a real array like y[0].")
    if value.shape not in {shape, ()}:
        raise ValueError(
            f"{NAME}: f returned shape {value.shape} for one fit, expected {shape}, the shape of "
            "one fit's data. If x has an axis of fits, pass x_per_fit=True."
        )

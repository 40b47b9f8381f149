"""Evaluation and linearization of a function of fitted params."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.errors import NotForJaxError, check_function, explain_jax_errors, names_text, type_text
from fnopt.jacobians import is_about_forward_mode, ravel_with_held, value_and_jacobian
from fnopt.manifolds import along_tangents, in_tangents
from fnopt.programs import copy_function
from fnopt.sharding import reshape
from fnopt.solvers import Solution


def as_params(fit: Any, params: Any) -> Any:
    """Convert the params of the solution to the form of `fit.params`."""
    return fit.named(params) if hasattr(fit, "named") else params


class Caller(NamedTuple):
    """Names for messages about a function of the fitted params."""

    name: str  # the public function that the user called
    argument: str  # the name of the user's function
    advice: str = ""


def predicted_shape(
    predict: Callable[[Any], Any], params: Any, caller: Caller
) -> jax.ShapeDtypeStruct:
    """Trace a prediction for its shape and dtype, and explain errors of the user's function."""
    name, argument, advice = caller
    check_function(predict, argument, name)
    try:
        with explain_jax_errors(name, argument):
            # A copy, because JAX caches traces by function, and globals in it may change.
            prediction = jax.eval_shape(copy_function(predict), params)
    except NotForJaxError:
        raise
    except (AttributeError, LookupError, TypeError) as error:
        is_dict = isinstance(params, dict)
        kind = f"a dict with the keys {names_text([*params])}" if is_dict else type_text(params)
        raise TypeError(
            f"{name}: {argument}(params) raised {type(error).__name__}: {error}. The argument "
            f"`params` is {kind}, expected a function that accepts such params, for example "
            f"lambda p: f(x, {'**' * is_dict or '*'}p). {advice}".rstrip()
        ) from error
    if not hasattr(prediction, "shape"):
        kind = type(prediction).__name__
        raise TypeError(
            f"{name}: {argument} returned a {kind}, expected one array. Stack the leaves."
        )
    return prediction


def linearized_prediction(
    predict: Callable[[Any], Any], fit: Any, solution: Solution, caller: Caller
) -> tuple[jax.Array, jax.Array]:
    """Evaluate a function of the params, `[q]`, and its Jacobian `[q, n]`.

    For params on manifolds, the Jacobian is with respect to tangent coordinates.
    """
    x, tangents = ravel_with_held(in_tangents(solution.params))
    size = predicted_shape(predict, as_params(fit, solution.params), caller).size

    def flat(x: jax.Array) -> jax.Array:
        params = along_tangents(solution.params, tangents(x))
        return reshape(jnp.asarray(predict(as_params(fit, params))), -1).astype(x.dtype)

    try:
        return value_and_jacobian(flat, x, size)
    except TypeError as error:
        if not is_about_forward_mode(error):
            raise
        return value_and_jacobian(flat, x, size, "reverse")

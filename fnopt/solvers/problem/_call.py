"""Checks of a user's arguments, auxiliary outputs, and notes on common errors."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax

from fnopt.errors import (
    check_returned,
    explain_example_errors,
    explain_missing_keys,
    leaf_text,
    leaves_with_names,
    where,
)
from fnopt.jacobians import is_about_forward_mode
from fnopt.numerics import is_array_like
from fnopt.programs import TracedFunction, is_eager, jit_copy, trace_function
from fnopt.residuals import (
    ExampleResiduals,
    FreeJacobian,
    are_in_a_row,
    charted,
    example_residuals,
    free_jacobian,
    joined_function,
    param_shapes,
)

# SciPy's names of finite-difference schemes; derivatives are exact here.
SCHEMES = ("2-point", "3-point", "cs")


def started_from(caller: str, params: Any, keywords: dict[str, Any]) -> Any:
    """Return the initial guess: `params`, or SciPy's `x0`, which is removed from the keywords."""
    if params is None and "x0" in keywords:
        return keywords.pop("x0")
    if params is None:
        raise TypeError(
            f"{caller}: params is missing, expected an initial guess: a pytree of floating arrays."
        )
    return params


def checked_args(args: Any, caller: str = "least_squares") -> tuple[Any, ...]:
    """Convert the additional arguments of a user's function to a tuple of trees of arrays."""
    if not isinstance(args, (tuple, list)):
        raise TypeError(
            f"{caller}: args is {type(args).__name__}, expected a tuple of arguments; for a "
            "single one args=(data,)."
        )
    for path, leaf in leaves_with_names(tuple(args))[0]:
        if not is_array_like(leaf):
            raise TypeError(
                f"{caller}: args: {leaf_text(path)} is {leaf!r}, expected arrays. Bind "
                "other values to the function: functools.partial(residual_fn, ...) or a "
                "closure."
            )
    return tuple(args)


@contextlib.contextmanager
def first_call_hints(params: Any = None, name: str = "residual_fn") -> Iterator[None]:
    """Add a note with the most common cause to an error of a user's function."""
    try:
        with explain_missing_keys(params):
            yield
    except (TypeError, AttributeError) as error:
        if _is_of_the_call(error):
            raise TypeError(
                f"{where()}{error}: {name} is called with params, then with each of args "
                "(and an example of batch between them, if that is given), and so is "
                "jac. Pass its arguments after params in order: args=(data, ...)."
            ) from error
        if are_in_a_row(params):
            kind = type(params).__name__
            error.add_note(
                f"params are a {kind} of numbers, which with constraints are leaves of their own: "
                f"{name} gets a {kind}. For a vector pass an array: jnp.asarray(params, float)."
            )
        raise


_OF_A_CALL = re.compile(r"missing \d+ required|takes .*positional arguments? but")
_OURS = {"fnopt", "jax"}


def _is_of_the_call(error: Exception) -> bool:
    """Whether the arguments of a call cause an error, not the body of the function."""
    if not _OF_A_CALL.search(str(error)):
        return False
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    rooms = [str(frame.f_globals.get("__name__")).partition(".")[0] for frame in frames]
    last = len(rooms) - 1 - rooms[::-1].index("fnopt")
    return {*rooms[last:]} <= _OURS


def with_a_derivative_that_is_there(
    run: Callable[[Any], Any], solver: Any, caller: str = "least_squares", fn: str = "residual_fn"
) -> Any:
    """Run a solver; without a forward-mode derivative, run it in reverse mode without acceleration.

    Whether a forward-mode derivative is needed depends on the method, its mode, the shape and the
    user's arguments; a `custom_vjp` that only reads data is allowed. Therefore JAX's error triggers
    the second run. A function with a forward-mode derivative is traced once
    (tests/solvers/test_custom_vjp.py).
    """
    try:
        return run(solver)
    except (TypeError, NotImplementedError) as error:
        if not is_about_forward_mode(error) or solver.jacobian == "forward":
            raise
    lacks = f"{caller}: {fn} contains a custom_vjp, so it has no forward-mode derivative"
    if solver.linear_solver == "cg":
        raise TypeError(
            f"{lacks}, which linear_solver='cg' needs for products; expected 'auto', 'qr' "
            "or 'cholesky', which take the Jacobian in reverse mode."
        )
    names = {field.name for field in dataclasses.fields(solver)}
    change = {"jacobian": "reverse"} | ({"geodesic": False} if "geodesic" in names else {})
    options = ", ".join(f"{name}={value!r}" for name, value in change.items())
    warnings.warn(
        f"{lacks}: steps have no acceleration and the Jacobian is taken in reverse mode. "
        f"To avoid this warning, pass {type(solver).__name__}({options}) as the solver.",
        stacklevel=3,
    )
    return run(dataclasses.replace(solver, **change))


def traced_functions(
    residual_fn: Any, jac: Any, params: Any, args: tuple[Any, ...], constraints: Any
) -> tuple[TracedFunction | ExampleResiduals, TracedFunction | FreeJacobian | None] | None:
    """Trace the user's functions to values, if the call is eager and jaxprs can be compared."""
    # A chunked Jacobian has a method `fold`, which a traced function would lack.
    if not is_eager((params, args, constraints)) or hasattr(jac, "fold"):
        return None
    parametrisation = charted(params, constraints)
    seen = param_shapes(parametrisation)
    if isinstance(residual_fn, ExampleResiduals):
        batch, *rest = args

        def of_one(fn: Callable[..., Any], example: Any) -> TracedFunction | None:
            with explain_example_errors("residual_fn", example):
                return trace_function(fn, seen, example, *rest)

        found = residual_fn.mapped(of_one, batch)
        return None if None in found.fns else (found, None)
    r = trace_function(joined_function(residual_fn), seen, *args)
    if parametrisation.kinds and hasattr(jac, "composed"):
        free = param_shapes(parametrisation._replace(kinds=()))
        J = trace_function(free_jacobian(jac, parametrisation).fn, free, *args)
        return None if r is None or J is None else (r, FreeJacobian(J))
    J = None if jac is None else trace_function(joined_function(jac, "jac"), seen, *args)
    return None if r is None or (J is None and jac is not None) else (r, J)


def jit_residuals(residual_fn: Any, args: tuple[Any, ...]) -> Callable[..., Any]:
    """Apply `jax.jit` to copies of the residual functions, so that a fit traces them once."""
    if isinstance(residual_fn, ExampleResiduals):
        return residual_fn.mapped(lambda fn, example: jit_copy(fn), args[0])
    return jit_copy(joined_function(residual_fn))


def of_examples(residual_fn: Any, jac: Any, batch: Any) -> ExampleResiduals:
    """Build the residual function of a batch from the residual function of one example."""
    if jac is not None:
        raise ValueError(
            "least_squares: batch and jac are both given, expected one of them. With "
            "batch the Jacobian is computed per example. If you have a cheaper one, pass "
            "functions of the whole batch, with args=(batch,)."
        )
    return example_residuals(residual_fn, batch)


def without_aux(residual_fn: Any, batch: Any = None) -> tuple[Any, Callable[..., Any]]:
    """Split functions that return `(residuals, aux)` into residual functions and an aux function.

    Args:
        residual_fn: `residual_fn(params, *args)` returns a pair; or a list, tuple or dict of such
            functions.
        batch: The examples, if the functions take one example.

    Returns:
        The residual function or functions, and a function that returns the auxiliary outputs in a
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
    check_returned(value[1], f"{where()}aux of residual_fn")
    return value

"""Checks of the user's arguments, tracing of the user's functions, and notes on common errors."""

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
    charted,
    example_residuals,
    free_jacobian,
    is_number_list,
    joined_function,
    param_shapes,
)

# SciPy's names of finite-difference schemes; derivatives are exact here.
SCHEMES = ("2-point", "3-point", "cs")


def initial_guess(caller: str, params: Any, keywords: dict[str, Any]) -> Any:
    """Return `params`, or SciPy's `x0`, which is removed from `keywords`."""
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
            f"{caller}: args is {type(args).__name__}, expected a tuple of arguments. Pass a "
            "single argument as args=(data,)."
        )
    for path, leaf in leaves_with_names(tuple(args))[0]:
        if not is_array_like(leaf):
            raise TypeError(
                f"{caller}: args: {leaf_text(path)} is {leaf!r}, expected an array. Bind "
                "other values to the function: functools.partial(residual_fn, ...) or a "
                "closure."
            )
    return tuple(args)


@contextlib.contextmanager
def first_call_hints(params: Any = None, name: str = "residual_fn") -> Iterator[None]:
    """Explain errors of the user's function by their most common causes.

    Args:
        params: The initial guess.
        name: The name of the function, for messages.

    Raises:
        TypeError: If the function is called with arguments that it doesn't accept.
    """
    try:
        with explain_missing_keys(params):
            yield
    except (TypeError, AttributeError) as error:
        if _is_argument_error(error):
            raise TypeError(
                f"{where()}{error}; expected {name} and jac to accept (params, *args), or "
                "(params, example, *args) with a batch. Pass the arguments after params in this "
                "order: args=(data, ...)."
            ) from error
        if is_number_list(params):
            kind = type(params).__name__
            error.add_note(
                f"params are a {kind} of numbers, and with constraints each number is a leaf, so "
                f"{name} receives a {kind}. For a vector pass an array: jnp.asarray(params, float)."
            )
        raise


_ARGUMENT_ERROR = re.compile(r"missing \d+ required|takes .*positional arguments? but")
_LIBRARIES = {"fnopt", "jax"}


def _is_argument_error(error: Exception) -> bool:
    """Whether an error is due to the arguments of the user's function, not to its body."""
    if not _ARGUMENT_ERROR.search(str(error)):
        return False
    # An error in the body has a frame of another package after the last frame of fnopt.
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    packages = [str(frame.f_globals.get("__name__")).partition(".")[0] for frame in frames]
    last = len(packages) - 1 - packages[::-1].index("fnopt")
    return {*packages[last:]} <= _LIBRARIES


def run_in_available_mode(
    run: Callable[[Any], Any], solver: Any, caller: str = "least_squares", fn: str = "residual_fn"
) -> Any:
    """Run a solver; if the function has no forward-mode derivative, rerun it in reverse mode.

    The second run omits the geodesic acceleration, which is a forward-mode derivative.

    Args:
        run: `run(solver)` runs the solver.
        solver: The solver.
        caller: The public function, for messages.
        fn: The name of the user's function, for messages.

    Raises:
        TypeError: If the linear solver needs forward-mode products.
    """
    # Whether a forward-mode derivative is needed depends on the method, its mode, the shapes and
    # the user's arguments (a `custom_vjp` of constants is allowed). Therefore JAX's error decides,
    # and a function with a forward-mode derivative is traced only once.
    try:
        return run(solver)
    except (TypeError, NotImplementedError) as error:
        if not is_about_forward_mode(error) or solver.jacobian == "forward":
            raise
    lacks = f"{caller}: {fn} contains a custom_vjp, so it has no forward-mode derivative"
    if solver.linear_solver == "cg":
        raise TypeError(
            f"{lacks}. linear_solver = 'cg' needs this derivative, expected 'auto', 'qr' or "
            "'cholesky', which compute the Jacobian in reverse mode."
        )
    names = {field.name for field in dataclasses.fields(solver)}
    change = {"jacobian": "reverse"} | ({"geodesic": False} if "geodesic" in names else {})
    options = ", ".join(f"{name}={value!r}" for name, value in change.items())
    warnings.warn(
        f"{lacks}. Therefore steps have no acceleration, and the Jacobian is computed in reverse "
        f"mode. To avoid this warning, pass {type(solver).__name__}({options}) as the solver.",
        stacklevel=3,
    )
    return run(dataclasses.replace(solver, **change))


def traced_functions(
    residual_fn: Any, jac: Any, params: Any, args: tuple[Any, ...], constraints: Any
) -> tuple[TracedFunction | ExampleResiduals, TracedFunction | FreeJacobian | None] | None:
    """Trace the user's residual function and Jacobian.

    Returns:
        Traced functions, which serve as cache keys because they compare equal if their jaxprs are
        equal. None if the call isn't eager, or if jaxprs can't be compared.
    """
    # A chunked Jacobian has a method `fold`, which a traced function would lack.
    if not is_eager((params, args, constraints)) or hasattr(jac, "fold"):
        return None
    parametrization = charted(params, constraints)
    shapes = param_shapes(parametrization)
    if isinstance(residual_fn, ExampleResiduals):
        batch, *rest = args

        def trace_example(fn: Callable[..., Any], example: Any) -> TracedFunction | None:
            with explain_example_errors("residual_fn", example):
                return trace_function(fn, shapes, example, *rest)

        traced = residual_fn.mapped(trace_example, batch)
        return None if None in traced.fns else (traced, None)
    r = trace_function(joined_function(residual_fn), shapes, *args)
    if parametrization.kinds and hasattr(jac, "composed"):
        free = param_shapes(parametrization._replace(kinds=()))
        J = trace_function(free_jacobian(jac, parametrization).fn, free, *args)
        return None if r is None or J is None else (r, FreeJacobian(J))
    J = None if jac is None else trace_function(joined_function(jac, "jac"), shapes, *args)
    return None if r is None or (J is None and jac is not None) else (r, J)


def jit_residuals(residual_fn: Any, args: tuple[Any, ...]) -> Callable[..., Any]:
    """Apply `jax.jit` to copies of the residual functions, so that a fit traces them once."""
    if isinstance(residual_fn, ExampleResiduals):
        return residual_fn.mapped(lambda fn, example: jit_copy(fn), args[0])
    return jit_copy(joined_function(residual_fn))


def batch_residuals(residual_fn: Any, jac: Any, batch: Any) -> ExampleResiduals:
    """Build the residual function of a batch from the residual function of one example."""
    if jac is not None:
        raise ValueError(
            "least_squares: got both batch and jac, expected one of them. With batch the "
            "Jacobian is computed per example. To use your Jacobian, pass residual_fn and jac of "
            "the whole batch, with args=(batch,)."
        )
    return example_residuals(residual_fn, batch)


def without_aux(residual_fn: Any, batch: Any = None) -> tuple[Any, Callable[..., Any]]:
    """Split functions that return `(residuals, aux)` into residual functions and an aux function.

    Args:
        residual_fn: A function that returns a pair, or a list, tuple or dict of such functions.
        batch: The examples, if the functions are functions of one example; otherwise None.

    Returns:
        The residual function or functions, and a function that returns the auxiliary outputs in a
        container like `residual_fn`.
    """
    if callable(residual_fn):
        aux = _output(residual_fn, 1)
        aux = aux if batch is None else example_residuals(aux, batch)
        return _output(residual_fn, 0), aux
    residuals = jax.tree.map(lambda fn: _output(fn, 0), residual_fn)
    if batch is not None:
        aux_fns = jax.tree.map(lambda fn: _output(fn, 1), residual_fn)
        return residuals, example_residuals(aux_fns, batch)

    def aux(*args: Any) -> Any:
        return jax.tree.map(lambda fn: _output(fn, 1)(*args), residual_fn)

    return residuals, aux


def _output(fn: Callable[..., Any], i: int) -> Callable[..., Any]:
    """Return the function that returns output `i` of a function that returns a pair."""
    return lambda *args: _check_pair(fn(*args))[i]


def _check_pair(value: Any) -> Any:
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise TypeError(
            f"{where()}has_aux = True, but residual_fn returned {type(value).__name__}, expected a "
            "pair (residuals, aux). Return a pair, or leave has_aux out."
        )
    check_returned(value[1], f"{where()}aux of residual_fn")
    return value

"""What a user hands to a solver: checks of it, auxiliary outputs, callbacks, first mistakes."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fnopt.core import (
    Status,
    is_array_like,
    leaves_with_names,
    listing,
    of_one_example,
    shown,
    where,
)
from fnopt.programs import Recorded, recorded, runs_now
from fnopt.residuals import (
    ExampleResiduals,
    example_residuals,
    one_function,
    parametrised,
    seen_params,
)

# SciPy's names for derivatives by differences, which are exact here.
SCHEMES = ("2-point", "3-point", "cs")


def _is_number(x: Any) -> bool:
    return isinstance(x, (bool, int, float, complex))


def checked_args(args: Any, caller: str = "least_squares") -> tuple[Any, ...]:
    """The further arguments of a user's function as a tuple of trees of arrays."""
    if not isinstance(args, (tuple, list)):
        raise TypeError(
            f"{caller}: args is {type(args).__name__}, expected a tuple of arguments; for a "
            "single one args=(data,)."
        )
    for path, leaf in leaves_with_names(tuple(args))[0]:
        if not is_array_like(leaf):
            raise TypeError(
                f"{caller}: args: {shown(path)} is {leaf!r}, expected arrays. What isn't one "
                "belongs into the function: functools.partial(residual_fn, ...) or a closure."
            )
    return tuple(args)


@contextlib.contextmanager
def first_call_hints(params: Any = None, name: str = "residual_fn") -> Iterator[None]:
    """Adds to an error of a user's function what it comes from, most often."""
    try:
        yield
    except KeyError as error:
        if isinstance(params, dict) and error.args and error.args[0] not in params:
            error.add_note(f"params have the keys {listing([str(key) for key in params])}.")
        raise
    except (TypeError, AttributeError) as error:
        if isinstance(params, (list, tuple)) and params and all(map(_is_number, params)):
            kind = type(params).__name__
            error.add_note(
                f"params are a {kind} of numbers, each a leaf of its own: {name} gets a {kind}. "
                "For a vector, as in SciPy, give an array: jnp.asarray(params, float)."
            )
        raise


def with_a_derivative_that_is_there(run: Callable[[Any], Any], solver: Any) -> Any:
    """Runs a solver; in reverse mode, with straight steps, where there is no other derivative."""
    try:
        return run(solver)
    except TypeError as error:
        if "custom_vjp" not in str(error) or solver.jacobian == "forward":
            raise
    names = {field.name for field in dataclasses.fields(solver)}
    change = {"jacobian": "reverse"} | ({"geodesic": False} if "geodesic" in names else {})
    options = ", ".join(f"{name}={value!r}" for name, value in change.items())
    warnings.warn(
        "least_squares: residual_fn has a custom_vjp in it, so it has no forward-mode derivative: "
        f"steps are straight and the Jacobian is taken in reverse mode. {type(solver).__name__}"
        f"({options}) as the solver says so by itself, without this warning.",
        stacklevel=3,
    )
    return run(dataclasses.replace(solver, **change))


def recorded_functions(
    residual_fn: Any, jac: Any, params: Any, args: tuple[Any, ...], constraints: Any
) -> tuple[Recorded | ExampleResiduals, Recorded | None] | None:
    """The functions of a user as values, if the fit runs now and they can be told from others."""
    # A Jacobian that can be gone through in chunks is more than a function.
    if not runs_now((params, args, constraints)) or hasattr(jac, "fold"):
        return None
    seen = seen_params(parametrised(params, constraints))
    if isinstance(residual_fn, ExampleResiduals):
        batch, *rest = args

        def of_one(fn: Callable[..., Any], example: Any) -> Recorded | None:
            with of_one_example("residual_fn", example):
                return recorded(fn, seen, example, *rest)

        found = residual_fn.mapped(of_one, batch)
        return None if None in found.fns else (found, None)
    r = recorded(one_function(residual_fn), seen, *args)
    J = None if jac is None else recorded(one_function(jac, "jac"), seen, *args)
    return None if r is None or (J is None and jac is not None) else (r, J)


def of_examples(residual_fn: Any, jac: Any, batch: Any) -> ExampleResiduals:
    """The residuals of a batch, from those of one example."""
    if jac is not None:
        raise ValueError(
            "least_squares: batch and jac are both given, expected one of them: of residuals by "
            "example the Jacobian is taken by example. If you have it cheaper, give functions of "
            "the whole batch, with args=(batch,)."
        )
    return example_residuals(residual_fn, batch)


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


def asked_to_stop(callback: Callable[[Any], Any], info: Any) -> jax.Array:
    """Calls a function of the host with what there is to see, and says whether to stop.

    Args:
        callback: `callback(info)`; it stops the fit by returning True or raising `StopIteration`.
            Another exception is shown as a warning, and the fit goes on.
        info: A tree of arrays.

    Returns:
        A boolean scalar.
    """
    failed: list[Exception] = []

    def call(info: Any) -> np.ndarray:
        try:
            answer = callback(jax.tree.map(np.asarray, info))
        except StopIteration:
            answer = True
        except Exception as error:
            # From in here it would end the fit: a full disk hours of work.
            if not failed:
                warnings.warn(_failure(callback, error), stacklevel=2)
            failed.append(error)
            answer = False
        # Only True itself: what a logger returns is often something that is true.
        return np.asarray(isinstance(answer, (bool, np.bool_)) and bool(answer))

    # Its answer is used, so it is called in every step; one with effects can't be in a batch.
    shape = jax.ShapeDtypeStruct((), bool)
    return jax.pure_callback(call, shape, info, vmap_method="sequential")


def status_after(callback: Callable[[Any], Any], info: Any, status: jax.Array) -> jax.Array:
    """The status of a search after its callback: `STOPPED` where a running one is asked to stop."""
    stop = asked_to_stop(callback, info) & (status == Status.RUNNING.value)
    return jnp.where(stop, Status.STOPPED.array, status)


def _failure(callback: Any, error: Exception) -> str:
    name = getattr(callback, "__name__", type(callback).__name__)
    return (
        f"callback: {name} raised {type(error).__name__}: {error}. The fit goes on; raise "
        "StopIteration, or return True, to end it."
    )

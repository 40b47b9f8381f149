"""Checks of a solver's arguments, and advice for first mistakes."""

from __future__ import annotations

import contextlib
import dataclasses
import operator
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from fnopt.core import is_array_like, is_whole, leaves_with_names, shown
from fnopt.programs import Recorded, recorded, runs_now
from fnopt.residuals import ExampleResiduals, one_function, parametrised, seen_params

# SciPy's names for derivatives by differences, which are exact here.
SCHEMES = ("2-point", "3-point", "cs")


def checked_count(value: Any, what: str, least: int = 1) -> int:
    """A whole number, of NumPy too, as an int: positive, or 0 if that is the least."""
    if not is_whole(value, least):
        raise ValueError(f"{what} = {value!r}, expected a positive int{'' if least else ' or 0'}.")
    return operator.index(value)


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
    except TypeError as error:
        if isinstance(params, (list, tuple)) and params and all(map(_is_number, params)):
            error.add_note(
                f"params are a list of numbers, each a leaf of its own: {name} gets a list. "
                "For a vector give an array: jnp.asarray(params)."
            )
        raise
    except NameError as error:
        if "axis name" in str(error):
            error.add_note(
                f"With a batch, {name} is a function of ONE example, which knows no others. Batch "
                "normalisation in training mode does: use its running averages, or a norm within "
                "an example."
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
        found = residual_fn.mapped(lambda fn, one: recorded(fn, seen, one, *rest), batch)
        return None if None in found.fns else (found, None)
    r = recorded(one_function(residual_fn), seen, *args)
    J = None if jac is None else recorded(one_function(jac, "jac"), seen, *args)
    return None if r is None or (J is None and jac is not None) else (r, J)

"""The arguments of a curve's function beside its params, by its signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax

from fnopt.core import takes

_VECTOR = " For one vector write lambda x, *p: f(x, jnp.stack(p)), and p0."


@contextmanager
def numbers_noted(noted: bool) -> Iterator[None]:
    """Adds to an error of `f` without `p0`, if it is noted, that its params were numbers then.

    What JAX says of functions that it can't trace has nothing to do with that.
    """
    try:
        yield
    except (IndexError, TypeError) as error:
        if noted and not isinstance(error, (jax.errors.JAXTypeError, jax.errors.JAXIndexError)):
            error.add_note(
                "p0 isn't given, so f was called with one number for each param in its signature. "
                f"If all params are one tree, give it as p0.{_VECTOR}"
            )
        raise


def positional(f: Callable[..., Any]) -> tuple[int, int, bool]:
    """The least and largest number of positional arguments of `f`, and whether any number fits."""
    parameters = inspect.signature(f).parameters.values()
    named = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = sum(p.default is p.empty for p in named)
    return required, len(named), any(p.kind is p.VAR_POSITIONAL for p in parameters)


def argument_names(f: Callable[..., Any], n: int) -> tuple[str, ...]:
    """The names of `n` params of `f`: those of its arguments after x, `p0`, `p1` of others."""
    names = tuple(getattr(f, "names", ()))
    if not names:
        try:
            parameters = list(inspect.signature(f).parameters.values())[1:]
            names = tuple(p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD)
        except (TypeError, ValueError):  # a function without a signature
            names = ()
    return names[:n] + tuple(f"p{i}" for i in range(len(names), n))


def check_count_of_params(f: Callable[..., Any], n: int, name: str = "curve_fit") -> None:
    """Refuses a function of another number of params than the start has."""
    try:
        required, most, any_number = positional(f)
    except ValueError:  # a function without a signature, such as a NumPy ufunc
        return
    if n == 0 or n + 1 < required or (n + 1 > most and not any_number):
        number = f"{required - 1}" if required == most else f"{required - 1} to {most - 1}"
        number = f"at least {required - 1}" if any_number else number
        vector = _VECTOR if most == 2 else ""
        raise ValueError(
            f"{name}: p0 has {n} numbers, but f takes {number} params after x; expected one "
            f"starting value for each.{vector}"
        )


def check_takes_tree(f: Callable[..., Any], x: Any, params: Any, name: str = "curve_fit") -> None:
    """Refuses a function that can't be called with a tree of params."""
    if not takes(f, x, params):
        kind = "one array" if hasattr(params, "shape") else f"a tree ({type(params).__name__})"
        raise ValueError(
            f"{name}: p0 is {kind}, so that f is called as f(x, params), which it can't be. For "
            "f(x, a, b, ...) give numbers in a row, p0=[1.0, 2.0], or all of its arguments by name."
        )

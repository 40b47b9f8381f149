"""The initial guess of a curve fit, its bounds, and the calling convention of the model."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fnopt.curves._curve_bounds import (
    Bounds,
    bounds_as_lists,
    bounds_by_name,
    bounds_of_numbers,
    checked_bounds,
    is_numbers,
    is_scalar,
    spread,
)
from fnopt.curves._curve_data import as_floating
from fnopt.errors import accepts_args, matches, names_text
from fnopt.jacobians import ravel
from fnopt.numerics import default_float
from fnopt.residuals import floating_start
from fnopt.solvers import named_entries


class Start(NamedTuple):
    """Initial guess of a fit, with the calling convention of its model."""

    params: Any
    passing: str  # see `call_model`
    names: tuple[str, ...]  # names of the numbers, in the order of the leaves
    bounds: Bounds | None


def start_of(
    f: Any,
    p0: Any,
    bounds: Any,
    constraints: Any,
    x: Any,
    y: jax.Array,
    likelihood: str | None = None,
) -> Start:
    """Return the initial guess of a fit, with its bounds as a pair of trees."""
    check_kinds(f, p0)
    if is_model(f) and (p0 is None or isinstance(p0, dict)):
        p0 = _with_guess(f, {} if p0 is None else p0, x, y, likelihood)
        if isinstance(bounds, dict) or not checked_bounds(bounds):
            # A constraint replaces the model's own bounds.
            keys = constraints if isinstance(constraints, dict) else ()
            own = {n: b for n, b in f.bounds.items() if not any(matches(n, key) for key in keys)}
            bounds = own | (bounds if isinstance(bounds, dict) else {})
    elif p0 is None:
        names = argument_names(f, _count_parameters(f))
        p0 = _default_start(checked_bounds(bounds_as_lists(bounds, names)), len(names))
    elif not is_numbers(p0):
        p0 = floating_start(p0, constraints)
    if is_numbers(p0):
        p = as_floating(p0)
        p = p if p.ndim else p[None]
        check_count_of_params(f, p.size)
        names = argument_names(f, p.size)
        if not constraints:
            return Start(p, "numbers", names, bounds_of_numbers(bounds, p, names))
        p0 = dict(zip(names, p, strict=True))
    p0 = floating_start(p0, constraints)
    if not constraints:
        ravel(p0, "p0")  # raises for anything but a tree of floating arrays
    is_named = takes_names(f, p0)
    if is_named:
        check_count_of_params(f, len(p0))
    if is_named and all(map(is_scalar, p0.values())):
        return _in_order_of_arguments(p0, argument_names(f, len(p0)), bounds, constraints)
    box, names = checked_bounds(bounds_by_name(bounds, p0)), tuple(named_entries(p0))
    if is_named:
        return Start(p0, "names", names, box)
    check_takes_tree(f, None, p0)
    return Start(p0, "tree", names, box)


def takes_names(f: Any, p0: Any) -> bool:
    """Whether the keys of the dict `p0` are parameter names of `f`, not keys of a tree argument."""
    is_named = isinstance(p0, dict) and set(p0) == set(argument_names(f, len(p0)))
    return is_named and (is_model(f) or len(p0) > 1)


def check_kinds(f: Any, p0: Any, name: str = "curve_fit") -> None:
    """Raise an error for a class of models as `f`, and text or another fit as `p0`."""
    if isinstance(f, type) and is_model(f):
        raise TypeError(
            f"{name}: f is the class {f.__name__}, expected a model. Write {f.__name__}()."
        )
    if hasattr(p0, "solution") or hasattr(p0, "certificate"):
        kind = type(p0).__name__
        raise TypeError(f"{name}: p0 is a {kind}, expected params. Write p0=fit.params.")
    if any(isinstance(leaf, str) for leaf in jax.tree.leaves(p0)):
        raise TypeError(f"{name}: p0 = {p0!r:.60} contains text, expected numbers.")


def _in_order_of_arguments(
    p0: dict[str, Any], names: tuple[str, ...], bounds: Any, constraints: Any
) -> Start:
    """Order numbers like the arguments; return an array unless a constraint refers to names."""
    if constraints or len({jnp.asarray(value).dtype for value in p0.values()}) > 1:
        # JAX sorts the keys of a dict, but not of an OrderedDict.
        ordered = OrderedDict((name, p0[name]) for name in names)
        return Start(ordered, "names", names, checked_bounds(bounds_by_name(bounds, ordered)))
    row = jnp.stack([jnp.asarray(p0[name]) for name in names])
    return Start(row, "numbers", names, bounds_of_numbers(bounds, row, names))


def as_numbers(params: dict[str, Any], names: tuple[str, ...]) -> Any:
    """Return the params in the order of the names, as an array if each param is a scalar."""
    return jnp.stack(list(params.values())) if tuple(params) == names else params


def is_model(f: Any) -> bool:
    """Whether a function has named params and a `guess`, like the models of `fnopt.models`."""
    return all(hasattr(f, name) for name in ("names", "bounds", "guess"))


def _with_guess(
    model: Any, p0: dict[str, Any], x: Any, y: jax.Array, likelihood: str | None
) -> dict[str, Any]:
    """Complete `p0` by the model's guess of the other params."""
    unknown = sorted(set(p0) - set(model.names))
    if unknown:
        raise ValueError(f"curve_fit: p0 names {unknown}, expected params of {list(model.names)}.")
    if len(p0) == len(model.names):
        return dict(p0)
    guess = model.guess(x, y) if likelihood is None else _positive_guess(model, x, y)
    return {**guess, **p0}


def _positive_guess(model: Any, x: Any, y: jax.Array) -> dict[str, Any]:
    """Compute a guess from counts; shrink the counts to their mean if the curve isn't positive.

    A guess by linear least squares shrinks with the counts, so the smallest value of its curve
    becomes half the mean.
    """
    guess = model.guess(x, y)
    least, mean = jnp.min(model(x, guess)), jnp.mean(y)
    below = jnp.where(mean > least, mean - least, jnp.ones_like(mean))
    share = jnp.where(least <= 0, mean / (2 * below), jnp.ones_like(mean))
    return model.guess(x, mean + share * (y - mean))


def _default_start(bounds: Bounds | None, n: int) -> jax.Array:
    r"""Return SciPy's default: 1, the middle of two bounds, or a distance of 1 from one bound."""
    one = jnp.asarray(np.ones(n, default_float()))  # an eager `jnp.ones` takes twice as long
    if bounds is None:
        return one
    lower, upper = spread(bounds, one)
    start = jnp.where(jnp.isfinite(lower), lower + 1, one)
    start = jnp.where(jnp.isfinite(upper), upper - 1, start)
    both = jnp.isfinite(lower) & jnp.isfinite(upper)
    return jnp.where(both, lower / 2 + upper / 2, start)


def _count_parameters(f: Callable[..., Any]) -> int:
    try:
        _, most, any_number = positional(f)
    except ValueError:
        most, any_number = 0, True
    if any_number or most < 2:
        raise ValueError(
            "curve_fit: the number of params can't be read from the signature of f; expected "
            "f(x, a, b, ...), or pass p0."
        )
    return most - 1


_VECTOR = " For one vector write lambda x, *p: f(x, jnp.stack(p)), and p0."


@contextmanager
def numbers_noted(noted: bool) -> Iterator[None]:
    """Add a note to errors of `f`: without `p0`, the params are scalars."""
    try:
        yield
    except (IndexError, TypeError) as error:
        # Errors of JAX about functions that it can't trace get an explanation of their own.
        if noted and not isinstance(error, jax.errors.JAXTypeError | jax.errors.JAXIndexError):
            error.add_note(
                "p0 isn't given, so f was called with one number for each param in its "
                f"signature. If the params are one tree, pass this tree as p0.{_VECTOR}"
            )
        raise


def positional(f: Callable[..., Any]) -> tuple[int, int, bool]:
    """Return the range of the number of positional arguments, and whether `f` has `*args`."""
    parameters = inspect.signature(f).parameters.values()
    named = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = sum(p.default is p.empty for p in named)
    return required, len(named), any(p.kind is p.VAR_POSITIONAL for p in parameters)


def argument_names(f: Callable[..., Any], n: int) -> tuple[str, ...]:
    """Return names of `n` params: the argument names of `f` after x, otherwise `p0`, `p1`, ..."""
    names = tuple(getattr(f, "names", ()))
    if not names:
        try:
            parameters = list(inspect.signature(f).parameters.values())[1:]
            names = tuple(p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD)
        except (TypeError, ValueError):  # a function without a signature
            names = ()
    return names[:n] + tuple(f"p{i}" for i in range(len(names), n))


def check_count_of_params(f: Callable[..., Any], n: int, name: str = "curve_fit") -> None:
    """Raise an error if the number of params of `f` differs from the initial guess's."""
    try:
        required, most, any_number = positional(f)
    except ValueError:  # a function without a signature, such as a NumPy ufunc
        return
    if n == 0 or n + 1 < required or (n + 1 > most and not any_number):
        number = f"{required - 1}" if required == most else f"{required - 1} to {most - 1}"
        number = f"at least {required - 1}" if any_number else number
        vector = _VECTOR if most == 2 else ""
        raise ValueError(
            f"{name}: p0 has {n} numbers, but f takes {number} params after x; expected "
            f"one initial value for each.{vector}"
        )


def check_takes_tree(f: Callable[..., Any], x: Any, params: Any, name: str = "curve_fit") -> None:
    """Raise an error for a function that can't be called with a tree of params."""
    if not accepts_args(f, x, params):
        kind = "one array" if hasattr(params, "shape") else f"a tree ({type(params).__name__})"
        if isinstance(params, dict):
            kind = f"a dict with the keys {names_text([*params])}"
        raise ValueError(
            f"{name}: p0 is {kind}, so f must take (x, params), but it takes "
            f"{inspect.signature(f)}. For f(x, a, b, ...) pass a sequence of numbers: "
            "p0=[1.0, 2.0]."
        )

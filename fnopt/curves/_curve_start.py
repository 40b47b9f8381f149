"""Initial guess and bounds of a curve fit, and the calling convention of the model."""

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
    broadcast_bounds,
    checked_bounds,
    is_numbers,
    is_scalar,
)
from fnopt.curves._curve_data import as_floating
from fnopt.errors import accepts_args, count_text, matches, names_text
from fnopt.jacobians import ravel
from fnopt.numerics import default_float
from fnopt.residuals import floating_start
from fnopt.solvers import named_entries


class Start(NamedTuple):
    """Initial guess and bounds of a fit, and the calling convention of the model."""

    params: Any
    passing: str  # see `call_model`
    names: tuple[str, ...]  # names of the raveled numbers of `params`
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
    """Complete and check the initial guess and the bounds of a fit.

    Args:
        f: The model.
        p0: The initial guess, as the user passed it.
        bounds: The bounds, as the user passed them.
        constraints: The constraints, as the user passed them.
        x: The positions of the data, for the guess of a model.
        y: The data, for the guess of a model.
        likelihood: The distribution of the data; None for normal errors.
    """
    check_kinds(f, p0)
    if is_model(f) and (p0 is None or isinstance(p0, dict)):
        p0 = _with_guess(f, {} if p0 is None else p0, x, y, likelihood)
        if isinstance(bounds, dict) or not checked_bounds(bounds):
            # A constraint of a param replaces the bounds that the model defines for the param.
            keys = constraints if isinstance(constraints, dict) else ()
            model_bounds = {
                n: b for n, b in f.bounds.items() if not any(matches(n, key) for key in keys)
            }
            bounds = model_bounds | (bounds if isinstance(bounds, dict) else {})
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
        ravel(p0, "p0")  # raises an error unless all leaves are floating
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
    """Whether `p0` is a dict whose keys are parameter names of `f`, instead of one argument."""
    is_named = isinstance(p0, dict) and set(p0) == set(argument_names(f, len(p0)))
    return is_named and (is_model(f) or len(p0) > 1)


def check_kinds(f: Any, p0: Any, name: str = "curve_fit") -> None:
    """Raise an error if `f` is a class of models, or if `p0` is text or a fit."""
    if isinstance(f, type) and is_model(f):
        raise TypeError(
            f"{name}: f is the class {f.__name__}, expected an instance. Pass {f.__name__}()."
        )
    if hasattr(p0, "solution") or hasattr(p0, "certificate"):
        kind = type(p0).__name__
        raise TypeError(f"{name}: p0 is a {kind}, expected params. Pass p0=fit.params.")
    if any(isinstance(leaf, str) for leaf in jax.tree.leaves(p0)):
        raise TypeError(f"{name}: p0 = {p0!r:.60} contains text, expected numbers.")


def _in_order_of_arguments(
    p0: dict[str, Any], names: tuple[str, ...], bounds: Any, constraints: Any
) -> Start:
    """Order numbers like the arguments of the model.

    The params are an array, unless constraints refer to names or the numbers have several dtypes.
    """
    if constraints or len({jnp.asarray(value).dtype for value in p0.values()}) > 1:
        # JAX sorts the keys of a dict, but not of an OrderedDict.
        ordered = OrderedDict((name, p0[name]) for name in names)
        return Start(ordered, "names", names, checked_bounds(bounds_by_name(bounds, ordered)))
    vector = jnp.stack([jnp.asarray(p0[name]) for name in names])
    return Start(vector, "numbers", names, bounds_of_numbers(bounds, vector, names))


def as_numbers(params: dict[str, Any], names: tuple[str, ...]) -> Any:
    """Stack params to an array if each param is a scalar, else return the dict unchanged."""
    return jnp.stack(list(params.values())) if tuple(params) == names else params


def is_model(f: Any) -> bool:
    """Whether a function has `names`, `bounds` and `guess`, like the models of `fnopt.models`."""
    return all(hasattr(f, name) for name in ("names", "bounds", "guess"))


def _with_guess(
    model: Any, p0: dict[str, Any], x: Any, y: jax.Array, likelihood: str | None
) -> dict[str, Any]:
    """Add the model's guess of the params that aren't in `p0`."""
    unknown = sorted(set(p0) - set(model.names))
    if unknown:
        raise ValueError(
            f"curve_fit: p0 has the unknown keys {unknown}, expected names of params: "
            f"{list(model.names)}."
        )
    if len(p0) == len(model.names):
        return dict(p0)
    guess = model.guess(x, y) if likelihood is None else _positive_guess(model, x, y)
    return {**guess, **p0}


def _positive_guess(model: Any, x: Any, y: jax.Array) -> dict[str, Any]:
    """Guess the params from counts, so that the mean of the counts is positive.

    If the guessed curve isn't positive, the counts are shrunk towards their mean before a second
    guess. If the guess is linear in the data, the guessed curve shrinks too, and its minimum
    becomes half the mean.
    """
    guess = model.guess(x, y)
    minimum, mean = jnp.min(model(x, guess)), jnp.mean(y)
    depth = jnp.where(mean > minimum, mean - minimum, jnp.ones_like(mean))
    factor = jnp.where(minimum <= 0, mean / (2 * depth), jnp.ones_like(mean))
    return model.guess(x, mean + factor * (y - mean))


def _default_start(bounds: Bounds | None, n: int) -> jax.Array:
    r"""Return SciPy's default: 1, the middle of two bounds, or a distance of 1 from one bound."""
    one = jnp.asarray(np.ones(n, default_float()))  # an eager `jnp.ones` takes twice as long
    if bounds is None:
        return one
    lower, upper = broadcast_bounds(bounds, one)
    start = jnp.where(jnp.isfinite(lower), lower + 1, one)
    start = jnp.where(jnp.isfinite(upper), upper - 1, start)
    has_both = jnp.isfinite(lower) & jnp.isfinite(upper)
    return jnp.where(has_both, lower / 2 + upper / 2, start)  # halves, because a sum may overflow


def _count_parameters(f: Callable[..., Any]) -> int:
    try:
        _, maximum, has_varargs = positional_range(f)
    except ValueError:
        maximum, has_varargs = 0, True
    if has_varargs or maximum < 2:
        raise ValueError(
            "curve_fit: the signature of f doesn't define the number of params, expected "
            "f(x, a, b, ...). Pass p0."
        )
    return maximum - 1


_VECTOR = " For one vector of params, pass lambda x, *p: f(x, jnp.stack(p)), and p0."


@contextmanager
def note_scalar_params(is_default: bool) -> Iterator[None]:
    """Add a note to errors of `f` if `p0` is missing, because the params are then scalars."""
    try:
        yield
    except (IndexError, TypeError) as error:
        # `explain_jax_errors` explains JAX's errors about functions that can't be traced.
        if is_default and not isinstance(error, jax.errors.JAXTypeError | jax.errors.JAXIndexError):
            error.add_note(
                "p0 isn't passed, so f was called with one number for each param in its "
                f"signature. If the params are one tree, pass this tree as p0.{_VECTOR}"
            )
        raise


def positional_range(f: Callable[..., Any]) -> tuple[int, int, bool]:
    """Minimum and maximum number of positional arguments, and whether `f` has `*args`."""
    parameters = inspect.signature(f).parameters.values()
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = sum(p.default is p.empty for p in positional)
    return required, len(positional), any(p.kind is p.VAR_POSITIONAL for p in parameters)


def argument_names(f: Callable[..., Any], n: int) -> tuple[str, ...]:
    """Return names of `n` params: the argument names of `f` after x, else `p0`, `p1`, ..."""
    names = tuple(getattr(f, "names", ()))
    if not names:
        try:
            parameters = list(inspect.signature(f).parameters.values())[1:]
            names = tuple(p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD)
        except (TypeError, ValueError):  # a function without a signature
            names = ()
    return names[:n] + tuple(f"p{i}" for i in range(len(names), n))


def check_count_of_params(f: Callable[..., Any], n: int, name: str = "curve_fit") -> None:
    """Raise an error if the initial guess doesn't have as many numbers as `f` has params."""
    try:
        required, maximum, has_varargs = positional_range(f)
    except ValueError:  # a function without a signature, such as a NumPy ufunc
        return
    if n == 0 or n + 1 < required or (n + 1 > maximum and not has_varargs):
        number = f"{required - 1}" if required == maximum else f"{required - 1} to {maximum - 1}"
        number = f"at least {required - 1}" if has_varargs else number
        vector = _VECTOR if maximum == 2 else ""
        raise ValueError(
            f"{name}: p0 has {count_text(n, 'number')}, expected {number}, one for each param of "
            f"f after x.{vector}"
        )


def check_takes_tree(f: Callable[..., Any], x: Any, params: Any, name: str = "curve_fit") -> None:
    """Raise an error if `f` can't be called as `f(x, params)`."""
    if not accepts_args(f, x, params):
        kind = "one array" if hasattr(params, "shape") else f"a tree ({type(params).__name__})"
        if isinstance(params, dict):
            kind = f"a dict with the keys {names_text([*params])}"
        raise ValueError(
            f"{name}: p0 is {kind} and f has the signature {inspect.signature(f)}, expected "
            "f(x, params). For f(x, a, b, ...), pass a sequence of numbers: p0=[1.0, 2.0]."
        )

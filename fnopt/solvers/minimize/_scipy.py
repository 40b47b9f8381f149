"""Conversion of SciPy's methods and keywords for `minimize`."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp

from fnopt.errors import check_tolerance
from fnopt.numerics import default_float
from fnopt.solvers.minimize._quasi_newton import lbfgsb
from fnopt.solvers.problem._scipy import ScipyTable, check_jac, first

# The keys are SciPy's names in lower case, as SciPy compares them.
METHODS = {
    "l-bfgs-b": "lbfgsb",
    "bfgs": "bfgs",
    "cg": "cg",
    "newton-cg": "newton_cg",
    "trust-ncg": "newton_cg",
    "trust-krylov": "newton_cg",
}
_NO_GRADIENTS = (
    "searches without gradients, which are exact here: write 'auto'. For a function that has none, "
    "scipy.optimize.minimize itself is the tool"
)
_MATRIX = "makes the whole Hessian: write 'newton_cg', which takes its products"
_THESE = (
    "bounds=, projection= for convex sets, or constraints= (tied, positive, interval) with 'auto'"
)
_CONSTRAINED = f"is for constraints: here {_THESE}"
_ELSEWHERE = {
    "nelder-mead": _NO_GRADIENTS,
    "powell": _NO_GRADIENTS,
    "tnc": "is a Newton method with bounds: write 'lbfgsb', or 'newton_cg' without bounds",
    "cobyla": _CONSTRAINED,
    "cobyqa": _CONSTRAINED,
    "slsqp": _CONSTRAINED,
    "trust-constr": _CONSTRAINED,
    "dogleg": _MATRIX,
    "trust-exact": _MATRIX,
}

_STEPS = ("maxiter", "maxfun", "maxfev")
_NO_HESSIAN = "Leave it out: 'newton_cg' takes products of the exact Hessian"
_TABLE = ScipyTable(
    "minimize",
    keywords=("tol", "jac", "options"),
    # The last ones have no effect here: derivatives are exact, and steps aren't printed.
    options=(
        *("ftol", "gtol", "xtol", "maxcor", "disp", *_STEPS),
        *("eps", "finite_diff_rel_step", "workers", "iprint"),
    ),
    steps=_STEPS,
    instead={
        "x0": "Call it params, or give it second",
        **dict.fromkeys(("hess", "hessp"), _NO_HESSIAN),
        **dict.fromkeys(_STEPS, "Write max_steps"),
        "maxcor": "Write method=fnopt.lbfgsb(memory_size)",
    },
)


class MinimizeRequest(NamedTuple):
    """The arguments of `minimize` that SciPy's keywords may change."""

    method: Any
    ftol: Any
    xtol: Any
    gtol: Any
    max_steps: int
    disp: bool


def method_name(name: str) -> str:
    """Convert SciPy's name of a method to fnopt's name.

    Raises:
        ValueError: If fnopt doesn't have SciPy's method; the message names a replacement.
    """
    lower = name.lower()
    if lower in _ELSEWHERE:
        raise ValueError(f"minimize: method = {name!r} {_ELSEWHERE[lower]}.")
    return METHODS.get(lower, lower)


def with_scipy_options(
    keywords: dict[str, Any], method: Any, constraints: Any, *, max_steps: int, **limits: Any
) -> MinimizeRequest:
    """Convert a call with SciPy's `tol`, `jac` and `options` to fnopt's arguments.

    Args:
        keywords: The keywords that `minimize` doesn't declare, with their values.
        method: The method, or its name; None selects the default, as in SciPy.
        constraints: The constraints; SciPy's constraint functions are refused.
        max_steps: The maximum number of trial points.
        **limits: `ftol`, `xtol` and `gtol`, the tolerances of value, params and gradient; None for
            SciPy's keyword, or else the default.

    Returns:
        The converted arguments.

    Raises:
        TypeError: If a keyword or an option is unknown, or has another name in fnopt.
    """
    read = _TABLE.read(keywords)
    check_jac("minimize", keywords.get("jac"), "its value")
    _check_constraints(constraints)
    method = "auto" if method is None else method
    if "maxcor" in read:
        if method_name(str(method)) not in ("auto", "lbfgs", "lbfgsb"):
            raise TypeError(f"minimize: maxcor is an option of 'lbfgsb', the method is {method!r}.")
        method = lbfgsb(read["maxcor"])
    check_tolerance(read.get("tol"), "tol", "minimize")
    for name, limit in limits.items():
        names = (name,) if name == "xtol" else (name, "tol")
        limits[name] = first(read, *names, given=limit)
        check_tolerance(limits[name], name, "minimize")
    disp, max_steps = bool(read.get("disp")), _TABLE.most_steps(read, max_steps)
    return MinimizeRequest(method, **limits, max_steps=max_steps, disp=disp)


def _check_constraints(constraints: Any) -> None:
    """Refuse SciPy's constraints: functions that have to be zero or nonnegative."""
    several = constraints if isinstance(constraints, (list, tuple)) else [constraints]
    for one in several:
        named = isinstance(one, dict) and {"type", "fun"} <= one.keys()
        if named or (hasattr(one, "lb") and hasattr(one, "ub")):
            raise TypeError(
                f"minimize: constraints: {type(one).__name__} is one of SciPy's, a function that "
                f"has to be zero or positive; expected {_THESE}."
            )


def as_sides(bounds: Any) -> Any:
    """Convert SciPy's pairs `(low, high)`, with None for no bound, to `(lower, upper)`.

    SciPy's pairs are a list of tuples, a sequence with None, or any number of pairs except two. Two
    lists are the lower and the upper bounds, `([0, 0], [1, 1])`. A single pair bounds every param.
    All other values are returned unchanged.

    Raises:
        ValueError: If two pairs are ambiguous.
    """
    if not isinstance(bounds, (list, tuple)) or not bounds or not all(map(_is_pair, bounds)):
        return bounds
    kinds = (type(bounds), *{type(pair) for pair in bounds})
    if len(bounds) == 2 and kinds == (tuple, list):
        return bounds
    open_sided = any(x is None for pair in bounds for x in pair)
    if len(bounds) == 2 and kinds != (list, tuple) and not open_sided:
        raise ValueError(
            f"minimize: bounds = {bounds!r} can be read in two ways. For pairs of a low and a high "
            f"bound write {list(map(tuple, bounds))}, for the lower and the upper bounds "
            f"{tuple(map(list, bounds))}."
        )
    sides = []
    for side, none in zip(zip(*bounds, strict=True), (-jnp.inf, jnp.inf), strict=True):
        values = jnp.asarray([none if x is None else x for x in side], default_float())
        sides.append(values[0] if len(bounds) == 1 else values)
    return tuple(sides)


def _is_pair(side: Any) -> bool:
    """Whether a value is a pair whose entries are numbers or None."""
    if not isinstance(side, (list, tuple)) or len(side) != 2:
        return False
    return all(x is None or isinstance(x, (int, float)) for x in side)

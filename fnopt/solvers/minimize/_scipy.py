"""Conversion of SciPy's methods and keywords for `minimize`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from fnopt.errors import check_tolerance, names_text
from fnopt.numerics import default_float
from fnopt.solvers.minimize._method import MinimizeMethod
from fnopt.solvers.minimize._newton_cg import newton_cg
from fnopt.solvers.minimize._nonlinear_cg import nonlinear_cg
from fnopt.solvers.minimize._projected_gradient import projected_gradient
from fnopt.solvers.minimize._quasi_newton import bfgs, lbfgsb
from fnopt.solvers.problem._scipy import ScipyTable, check_jac, first

# fnopt's and SciPy's names of the methods. SciPy compares names in lower case.
METHODS: dict[str, Callable[[], MinimizeMethod]] = {
    "bfgs": bfgs,
    "cg": nonlinear_cg,
    "projected_gradient": projected_gradient,
    **dict.fromkeys(("lbfgs", "lbfgsb", "l_bfgs_b"), lbfgsb),
    **dict.fromkeys(("newton_cg", "trust_ncg", "trust_krylov"), newton_cg),
}
_NO_GRADIENTS = (
    "searches without gradients, which are exact here: write 'auto'. For a function "
    "without gradients, use scipy.optimize.minimize"
)
_MATRIX = "forms the Hessian: write 'newton_cg', which uses Hessian-vector products"
_CONSTRAINED = (
    "is for constraints: here bounds=, projection= for convex sets, or constraints= (tied, "
    "positive, interval) with 'auto'"
)
_ELSEWHERE = {
    "nelder_mead": _NO_GRADIENTS,
    "powell": _NO_GRADIENTS,
    "tnc": "is a Newton method with bounds: write 'lbfgsb', or 'newton_cg' without bounds",
    "cobyla": _CONSTRAINED,
    "cobyqa": _CONSTRAINED,
    "slsqp": _CONSTRAINED,
    "trust_constr": _CONSTRAINED,
    "dogleg": _MATRIX,
    "trust_exact": _MATRIX,
}

_STEPS = ("maxiter", "maxfun", "maxfev")
_NO_HESSIAN = "Leave it out: 'newton_cg' uses exact Hessian-vector products"
_TABLE = ScipyTable(
    "minimize",
    keywords=("tol", "jac", "options"),
    # The last ones have no effect here, because derivatives are exact, and steps aren't printed.
    options=(
        *("ftol", "gtol", "xtol", "maxcor", "disp", *_STEPS),
        *("eps", "finite_diff_rel_step", "workers", "iprint"),
    ),
    steps=_STEPS,
    instead={
        "x0": "Rename it to params, or pass it second",
        **dict.fromkeys(("hess", "hessp"), _NO_HESSIAN),
        **dict.fromkeys(_STEPS, "Write max_steps"),
        "maxcor": "Write method=fnopt.lbfgsb(memory_size)",
    },
)


def method_of(name: str) -> Callable[[], MinimizeMethod]:
    """Return the method with one of fnopt's or SciPy's names.

    Raises:
        ValueError: If no method has this name; the message names a replacement.
    """
    key = name.lower().replace("-", "_")
    if key in _ELSEWHERE:
        raise ValueError(f"minimize: method = {name!r} {_ELSEWHERE[key]}.")
    if key not in METHODS:
        raise ValueError(
            f"minimize: method = {name!r}, expected 'auto', {names_text(sorted(METHODS), 20)}, "
            "or an optimizer."
        )
    return METHODS[key]


def with_scipy_options(
    keywords: dict[str, Any], method: Any, max_steps: int, **limits: Any
) -> tuple[Any, tuple[Any, ...], int, bool]:
    """Convert a call with SciPy's `tol`, `jac` and `options` to fnopt's arguments.

    Args:
        keywords: The keywords that `minimize` doesn't declare, with their values.
        method: The method, or its name; None selects the default, as in SciPy.
        max_steps: The maximum number of trial points.
        **limits: `ftol`, `xtol` and `gtol`, the tolerances of value, params and gradient; None for
            SciPy's keyword, or else the default.

    Returns:
        The method, the tolerances, the maximum number of steps, and whether to print the result.

    Raises:
        TypeError: If a keyword or an option is unknown, or has another name in fnopt.
    """
    read = _TABLE.read(keywords)
    check_jac("minimize", keywords.get("jac"), "its value")
    method = "auto" if method is None else method
    if "maxcor" in read:
        if method != "auto" and not (isinstance(method, str) and method_of(method) is lbfgsb):
            raise TypeError(f"minimize: maxcor is an option of 'lbfgsb', the method is {method!r}.")
        method = lbfgsb(read["maxcor"])
    check_tolerance(read.get("tol"), "tol", "minimize")
    for name, limit in limits.items():
        names = (name,) if name == "xtol" else (name, "tol")
        limits[name] = first(read, *names, given=limit)
        check_tolerance(limits[name], name, "minimize")
    max_steps = _TABLE.most_steps(read, max_steps)
    return method, tuple(limits.values()), max_steps, bool(read.get("disp"))


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

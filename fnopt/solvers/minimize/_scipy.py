"""Conversion of SciPy's method names, keywords and bounds for `minimize`."""

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
from fnopt.solvers.problem._scipy import ScipyTable, check_jac, value_or_option

# The methods by fnopt's and SciPy's names, in lower case because SciPy ignores case.
METHODS: dict[str, Callable[[], MinimizeMethod]] = {
    "bfgs": bfgs,
    "cg": nonlinear_cg,
    "projected_gradient": projected_gradient,
    **dict.fromkeys(("lbfgs", "lbfgsb", "l_bfgs_b"), lbfgsb),
    **dict.fromkeys(("newton_cg", "trust_ncg", "trust_krylov"), newton_cg),
}
_NO_GRADIENTS = (
    "expected a method with gradients, which are exact in fnopt. Use 'auto', or "
    "scipy.optimize.minimize for a function without gradients"
)
_MATRIX = "expected a method that doesn't form the Hessian. Use 'newton_cg'"
_CONSTRAINED = (
    "expected a method for bounds or projections. Use 'auto' with bounds=, projection= (convex "
    "sets) or constraints= (tied, positive, interval)"
)
# SciPy's methods that fnopt lacks, and what to use instead.
_MISSING_METHODS = {
    "nelder_mead": _NO_GRADIENTS,
    "powell": _NO_GRADIENTS,
    "tnc": "expected 'lbfgsb' for a problem with bounds, or 'newton_cg' without bounds",
    "cobyla": _CONSTRAINED,
    "cobyqa": _CONSTRAINED,
    "slsqp": _CONSTRAINED,
    "trust_constr": _CONSTRAINED,
    "dogleg": _MATRIX,
    "trust_exact": _MATRIX,
}

_STEPS = ("maxiter", "maxfun", "maxfev")
_NO_HESSIAN = "Leave it out, because 'newton_cg' uses exact Hessian-vector products"
_TABLE = ScipyTable(
    "minimize",
    keywords=("tol", "jac", "options"),
    options=(
        *("ftol", "gtol", "xtol", "maxcor", "disp", *_STEPS),
        # These have no effect, because derivatives are exact, and steps aren't printed.
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


def method_by_name(name: str) -> Callable[[], MinimizeMethod]:
    """Return the class of the method with fnopt's or SciPy's `name`.

    Raises:
        ValueError: If fnopt has no such method. The message proposes a replacement.
    """
    key = name.lower().replace("-", "_")
    if key in _MISSING_METHODS:
        raise ValueError(f"minimize: method = {name!r}, {_MISSING_METHODS[key]}.")
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
        **limits: fnopt's arguments `ftol`, `xtol` and `gtol`; None to use SciPy's option.

    Returns:
        The method, the three tolerances (None for the default), the maximum number of trial points,
        and whether to print the result.

    Raises:
        TypeError: If a keyword or an option is unknown, or has another name in fnopt.
        ValueError: If a tolerance is negative.
    """
    read = _TABLE.read(keywords)
    check_jac("minimize", keywords.get("jac"), "its value")
    method = "auto" if method is None else method
    if "maxcor" in read:
        if method != "auto" and not (isinstance(method, str) and method_by_name(method) is lbfgsb):
            raise TypeError(
                f"minimize: got maxcor with method = {method!r}, expected method = 'lbfgsb'. "
                "Leave maxcor out, or pass this method."
            )
        method = lbfgsb(read["maxcor"])
    check_tolerance(read.get("tol"), "tol", "minimize")
    for name, limit in limits.items():
        names = (name,) if name == "xtol" else (name, "tol")
        limits[name] = value_or_option(limit, read, *names)
        check_tolerance(limits[name], name, "minimize")
    max_steps = _TABLE.smallest_limit(read, max_steps)
    return method, tuple(limits.values()), max_steps, bool(read.get("disp"))


def lower_and_upper(bounds: Any) -> Any:
    """Convert SciPy's pairs `(low, high)`, with None for no bound, to `(lower, upper)`.

    A sequence of pairs is read as SciPy's pairs if it is a list of tuples, contains None, or has
    any length except two. A tuple of two lists, `([0, 0], [1, 1])`, contains the lower and the
    upper bounds. A single pair bounds every param. All other values are returned unchanged.

    Raises:
        ValueError: If a sequence of two pairs can be read both ways.
    """
    if not isinstance(bounds, (list, tuple)) or not bounds or not all(map(_is_pair, bounds)):
        return bounds
    kinds = (type(bounds), *{type(pair) for pair in bounds})
    if len(bounds) == 2 and kinds == (tuple, list):
        return bounds
    has_none = any(x is None for pair in bounds for x in pair)
    if len(bounds) == 2 and kinds != (list, tuple) and not has_none:
        raise ValueError(
            f"minimize: bounds = {bounds!r} are ambiguous, expected a list of tuples or a tuple of "
            f"lists. Pass {list(map(tuple, bounds))} for one pair (low, high) per param, or "
            f"{tuple(map(list, bounds))} for (lower, upper)."
        )
    sides = []
    for side, infinite in zip(zip(*bounds, strict=True), (-jnp.inf, jnp.inf), strict=True):
        values = jnp.asarray([infinite if x is None else x for x in side], default_float())
        sides.append(values[0] if len(bounds) == 1 else values)
    return tuple(sides)


def _is_pair(side: Any) -> bool:
    """Whether a value is a pair whose entries are numbers or None."""
    if not isinstance(side, (list, tuple)) or len(side) != 2:
        return False
    return all(x is None or isinstance(x, (int, float)) for x in side)

"""Keywords of SciPy's `root`, `fsolve` and `fixed_point`."""

from __future__ import annotations

from typing import Any

from fnopt.solvers.problem._scipy import EXACT, ScipyTable, check_jac, first

_METHODS = {"root": (None, "hybr", "lm"), "fixed_point": (None, "del2", "iteration")}
_STEPS = ("maxfev", "maxiter")
# The last ones have no meaning here: the method doesn't depend on the units of the params.
_OPTIONS = ("xtol", "ftol", *_STEPS, *("eps", "epsfcn", "factor", "diag", "band", "col_deriv"))
_INSTEAD = {
    "bracket": "Give the middle of it as params; scipy.optimize.brentq keeps within a bracket",
    "func": "Call it fun, or give it first",
    "x0": "Call it params, or give it second",
    "fprime": f"Leave it out: {EXACT}",
    "full_output": "Leave it out: a Root has all of it",
    "callback": "Write fnopt.least_squares(fun, params, callback=...)",
}


def as_asked(caller: str, keywords: dict[str, Any], tol: Any, max_steps: int) -> tuple[Any, int]:
    """The tolerance and the most steps of a call with SciPy's keywords.

    Args:
        caller: The function that is called.
        keywords: Keywords and values that aren't its own; in `options`, or beside each other.
        tol: Its tolerance.
        max_steps: Its most steps.

    Returns:
        The two.

    Raises:
        TypeError: For a keyword that neither knows, or that is called otherwise here.
        ValueError: For a method that isn't here.
    """
    options = (*_OPTIONS, "gtol")
    table = ScipyTable(caller, ("method", "jac", "options", *options), _INSTEAD, options, _STEPS)
    read, known = table.read(keywords), _METHODS[caller]
    if read.get("method") not in known:
        raise ValueError(
            f"{caller}: method = {read['method']!r}, expected one of {known}, which all mean "
            "Newton's steps with the exact Jacobian here. For more params than a matrix can have, "
            "scipy.optimize itself is the tool."
        )
    jac = keywords.get("jac")
    if caller != "root" or not hasattr(jac, "plan"):  # which a sparse Jacobian has
        sparse = ", or for many equations in few params each fnopt.sparse_jacobian(fun)"
        check_jac(caller, jac, "the equations", sparse if caller == "root" else "")
    tol = first(read, "xtol", "ftol", given=tol)
    return tol, min(max_steps, table.most_steps(read, max_steps))

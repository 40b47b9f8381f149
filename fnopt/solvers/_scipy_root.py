"""Keywords of SciPy's `root`, `fsolve` and `fixed_point`, in our terms."""

from __future__ import annotations

from typing import Any

from fnopt.core import check_count
from fnopt.solvers.problem._call import SCHEMES

_METHODS = {"root": (None, "hybr", "lm"), "fixed_point": (None, "del2", "iteration")}
_TOLERANCES = ("xtol", "ftol")
_STEPS = ("maxfev", "maxiter")
# Derivatives are exact, and the method doesn't depend on the units of the params.
_NEEDLESS = ("eps", "epsfcn", "factor", "diag", "band", "col_deriv", "gtol")
_OPTIONS = (*_TOLERANCES, *_STEPS, *_NEEDLESS)
_ACCEPTED = ("method", "jac", "options", *_OPTIONS)
_EXACT = "derivatives are exact here. If yours are cheaper, give fun a jax.custom_jvp"
_INSTEAD = {
    "func": "Call it fun, or give it first",
    "x0": "Call it params, or give it second",
    "fprime": f"Leave it out: {_EXACT}",
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
    given = dict(keywords.get("options") or {})
    for name in given:
        if name not in _OPTIONS:
            raise TypeError(f"{caller}: unexpected option {name!r}, expected {_listed(_OPTIONS)}.")
    for name in keywords:
        if name not in _ACCEPTED:
            hint = _INSTEAD.get(name, f"Expected one documented, or SciPy's {_listed(_ACCEPTED)}")
            raise TypeError(f"{caller}: unexpected keyword {name!r}. {hint}.")
    _check_method(caller, keywords.get("method"))
    _check_jac(caller, keywords.get("jac"))
    given |= keywords
    if tol is None:
        tol = next((given[name] for name in _TOLERANCES if given.get(name) is not None), None)
    limits = [check_count(given[name], name, caller) for name in _STEPS if given.get(name)]
    return tol, min([max_steps, *limits])


def _check_method(caller: str, method: Any) -> None:
    known = _METHODS[caller]
    if method not in known:
        raise ValueError(
            f"{caller}: method = {method!r}, expected one of {known}, which all mean Newton's "
            "steps with the exact Jacobian here. For more params than a matrix can have, "
            "scipy.optimize itself is the tool."
        )


def _check_jac(caller: str, jac: Any) -> None:
    if jac is True:
        raise TypeError(
            f"{caller}: jac = True, expected a function that returns the equations alone: {_EXACT}."
        )
    if caller == "root" and hasattr(jac, "plan"):
        return
    if jac is not False and jac not in (None, *SCHEMES):
        raise TypeError(
            f"{caller}: jac = {jac!r}, expected none, or for many equations in few params each "
            f"fnopt.sparse_jacobian(fun): {_EXACT}."
        )


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names)

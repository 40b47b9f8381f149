"""Keywords that SciPy's `curve_fit` hands on to its solvers, in our terms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

# What has no meaning here, and does no harm: derivatives are exact, the method doesn't depend on
# the units of the params, and it chooses its own linear algebra.
_NEEDLESS = ("epsfcn", "diff_step", "x_scale", "diag", "tr_solver", "tr_options", "workers")
_REFUSED = {
    "args": "Let f take what it needs from a closure or functools.partial",
    "kwargs": "Let f take what it needs from a closure or functools.partial",
    "Dfun": "Call it jac",
    "batch": "Many sets of data are fitted by fnopt.curve_fit_batch(f, x, y, p0)",
    "jac_sparsity": "Use fnopt.least_squares(..., jac=fnopt.sparse_jacobian(...))",
}
_WEIGHTS = "Write sigma=1 / jnp.sqrt(weights): residuals are divided by it"
_INSTEAD = {
    **dict.fromkeys(("weights", "w"), _WEIGHTS),
    **dict.fromkeys(("func", "fun", "model"), "Call it f, or give it first"),
    **dict.fromkeys(("x0", "params", "guess"), "Call it p0"),
    **dict.fromkeys(("max_steps", "maxiter"), "Write maxfev"),
    **dict.fromkeys(
        ("solver", "has_aux", "history"),
        "It is one of fnopt.least_squares, whose function is lambda p: f(xdata, *p) - ydata",
    ),
}
ACCEPTED = (*_NEEDLESS, "factor", "verbose", "col_deriv", "callback")


def solver_options(options: dict[str, Any]) -> dict[str, Any]:
    """Solver options from SciPy's keywords: `radius`, `callback` and `verbose`.

    Args:
        options: Keywords and values.

    Returns:
        Those that say something.

    Raises:
        TypeError: If one isn't SciPy's.
        ValueError: If it can't be had here, or isn't one of its values.
    """
    found: dict[str, Any] = {}
    for name, value in options.items():
        if name in _REFUSED:
            raise ValueError(f"curve_fit: {name} is not supported. {_REFUSED[name]}.")
        if name not in ACCEPTED:
            known = f"Expected one documented, or SciPy's {', '.join(sorted(ACCEPTED))}"
            hint = _INSTEAD.get(name, known)
            raise TypeError(f"curve_fit: unexpected keyword {name!r}. {hint}.")
        if name in _READ and value is not None:
            found |= _READ[name](value)
    return found


def _verbose(value: Any) -> dict[str, Any]:
    if value not in (0, 1, 2):
        raise ValueError(f"curve_fit: verbose = {value!r}, expected 0, 1 (a report) or 2 (steps).")
    return {"verbose": int(value)}


def _factor(value: Any) -> dict[str, Any]:
    if not np.all(np.asarray(value) > 0):
        raise ValueError(f"curve_fit: factor = {value!r}, expected a positive number.")
    return {"radius": float(value)}


def _col_deriv(value: Any) -> dict[str, Any]:
    if value:
        raise ValueError("curve_fit: col_deriv = True, expected jac to return shape [m, n].")
    return {}


def _callback(value: Any) -> dict[str, Any]:
    if not callable(value):
        raise TypeError(f"curve_fit: callback = {value!r}, expected a function of a StepInfo.")
    return {"callback": value}


_READ: dict[str, Callable[[Any], dict[str, Any]]] = {
    "verbose": _verbose,
    "factor": _factor,
    "col_deriv": _col_deriv,
    "callback": _callback,
}

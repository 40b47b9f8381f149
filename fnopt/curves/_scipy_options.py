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
    """Check SciPy's keywords.

    Args:
        options: Keywords and values.

    Returns:
        Those that mean something here: `verbose`, `callback` and `factor`.

    Raises:
        TypeError: If one isn't SciPy's.
        ValueError: If it isn't supported, or has a value that isn't expected.
    """
    for name, value in options.items():
        if name in _REFUSED:
            raise ValueError(f"curve_fit: {name} is not supported. {_REFUSED[name]}.")
        if name not in ACCEPTED:
            known = f"Expected one documented, or SciPy's {', '.join(sorted(ACCEPTED))}"
            hint = _INSTEAD.get(name, known)
            raise TypeError(f"curve_fit: unexpected keyword {name!r}. {hint}.")
        if name in _VALUES and value is not None:
            is_expected, expected, error = _VALUES[name]
            if not is_expected(value):
                raise error(f"curve_fit: {name} = {value!r}, expected {expected}.")
    return {name: options[name] for name in _VALUES if options.get(name) is not None}


def check_method(method: str | None, box: Any) -> None:
    """Refuses a method that SciPy doesn't know, or one that takes no bounds."""
    if method not in {None, "lm", "trf", "dogbox"}:
        raise ValueError(f"curve_fit: method = {method!r}, expected None, 'lm', 'trf' or 'dogbox'.")
    if method == "lm" and box is not None:
        raise ValueError("curve_fit: method 'lm' takes no bounds; leave the method out.")


_VALUES: dict[str, tuple[Callable[[Any], Any], str, type[Exception]]] = {
    "verbose": (lambda v: v in (0, 1, 2), "0, 1 (a report) or 2 (steps)", ValueError),
    "factor": (lambda v: np.all(np.asarray(v) > 0), "a positive number", ValueError),
    "col_deriv": (lambda v: not v, "jac to return shape [m, n]", ValueError),
    "callback": (callable, "a function of a StepInfo", TypeError),
}

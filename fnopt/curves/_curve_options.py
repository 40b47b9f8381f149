"""Types of the arguments of `curve_fit`, and the keywords of SciPy's solvers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict

import jax
import numpy as np

from fnopt.solvers import ScipyTable

Numbers = Sequence[float] | list[float | jax.Array] | np.ndarray | jax.Array | float
"""Initial guess whose numbers are passed as separate arguments to the model."""


class CurveFitOptions(TypedDict, total=False):
    """Keywords of `curve_fit` that don't change the type of its result."""

    nan_policy: str | None
    loss: Any
    f_scale: float | jax.Array
    ftol: float | None
    xtol: float | None
    gtol: float | None
    maxfev: int | None
    max_nfev: int | None
    check_jac: bool
    axis_name: Any
    constraints: Any
    likelihood: str | None
    starts: int
    # Keywords of SciPy's `curve_fit`.
    verbose: int
    callback: Any
    factor: float
    x_scale: Any
    diag: Any
    epsfcn: Any
    diff_step: Any
    tr_solver: Any
    tr_options: Any
    workers: Any


METHODS = (None, "lm", "trf", "dogbox")
_WEIGHTS = "Pass sigma=1 / jnp.sqrt(weights), because residuals are divided by sigma"
_CLOSURE = "Bind the arguments to f by a closure or functools.partial"
_SOLVER = (
    "Use fnopt.least_squares, which has this keyword, with the function "
    "lambda p: f(xdata, *p) - ydata"
)
_TABLE = ScipyTable(
    "curve_fit",
    # The keywords after `callback` have no effect. Derivatives are exact, the method is invariant
    # to the scales of the params, and `curve_fit` chooses the linear solver.
    keywords=(
        *("factor", "verbose", "col_deriv", "callback"),
        *("epsfcn", "diff_step", "x_scale", "diag", "tr_solver", "tr_options", "workers"),
    ),
    instead={
        "Dfun": "Rename it to jac",
        "batch": "To fit many data sets, use fnopt.curve_fit_batch(f, x, y, p0)",
        "jac_sparsity": "Use fnopt.least_squares(..., jac=fnopt.sparse_jacobian(...))",
        **dict.fromkeys(("weights", "w"), _WEIGHTS),
        **dict.fromkeys(("func", "fun", "model"), "Rename it to f, or pass it first"),
        **dict.fromkeys(("x0", "params", "guess"), "Rename it to p0"),
        **dict.fromkeys(("yerr", "dy", "error"), "Rename it to sigma"),
        **dict.fromkeys(("vary", "fixed"), "Pass constraints={'a': fnopt.fixed()}"),
        "data": "Pass the columns as arrays: curve_fit(f, data['x'], data['y'])",
        **dict.fromkeys(("max_steps", "maxiter"), "Pass maxfev"),
        **dict.fromkeys(("solver", "has_aux", "history"), _SOLVER),
    },
)


def read_keywords(keywords: dict[str, Any]) -> dict[str, Any]:
    """Check SciPy's keywords, and drop keywords that are None.

    Raises:
        TypeError: If a keyword is unknown, or `callback` isn't a function.
        ValueError: If a keyword isn't supported, or has an unknown value.
    """
    for name in ("args", "kwargs"):  # SciPy also raises a ValueError for these names
        if name in keywords:
            raise ValueError(f"curve_fit: the argument `{name}` isn't supported. {_CLOSURE}.")
    read = _TABLE.read(keywords)
    for name, is_expected, expected in (
        ("verbose", lambda v: v in (0, 1, 2), "0, 1 (a report) or 2 (steps)"),
        ("factor", lambda v: np.all(np.asarray(v) > 0), "a positive number"),
        ("col_deriv", lambda v: not v, "0 and a jac that returns an array [m, n]"),
    ):
        if name in read and not is_expected(read[name]):
            raise ValueError(f"curve_fit: {name} = {read[name]!r}, expected {expected}.")
    if not callable(read.get("callback", print)):
        raise TypeError(
            f"curve_fit: callback = {read['callback']!r}, expected a function of one StepInfo."
        )
    return read


def check_method(method: str | None, box: Any) -> None:
    """Raise an error for an unknown method, and for `'lm'` with bounds."""
    if method not in METHODS:
        raise ValueError(f"curve_fit: method = {method!r}, expected None, 'lm', 'trf' or 'dogbox'.")
    if method == "lm" and box is not None:
        raise ValueError(
            "curve_fit: got bounds with method = 'lm', which doesn't support bounds. Omit the "
            "argument `method`."
        )

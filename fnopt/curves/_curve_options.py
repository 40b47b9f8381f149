"""Types of `curve_fit`'s arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict

import jax
import numpy as np

Numbers = Sequence[float] | list[float | jax.Array] | np.ndarray | jax.Array | float
"""A start whose entries are the arguments of the model; any other is passed to it as it is."""


class CurveFitOptions(TypedDict, total=False):
    """The keywords of `curve_fit` that have no say in what it returns."""

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
    # SciPy's.
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

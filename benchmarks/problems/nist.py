"""Reader of the NIST StRD nonlinear regression files.

The data are not part of this repository. They are published, as 27 files with the ending
``.dat``, at https://www.itl.nist.gov/div898/strd/nls/nls_main.shtml. A folder that holds them is
found through the environment variable ``FNOPT_NIST_STRD``, or as ``nist_strd`` in the root of the
repository, or as ``shared/nist_strd`` beside it.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from benchmarks.problems.nist_models import MODELS

WHERE = (
    "the NIST StRD data are not here: download the 27 .dat files from "
    "https://www.itl.nist.gov/div898/strd/nls/nls_main.shtml, set FNOPT_NIST_STRD to their folder"
)


class Problem(NamedTuple):
    """One data set: float64 NumPy arrays and a model ``model(b, x) -> prediction of y``."""

    name: str
    model: Callable[[jax.Array, jax.Array], jax.Array]
    x: np.ndarray  # (m,), or (m, 2) for Nelson
    y: np.ndarray  # (m,)
    starts: np.ndarray  # (2, n)
    certified: np.ndarray  # (n,)
    standard_deviations: np.ndarray  # (n,)
    residual_sum_of_squares: float
    copies: tuple[tuple[int, ...], ...]  # permutations of b that leave the model unchanged


def folder() -> Path | None:
    """Return the first folder that holds the data, or None."""
    root = Path(__file__).resolve().parents[2]
    named = os.environ.get("FNOPT_NIST_STRD")
    places = [Path(named)] if named else [root / "nist_strd", root.parent / "shared" / "nist_strd"]
    return next((p for p in places if (p / "Misra1a.dat").is_file()), None)


def load(name: str) -> Problem:
    """Read one data set by its name, as in ``load("MGH09")``."""
    where = folder()
    if where is None:
        raise FileNotFoundError(WHERE)
    return parse(name, (where / f"{name}.dat").read_text())


def parse(name: str, text: str) -> Problem:
    """Read the text of one ``.dat`` file."""
    rows = re.findall(r"^ *b\d+ *=(.*)$", text, re.MULTILINE)
    numbers = np.array([[float(word) for word in row.split()] for row in rows])
    data = text[text.rindex("Data:") :].splitlines()[1:]
    table = np.array([[float(word) for word in line.split()] for line in data if line.strip()])
    match = re.search(r"Residual Sum of Squares: *(\S+)", text)
    assert match is not None
    y, x = table[:, 0], table[:, 1:]
    if name == "Nelson":  # the model is stated for log(y)
        y = np.log(y)
    return Problem(
        name,
        MODELS[name],
        x if x.shape[1] > 1 else x[:, 0],
        y,
        numbers[:, :2].T,
        numbers[:, 2],
        numbers[:, 3],
        float(match.group(1)),
        _copies(name, len(numbers)),
    )


def log_relative_error(problem: Problem, estimate: np.ndarray) -> float:
    """Return the number of correct digits of the worst parameter, at most 11.

    ``LRE = min_i -log10(|b_i - c_i| / |c_i|)``. Certified values have 11 digits. A relabeled
    copy of the same fit (two peaks exchanged, say) counts as correct.
    """
    with np.errstate(all="ignore"):
        errors = [
            np.max(np.abs(np.asarray(estimate, float)[list(p)] / problem.certified - 1))
            for p in problem.copies
        ]
        return float(np.clip(-np.log10(np.nanmin([*errors, np.inf])), 0, 11))


def _copies(name: str, n: int) -> tuple[tuple[int, ...], ...]:
    groups = {
        "Lanczos1": [(0, 1), (2, 3), (4, 5)],
        "Lanczos2": [(0, 1), (2, 3), (4, 5)],
        "Lanczos3": [(0, 1), (2, 3), (4, 5)],
        "Gauss1": [(2, 3, 4), (5, 6, 7)],
        "Gauss2": [(2, 3, 4), (5, 6, 7)],
        "Gauss3": [(2, 3, 4), (5, 6, 7)],
        "MGH17": [(1, 3), (2, 4)],
        "ENSO": [(3, 4, 5), (6, 7, 8)],
    }.get(name, [])
    copies = []
    for order in itertools.permutations(groups):
        copy = list(range(n))
        for target, source in zip(groups, order, strict=True):
            for t, s in zip(target, source, strict=True):
                copy[t] = s
        copies.append(tuple(copy))
    return tuple(copies)

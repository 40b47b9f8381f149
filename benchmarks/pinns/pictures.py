"""Plot a record with matplotlib."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.pinns.methods import METHODS
from benchmarks.pinns.record import Record

STYLES = {
    "gauss_newton": {"color": "#762a83", "linewidth": 2.2},
    "gauss_newton_fresh": {"color": "#762a83", "linestyle": "--"},
    "spring": {"color": "#b797cf", "linestyle": "--"},
    "levenberg_marquardt": {"color": "#1b7837"},
    "lbfgs": {"color": "#c51b7d"},
    "scipy_lbfgs": {"color": "#c51b7d", "linestyle": ":"},
    "adam": {"color": "#4d4d4d"},
    "soap": {"color": "#2166ac"},
}
LABELS = {"seconds": "CPU seconds", "steps": "step"}


def curves(record: Record, problem: str, ax: Any, axis: str = "seconds") -> None:
    """Plot the median relative error against seconds or steps, on logarithmic axes."""
    for name in record.methods(problem):
        x, y = record.curve(problem, name, axis)
        ax.plot(x, y, label=METHODS[name].title, **STYLES[name])
    ax.set(xscale="log", yscale="log", xlabel=LABELS[axis])
    ax.set(title=record.problems[problem]["title"] if axis == "seconds" else "")
    ax.grid(visible=True, which="major", color="0.9")


def all_curves(record: Record, figure: Any) -> None:
    """Plot one row for each problem, against seconds and against steps, with one legend."""
    grid = figure.subplots(len(record.problems), 2, sharey="row", squeeze=False)
    for problem, (left, right) in zip(record.problems, grid, strict=True):
        curves(record, problem, left, "seconds")
        curves(record, problem, right, "steps")
        left.set(ylabel="relative L2 error")
    handles: dict[str, Any] = {}
    for ax in np.ravel(grid):
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    ordered = [METHODS[name].title for name in STYLES if METHODS[name].title in handles]
    lines = [handles[title] for title in ordered]
    figure.legend(lines, ordered, loc="outside lower center", ncols=3, fontsize=8)

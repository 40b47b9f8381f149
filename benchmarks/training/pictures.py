"""Plot a record with matplotlib."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from matplotlib.ticker import LogLocator, NullFormatter

from benchmarks.training.profiles import middle, profile
from benchmarks.training.record import AXES, Record

LABELS = {"steps": "step", "FLOPs": "FLOPs", "seconds": "CPU seconds"}
WORDS = {"steps": "steps", "FLOPs": "FLOPs", "seconds": "CPU seconds"}
COLORS = {
    "sgd": "#a6761d",
    "adamw": "#4d4d4d",
    "adamw_fifth": "#4d4d4d",
    "schedule_free_adamw": "#999999",
    "lion": "#e6ab02",
    "muon": "#1b7837",
    "soap": "#2166ac",
    "shampoo": "#67a9cf",
    "kfac": "#b2182b",
    "kfac_rare": "#ef8a62",
    "gauss_newton": "#762a83",
    "natural_gradient": "#9970ab",
    "lbfgs": "#c51b7d",
    "optax.adamw": "#4d4d4d",
    "optax.muon": "#1b7837",
}


def _style(method: str) -> dict[str, Any]:
    line = ":" if method.startswith("optax.") else "--" if method == "adamw_fifth" else "-"
    return {"color": COLORS[method], "linestyle": line, "label": method}


def curves(record: Record, task: str, axes: Any) -> None:
    """Plot the median training loss against steps, FLOPs and seconds, on three axes."""
    entry = record.tasks[task]
    for axis, ax in zip(AXES, axes, strict=True):
        for name in record.methods(task):
            runs = record.runs(task, name)
            losses = np.array([[np.nan if v is None else v for v in run["train"]] for run in runs])
            steps = np.array(runs[0]["steps"])
            middles = np.median(losses, axis=0)
            ax.plot(steps * record.per_step(task, name, axis), middles, **_style(name))
        ax.axhline(record.target(task), color="0.6", linewidth=0.8, linestyle="--")
        ax.set(xlabel=LABELS[axis], yscale="log", ylim=_span(record, task))
        ax.yaxis.set_major_locator(LogLocator(subs=_subs(*ax.get_ylim())))
        ax.yaxis.set_major_formatter("{x:g}")
        ax.yaxis.set_minor_formatter(NullFormatter())
        if axis != "steps":
            ax.set(xscale="log")
    axes[0].set(ylabel="training loss", title=entry["title"])


def _span(record: Record, task: str) -> tuple[float, float]:
    """Return limits of the loss axis, from the lowest loss to the median initial loss.

    The median, not the maximum, because a diverging first step would compress all curves.
    """
    runs = [run["train"] for m in record.methods(task) for run in record.runs(task, m)]
    first = [math.inf if run[0] is None else run[0] for run in runs]
    lowest = min(value for run in runs for value in run if value is not None)
    return 0.9 * lowest, 1.2 * middle(first)


def _subs(bottom: float, top: float) -> tuple[float, ...]:
    return (1.0, 1.5, 2.0, 3.0, 5.0, 7.0) if top < 10 * bottom else (1.0,)


def profiles(record: Record, axes: Any, upto: float = 10.0) -> None:
    """Plot performance profiles on three axes.

    A profile is the fraction of tasks on which a method reaches the target at up to a given
    multiple of the best method's cost.
    """
    for axis, ax in zip(AXES, axes, strict=True):
        methods = record.factors(axis)
        for k, (name, ratios) in enumerate(methods.items()):
            x, y = profile(ratios, upto)
            shift = 0.004 * (k - len(methods) / 2)  # separates equal lines
            ax.step(x, np.array(y) + shift, where="post", **_style(name))
        ax.set(xscale="log", xlim=(1, upto), ylim=(-0.05, 1.05), xlabel=f"{WORDS[axis]} / the best")
        ticks = [1, 2, 3, 5, 10]
        ax.set_xticks(ticks, [str(t) for t in ticks])
        ax.minorticks_off()
    axes[0].set(ylabel="fraction of tasks")


def legend(figure: Any, axes: Any) -> None:
    """Draw one legend for all axes, below the axes."""
    handles: dict[str, Any] = {}
    for ax in np.ravel(axes):
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    ordered = [name for name in COLORS if name in handles]
    lines = [handles[name] for name in ordered]
    figure.legend(lines, ordered, loc="outside lower center", ncols=5, fontsize=8)

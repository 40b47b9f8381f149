"""Heat map of a health statistic over layers and steps."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from fnopt.errors import import_optional, matches, names_text
from fnopt.monitor._flags import Flag
from fnopt.monitor._history import History

LOGARITHMIC = ("norm", "max", "rms", "ratio")
MARKS = {
    Flag.DEAD: ("dead", "#000000"),
    Flag.EXPLODING: ("exploding", "#d95f02"),
    Flag.NONFINITE: ("not finite", "#e7298a"),
    Flag.VANISHING: ("vanishing", "#7570b3"),
    Flag.HALF_DEAD: ("half dead", "#666666"),
}
# Labels of 8 points that are legible on the tallest figure, 18.8 inches.
MAX_LABELS = 50


def by_depth(names: Sequence[str]) -> list[str]:
    """Sort numbered siblings by number (`layer_2` before `layer_10`); keep the order otherwise."""
    ranks: dict[tuple[str, str], int] = {}

    def sort_key(name: str) -> list[tuple[int, list[int]]]:
        parts, keys = name.split("/"), []
        for i, part in enumerate(parts):
            stem = ("/".join(parts[:i]), re.sub(r"\d+", "#", part))
            rank = ranks.setdefault(stem, len(ranks))
            keys.append((rank, [int(digits) for digits in re.findall(r"\d+", part)]))
        return keys

    return sorted(names, key=sort_key)


def _order_names(names: tuple[str, ...], order: Sequence[str] | None) -> list[str]:
    sorted_names = by_depth(names)
    if order is None:
        return sorted_names
    unmatched = [q for q in order if not any(matches(name, q) for name in names)]
    if unmatched:
        raise ValueError(
            f"plot_gradient_flow: the patterns {names_text(unmatched)} in order match no name, "
            f"expected patterns that match {names_text(sorted_names)}."
        )

    def rank(name: str) -> int:
        return next((i for i, q in enumerate(order) if matches(name, q)), len(order))

    return sorted(sorted_names, key=rank)


def _last_flags(history: History) -> np.ndarray:
    """Last flag of every group, derived from the norms if no flags were recorded."""
    if "flag" in history.values:
        return history.values["flag"][-1]
    norm = history.values["norm"][-1] if "norm" in history.values else np.ones(len(history.names))
    return np.where(~np.isfinite(norm), Flag.NONFINITE, np.where(norm == 0, Flag.DEAD, Flag.FINE))


def _layers(history: History, stat: str, rows: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Values to draw, with a mask for flagged cells, and flags; `[groups, times]` each."""
    values = history.values[stat][:, rows].T.astype(float)
    dead = values == 0 if stat in LOGARITHMIC else np.zeros(values.shape, bool)
    flags = np.where(~np.isfinite(values), Flag.NONFINITE, np.where(dead, Flag.DEAD, Flag.FINE))
    if "flag" in history.values:
        recorded = history.values["flag"][:, rows].T
        flags = np.where((flags == Flag.FINE) & (recorded == Flag.DEAD), Flag.DEAD, flags)
    blank = (flags == Flag.NONFINITE) | (flags == Flag.DEAD)
    # 1 in place of masked values, because NumPy computes their logarithms too and would warn.
    numbers = np.ma.masked_array(np.where(blank, 1.0, values), blank)
    return (np.ma.log10(numbers) if stat in LOGARITHMIC else numbers), flags


def _edges(steps: np.ndarray) -> np.ndarray:
    """Edges of the columns, halfway between the steps."""
    if len(steps) == 1:
        return np.asarray([steps[0] - 0.5, steps[0] + 0.5])
    middles = (steps[1:] + steps[:-1]) / 2
    return np.concatenate([[2 * steps[0] - middles[0]], middles, [2 * steps[-1] - middles[-1]]])


def _check(history: History, stat: str) -> None:
    if stat not in history.values or stat in ("histogram", "flag"):
        stats = [s for s in history.values if s not in ("histogram", "flag")]
        raise ValueError(
            f"plot_gradient_flow: stat is {stat!r}, expected one of {names_text(stats)}, the "
            "statistics in the history."
        )
    if not history.names or not len(history.steps):
        raise ValueError(
            "plot_gradient_flow: the history is empty, expected at least one recorded step."
        )


def plot_gradient_flow(
    history: History, *, stat: str = "norm", order: Sequence[str] | None = None, ax: Any = None
) -> Any:
    """Draw a statistic of every layer over time as a heat map; needs matplotlib.

    Rows are layers, columns are steps, and colors show the logarithm (base 10) of the statistic.
    Dead layers are black; infinite or NaN values are pink. Labels on the right show the flags of
    the last step.

    Args:
        history: A `History` from `health_history` or `history_of`.
        stat: The statistic to draw. `'norm'`, `'rms'`, `'ratio'` and `'max'` are drawn with a
            logarithm; `'mean'`, `'zeros'` and `'nonfinite'` without.
        order: Patterns of names from top to bottom (`['embedding', 'layers', 'head']`). Names
            without a match come last. The default is the order of the tree, with numbered layers
            sorted by number.
        ax: The axes to draw into; by default, a new figure of suitable size.

    Returns:
        The axes.

    Raises:
        ValueError: If the statistic wasn't recorded, or the history is empty.
        ImportError: If matplotlib isn't installed.

    Example:
        >>> import matplotlib; matplotlib.use("agg")
        >>> from fnopt.monitor import history_of, plot_gradient_flow
        >>> records = [{"step": i, "norm/a": 1.0, "norm/b": 0.0} for i in range(3)]
        >>> plot_gradient_flow(history_of(records)).get_title(loc="left")
        'gradient flow: log10 of norm'
    """
    _check(history, stat)
    names = _order_names(history.names, order)
    rows = [history.names.index(name) for name in names]
    if ax is None:
        plt = import_optional("matplotlib.pyplot", "plot_gradient_flow", "monitor")
        _, ax = plt.subplots(figsize=(8, 1.2 + 0.22 * min(len(names), 80)), layout="constrained")
    numbers, flags = _layers(history, stat, rows)
    _draw(ax, _edges(history.steps), numbers, flags, stat)
    _label(ax, names, _last_flags(history)[rows])
    log = "log10 of " if stat in LOGARITHMIC else ""
    ax.set_title(f"gradient flow: {log}{stat}", loc="left")
    ax.set_xlabel("step")
    return ax


def _draw(ax: Any, edges: np.ndarray, numbers: Any, flags: np.ndarray, stat: str) -> None:
    colors = import_optional("matplotlib.colors", "plot_gradient_flow", "monitor")
    heights = np.arange(len(numbers) + 1) - 0.5
    values = numbers.compressed()
    # The color scale omits 1 % at either end, because a few extreme cells would hide differences.
    low, high = np.percentile(values, [1, 99]) if values.size else (0.0, 1.0)
    mesh = ax.pcolormesh(edges, heights, numbers, cmap="viridis", vmin=low, vmax=high)
    label = f"log10 of {stat}" if stat in LOGARITHMIC else stat
    ax.figure.colorbar(mesh, ax=ax, label=label, extend="both", pad=0.12)
    for flag in (Flag.DEAD, Flag.NONFINITE):
        cells = np.ma.masked_array(np.ones(flags.shape), flags != flag)
        ax.pcolormesh(edges, heights, cells, cmap=colors.ListedColormap([MARKS[flag][1]]))
    ax.grid(False)
    ax.invert_yaxis()


def _label(ax: Any, names: list[str], flags: np.ndarray) -> None:
    every = -(-len(names) // MAX_LABELS)
    ticks = [i for i in range(len(names)) if i % every == 0 or flags[i] != Flag.FINE]
    ax.set_yticks(ticks, [names[i] for i in ticks], fontsize=8)
    for tick, i in zip(ax.get_yticklabels(), ticks, strict=True):
        if flags[i] != Flag.FINE:
            word, color = MARKS[Flag(flags[i])]
            tick.set(color=color, fontweight="bold")
            right = ax.get_yaxis_transform()
            style = {"color": color, "fontsize": 8, "fontweight": "bold", "va": "center"}
            ax.text(1.01, i, word, transform=right, **style)

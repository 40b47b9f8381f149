"""Format a record as Markdown tables."""

from __future__ import annotations

import math
from collections.abc import Iterable

from benchmarks.pinns.methods import METHODS
from benchmarks.pinns.record import Record

TUNED = ("adam",)
QUASI = ("lbfgs", "scipy_lbfgs")
OURS = ("gauss_newton", "levenberg_marquardt")


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = [*head]
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _format(value: float) -> str:
    return f"{value:.1e}" if math.isfinite(value) else "not finite"


def _times(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def _titles(record: Record) -> list[str]:
    return [entry["title"] for entry in record.problems.values()]


def error_table(record: Record) -> str:
    """Table of final relative errors: median, minimum and maximum over the seeds."""
    rows = []
    for name, method in METHODS.items():
        cells = []
        for problem in record.problems:
            if name not in record.methods(problem):
                cells.append("")
                continue
            ends = record.ends(problem, name)
            middle = _format(record.final(problem, name))
            extent = f" ({_format(min(ends))} to {_format(max(ends))})" if len(ends) > 1 else ""
            cells.append(middle + extent)
        rows.append([method.title, *cells])
    return _table(["", *_titles(record)], [row for row in rows if any(row[1:])])


def factor_table(record: Record) -> str:
    """Table of the errors of Adam and of the better L-BFGS relative to Gauss-Newton and LM."""
    rows = []
    for name in OURS:
        for words, others in (("Adam", TUNED), ("the better L-BFGS", QUASI)):
            cells = []
            for problem in record.problems:
                methods = record.methods(problem)
                peers = tuple(other for other in others if other in methods)
                complete = peers and name in methods
                cells.append(_times(record.below(problem, name, peers)) if complete else "")
            rows.append([f"{METHODS[name].title} below {words}", *cells])
    return _table(["times", *_titles(record)], rows)


def step_table(record: Record) -> str:
    """Table of the numbers of steps, batch sizes and tuned learning rates."""
    rows = []
    for name, method in METHODS.items():
        cells = []
        for problem, entry in record.problems.items():
            if name not in record.methods(problem):
                cells.append("")
                continue
            rate, factor = entry["methods"][name]["best"]
            points = round(factor * sum(entry["points"]))
            text = f"{record.steps(problem, name):.0f} steps, {points} points"
            cells.append(f"{text}, rate {rate:g}" if len(method.rates) > 1 else text)
        rows.append([method.title, *cells])
    return _table(["", *_titles(record)], [row for row in rows if any(row[1:])])


def problem_list(record: Record) -> str:
    """List of the problems, with their networks and points."""
    lines = []
    for entry in record.problems.values():
        widths, points = "-".join(map(str, entry["widths"])), " + ".join(map(str, entry["points"]))
        network = f"{widths}, {entry['params']} params, {entry['dtype']}"
        seeds = max(len(method["runs"]) for method in entry["methods"].values())
        seeds = f"{seeds} {'seeds' if seeds > 1 else 'seed'}"
        points = f"{points} points, {seeds}, {entry['seconds']:g} s a run"
        lines.append(f"- **{entry['title']}**: {entry['text']}; {network}; {points}")
    return "\n".join(lines)


def printed(record: Record) -> str:
    """Return all tables of a record."""
    parts = (problem_list, error_table, factor_table, step_table)
    return "\n\n".join(part(record) for part in parts)

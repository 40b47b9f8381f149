"""Format a record as Markdown tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from benchmarks.training.profiles import middle, share_within
from benchmarks.training.record import AXES, Record


def _format(value: float) -> str:
    return "never" if math.isinf(value) else f"{value:.2f}" if value < 10 else f"{value:.0f}"


def markdown_table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Format rows as a Markdown table."""
    head = [*head]
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _spread(values: list[float]) -> str:
    return f"{middle(values):.3g} ({min(values):.3g} to {max(values):.3g})"


def task_table(record: Record, task: str) -> str:
    """Table of losses and costs with one row per method, sorted by training loss."""
    names = sorted(record.methods(task), key=lambda m: middle(record.final(task, m)))
    rows = [
        [
            f"`{name}`",
            _spread(record.final(task, name)),
            _spread(record.final(task, name, "test")),
            *(_format(record.relative(task, name, axis)) for axis in AXES),
            *(
                _format(record.per_step(task, name, axis) / record.per_step(task, "adamw", axis))
                for axis in ("FLOPs", "seconds")
            ),
        ]
        for name in names
    ]
    test = record.tasks[task]["test_title"]
    each = [f"{axis} a step" for axis in ("FLOPs", "seconds")]
    return markdown_table(["", "training loss", test, *AXES, *each], rows)


def tuning_table(record: Record, task: str) -> str:
    """Table of the tuned hyper-parameters and their trials."""
    rows = []
    for name in record.methods(task):
        t = record.tasks[task]["methods"][name]["tuning"]
        trials = [trial[0] for trial in t["trials"]]
        span = f"{min(trials):.2g} to {max(trials):.2g}" if trials else "not tuned"
        second = "" if t["second"] == "nothing" else f"{t['second']} {t['best'][1]:g}"
        edge = "yes" if t["at_edge"] else ""
        best = f"{t['first']} {t['best'][0]:.2g}"
        rows.append([f"`{name}`", best, second, span, str(len(trials)), edge])
    return markdown_table(["", "best", "", "range", "trials", "best at edge"], rows)


def share_table(record: Record, within: tuple[float, ...] = (1.0, 1.5, 3.0)) -> str:
    """Table of the fraction of tasks on which the relative cost is within given factors."""
    by_axis = {axis: record.factors(axis) for axis in AXES}
    names = sorted(
        by_axis["steps"], key=lambda m: -sum(share_within(within[-1], by_axis[a][m]) for a in AXES)
    )
    rows = [
        [
            f"`{name}`",
            str(len(by_axis["steps"][name])),
            *(
                " / ".join(f"{share_within(w, by_axis[axis][name]):.0%}" for w in within)
                for axis in AXES
            ),
        ]
        for name in names
    ]
    limits = " / ".join(f"{w:g}x" for w in within)
    return markdown_table(["", "tasks", *(f"{axis}: within {limits}" for axis in AXES)], rows)


def task_list(record: Record) -> str:
    """List of the tasks and the machines."""
    lines = [
        f"- **{t['title']}**: {t['size']}; {t['params']:,} params, {t['steps']} steps, {t['dtype']}"
        for t in record.tasks.values()
    ]
    machines = {
        f"{t['date']}, {m['device'].replace('cpu: cpu', 'CPU')}, {m['cores']} cores, "
        f"Python {m['python']}, JAX {m['jax']}"
        + "".join(f", {name} {version}" for name, version in m["versions"].items())
        for t in record.tasks.values()
        for m in [t["machine"]]
    }
    return "\n".join([*lines, "", *(f"Recorded {machine}." for machine in sorted(machines))])


def all_tasks(record: Record, table: Callable[[Record, str], str]) -> str:
    """Return the table of each task below its title."""
    parts = [f"**{t['title']}**\n\n{table(record, name)}" for name, t in record.tasks.items()]
    return "\n\n".join(parts)


def printed(record: Record) -> str:
    """Return all tables and warnings for the terminal."""
    parts = [f"{record.tasks[t]['title']}\n{task_table(record, t)}" for t in record.tasks]
    return "\n\n".join([*parts, share_table(record), *record.warnings()])

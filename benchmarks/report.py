"""A table for people, JSON for machines, and the comparison with a committed baseline."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import jax

from benchmarks.metric import Metric

Results = dict[str, list[Metric]]


def _row(metric: Metric) -> str:
    spread = "" if metric.spread is None else "{:.2f} - {:.2f}".format(*metric.spread)
    detail = "  ".join(f"{k} {v:.4g}" for k, v in metric.detail.items())
    sign = "<" if metric.direction == "lower" else ">"
    return f"  {metric.name:<50} {metric.value:8.3f} {sign} {metric.unit:<20} {spread:<14} {detail}"


def printed(metrics: Iterable[Metric]) -> Iterator[Metric]:
    """Passes figures on and prints each as it comes; `<` says that less is better."""
    for metric in metrics:
        print(_row(metric), flush=True)
        yield metric


def machine() -> dict[str, Any]:
    """What the figures were taken on."""
    device = jax.devices()[0]
    return {
        "device": f"{device.platform}: {device.device_kind}",
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "jax": jax.__version__,
        "python": platform.python_version(),
    }


def as_json(results: Results, skipped: dict[str, str]) -> dict[str, Any]:
    """Everything that was measured, and what was not and why."""
    cases = {case: [m.as_json() for m in metrics] for case, metrics in results.items()}
    return {"machine": machine(), "cases": cases, "skipped": skipped}


def write_json(path: Path, results: Results, skipped: dict[str, str]) -> None:
    """Writes the JSON file, and the folder that it lies in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(as_json(results, skipped), indent=1) + "\n")


def regressions(results: Results, baseline: dict[str, Any]) -> list[str]:
    """The figures that are worse than in the baseline by more than their tolerance."""
    found = []
    for case, metrics in results.items():
        before = {(m["name"], m["unit"]): m["value"] for m in baseline["cases"].get(case, [])}
        for m in metrics:
            value = before.get((m.name, m.unit))
            if value is not None and m.worse_than(value):
                was = f"the baseline says {value:.3f}"
                found.append(f"{case}: {m.name} is {m.value:.3f} {m.unit}, {was}")
    return found

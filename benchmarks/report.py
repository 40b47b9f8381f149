"""Print metrics as a table, write them as JSON, and compare them with a committed baseline."""

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
    """Print and yield each metric; `<` marks metrics for which lower values are better."""
    for metric in metrics:
        print(_row(metric), flush=True)
        yield metric


def machine() -> dict[str, Any]:
    """Return the device, the number of cores and the versions of Python and JAX."""
    device = jax.devices()[0]
    return {
        "device": f"{device.platform}: {device.device_kind}",
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "jax": jax.__version__,
        "python": platform.python_version(),
    }


def as_json(results: Results, skipped: dict[str, str]) -> dict[str, Any]:
    """Return all metrics, and the reasons of skipped cases."""
    cases = {case: [m.as_json() for m in metrics] for case, metrics in results.items()}
    return {"machine": machine(), "cases": cases, "skipped": skipped}


def write_json(path: Path, results: Results, skipped: dict[str, str]) -> None:
    """Write the metrics to a JSON file, and create its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(as_json(results, skipped), indent=1) + "\n")


def regressions(results: Results, baseline: dict[str, Any]) -> list[str]:
    """List the metrics that are worse than the baseline by more than their tolerance."""
    messages = []
    for case, metrics in results.items():
        before = {(m["name"], m["unit"]): m["value"] for m in baseline["cases"].get(case, [])}
        for m in metrics:
            value = before.get((m.name, m.unit))
            if value is not None and m.worse_than(value):
                baseline_text = f"the baseline is {value:.3f}"
                messages.append(f"{case}: {m.name} is {m.value:.3f} {m.unit}, {baseline_text}")
    return messages

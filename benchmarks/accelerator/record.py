"""Record the measurements as JSON and as Markdown tables after every case."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAME = "accelerator"
Row = dict[str, Any]


class Record:
    """Results of the cases, keyed by part and name: rows, or the text of an error."""

    def __init__(self, folder: Path, again: bool = False, keep_errors: bool = False) -> None:
        self.path, self.again = folder / f"{NAME}.json", again
        # A case with one of these keys isn't repeated.
        self.final = {"rows", "error"} if keep_errors else {"rows"}
        parts = json.loads(self.path.read_text()) if self.path.exists() else {}
        self.parts: dict[str, dict[str, Any]] = parts

    def has(self, part: str, case: str) -> bool:
        """Whether a case has a result and should not be repeated."""
        return not self.again and bool(self.final & self.parts.get(part, {}).get(case, {}).keys())

    def add(self, part: str, case: str, **entry: Any) -> None:
        """Store an entry (`rows`, `error` or `skipped`) and write both files.

        A skipped case keeps the rows of an earlier run.
        """
        if "skipped" in entry and "rows" in self.parts.get(part, {}).get(case, {}):
            return
        self.parts.setdefault(part, {})[case] = entry
        self.path.parent.mkdir(parents=True, exist_ok=True)
        replace(self.path, json.dumps(self.parts, indent=1) + "\n")
        replace(self.path.with_suffix(".md"), "\n".join(markdown(self.parts)) + "\n")

    def failed(self) -> list[str]:
        """List the cases that raised an error."""
        cases = [(p, c, e) for p, entries in self.parts.items() for c, e in entries.items()]
        return [f"{p}: {c}" for p, c, entry in cases if "error" in entry]


def replace(path: Path, text: str) -> None:
    """Write a file by renaming a new file, so an interrupted run never leaves a partial file."""
    new = path.with_name(path.name + ".new")
    new.write_text(text)
    os.replace(new, path)


def bandwidth(parts: dict[str, dict[str, Any]]) -> float | None:
    """Return the bytes per second of the fastest measured copy, or None."""
    rows = parts.get("device", {}).get("copy", {}).get("rows", [])
    return max((row["bandwidth"] for row in rows), default=None)


def _ms(row: Row, key: str = "seconds") -> str:
    return f"{1e3 * row[key]:.4g}" if row.get(key) is not None else ""


def _scaled(row: Row, key: str, unit: float) -> str:
    return f"{row[key] / unit:.4g}" if row.get(key) is not None else ""


def columns(row: Row, copies: float | None) -> dict[str, str]:
    """Return the nonempty cells of a row."""
    nbytes = row.get("bytes")
    rate = nbytes / row["seconds"] if nbytes and "seconds" in row else None
    percent = "" if not copies or not rate else f"{100 * rate / copies:.0f} %"
    spread = f"{_ms(row, 'least_s')} to {_ms(row, 'largest_s')}" if "least_s" in row else ""
    cells = {
        "variant": row.get("variant", ""),
        "time, ms": _ms(row),
        "least to largest": spread,
        "GB/s": f"{rate / 1e9:.4g}" if rate else "",
        "of copy": percent,
        "TFLOP/s": _scaled(row, "rate", 1e12),
        "per fit, us": _scaled(row, "per_fit_s", 1e-6),
        "first call, s": _scaled(row, "cold_s", 1),
        "compile, s": f"{row['compile_s']:.2f}" if row.get("compile_s") is not None else "",
        "kernels": str(row["kernels"]) if row.get("kernels") is not None else "",
        "temporary, MB": _scaled(row, "temporary_bytes", 1e6),
        "peak, MB": _scaled(row, "peak_bytes", 1e6),
        "peak / params": _scaled(row, "peak_of_params", 1),
        "converged": _scaled(row, "converged", 1),
        "steps": _scaled(row, "mean_steps", 1),
        "difference": _scaled(row, "difference", 1),
        "epsilons": _scaled(row, "epsilons", 1),
        "loss before": _scaled(row, "loss_before", 1),
        "loss after": _scaled(row, "loss_after", 1),
    }
    return {k: v for k, v in cells.items() if v}


def table(entries: dict[str, Any], copies: float | None) -> Iterator[str]:
    """Yield the lines of a table with one row for each variant of each case."""
    lines = []
    for case, entry in entries.items():
        if "rows" not in entry:
            kind = "error" if "error" in entry else "skipped"
            lines.append({"case": case, "variant": f"{kind}: {entry[kind].splitlines()[0][:120]}"})
        cells = [columns(row, copies) for row in entry.get("rows", [])]
        lines += [{"case": case} | row for row in cells if row]
    names = list(dict.fromkeys(name for line in lines for name in line))
    yield "| " + " | ".join(names) + " |"
    yield "|" + " --- |" * len(names)
    for line in lines:
        yield "| " + " | ".join(line.get(n, "").replace("|", "/") for n in names) + " |"


def markdown(parts: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of one table for each part."""
    copies = bandwidth(parts)
    for row in parts.get("device", {}).get("versions", {}).get("rows", []):
        yield ", ".join(f"{key} {value}" for key, value in row.items())
    for part, entries in parts.items():
        yield f"\n## {part}\n"
        yield from table(entries, copies)

"""Records of comparisons: a JSON file for each problem while it runs, and all of them in one."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Entries = dict[str, dict[str, Any]]
"""By problem, what its session keeps."""


def text(value: Any, depth: int = 0) -> str:
    """JSON with a line for each run: lists are on one line."""
    if not isinstance(value, dict) or not value or depth > 4:
        return json.dumps(value, separators=(",", ":"))
    inner = [f"{' ' * (depth + 1)}{json.dumps(k)}: {text(v, depth + 1)}" for k, v in value.items()]
    return "{\n" + ",\n".join(inner) + "\n" + " " * depth + "}"


def of_folder(folder: Path, names: Iterable[str], key: str) -> Entries:
    """The problems that a folder has files of, in this order.

    Args:
        folder: Where the files are.
        names: Of the problems.
        key: Under which an entry has its problem's name.
    """
    files = [folder / f"{name}.json" for name in names]
    found = [json.loads(file.read_text()) for file in files if file.exists()]
    return {entry[key]: entry for entry in found}

"""Records of comparisons: one JSON file per problem during the runs, and one merged file."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Entries = dict[str, dict[str, Any]]
"""Record of each problem, keyed by its name."""


def text(value: Any, depth: int = 0) -> str:
    """Format a value as JSON with lists and deeply nested dicts on one line."""
    if not isinstance(value, dict) or not value or depth > 4:
        return json.dumps(value, separators=(",", ":"))
    inner = [f"{' ' * (depth + 1)}{json.dumps(k)}: {text(v, depth + 1)}" for k, v in value.items()]
    return "{\n" + ",\n".join(inner) + "\n" + " " * depth + "}"


def of_folder(folder: Path, names: Iterable[str], key: str) -> Entries:
    """Read the records of those problems that have a file in a folder.

    Args:
        folder: Folder of the files.
        names: Names of the problems, in the order of the result.
        key: Key of the problem's name in a record.
    """
    files = [folder / f"{name}.json" for name in names]
    entries = [json.loads(file.read_text()) for file in files if file.exists()]
    return {entry[key]: entry for entry in entries}

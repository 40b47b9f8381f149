"""The key of the outputs that executed pages leave in the cache."""

from __future__ import annotations

import hashlib
import importlib.metadata
from collections.abc import Iterable
from pathlib import Path

# What a page can run: the library, the benchmarks that it imports, and how kernels start.
SOURCES = (
    "fnopt/**/*.py",
    "benchmarks/**/*.py",
    "benchmarks/**/*.json",
    "docs/conf.py",
    "docs/matplotlibrc",
    "tests/quick_compile.py",
)


def installed() -> list[str]:
    """Names and versions of all installed distributions."""
    return sorted(f"{d.name}=={d.version}" for d in importlib.metadata.distributions())


def execution_key(root: Path, versions: Iterable[str]) -> str:
    """Hash of every source under `root` that a page can run, and of the installed versions."""
    digest = hashlib.sha256("\n".join(versions).encode())
    # Files that benchmarks write are results, and no page reads them.
    found = {path for pattern in SOURCES for path in root.glob(pattern)}
    for path in sorted(path for path in found if "results" not in path.parts):
        digest.update(f"\n{path.relative_to(root).as_posix()}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]  # 64 bits: a folder name without collisions

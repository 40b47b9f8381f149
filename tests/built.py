"""Checks the built distributions: `python -m tests.built DIRECTORY`.

The metadata have no relative links, the wheel holds the library alone, and the source distribution
holds what the tests and the documentation read.
"""

from __future__ import annotations

import re
import sys
import tarfile
import zipfile
from pathlib import Path

RELATIVE = re.compile(r"\]\((?!https?:|#)[^)]*\)")
IN_SOURCE = (
    "conftest.py",
    "docs/conf.py",
    "docs/index.md",
    "docs/_static/logo.svg",
    "tests/test_readme.py",
    "benchmarks/baseline.json",
    "CITATION.cff",
    "Makefile",
)


def faults(directory: Path) -> list[str]:
    """What is wrong with the one wheel and the one source distribution of a directory."""
    (wheel,), (source,) = directory.glob("*.whl"), directory.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        text = archive.read(metadata).decode()
    found = [f"{wheel.name}: relative link {link}" for link in RELATIVE.findall(text)]
    foreign = [name for name in names if not re.match(r"fnopt(-[^/]*\.dist-info)?/", name)]
    found += [f"{wheel.name}: {name} is not of the library" for name in foreign]
    with tarfile.open(source) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    return found + [f"{source.name}: no {name}" for name in IN_SOURCE if name not in held]


if __name__ == "__main__":
    sys.exit("\n".join(faults(Path(sys.argv[1]))) or 0)

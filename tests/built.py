"""Check the built distributions: `python -m tests.built DIRECTORY`.

The metadata must not have relative links. The wheel must contain only the library, and the source
distribution must contain the files that tests and documentation read.
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
    """List the faults of the wheel and the source distribution in a directory."""
    (wheel,), (source,) = directory.glob("*.whl"), directory.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        text = archive.read(metadata).decode()
    messages = [f"{wheel.name}: relative link {link}" for link in RELATIVE.findall(text)]
    foreign = [name for name in names if not re.match(r"fnopt(-[^/]*\.dist-info)?/", name)]
    messages += [f"{wheel.name}: {name} is not part of the library" for name in foreign]
    with tarfile.open(source) as archive:
        files = {name.partition("/")[2] for name in archive.getnames()}
    missing = [name for name in IN_SOURCE if name not in files]
    return messages + [f"{source.name}: {name} is missing" for name in missing]


if __name__ == "__main__":
    sys.exit("\n".join(faults(Path(sys.argv[1]))) or 0)

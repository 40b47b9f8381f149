"""Run the code cells of documentation pages: `python -m tests.run_page docs/guides/cost.md`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

CELL = re.compile(
    r"^```\{code-cell\}[^\n]*\n(?:---\n.*?\n---\n|(?::[^\n]*\n)*)(.*?)^```", re.M | re.S
)


def cells(text: str) -> list[str]:
    """Return the code of all cells of a page, without cell options."""
    return CELL.findall(text)


def run(page: Path) -> int:
    """Run the cells in one namespace, and return the number of cells."""
    names: dict[str, object] = {"__name__": "__main__"}
    sources = cells(page.read_text())
    for i, cell in enumerate(sources):
        exec(compile(cell, f"{page}, cell {i + 1}", "exec"), names)
    return len(sources)


if __name__ == "__main__":
    import matplotlib as mpl

    from tests.quick_compile import compile_quickly

    mpl.use("Agg")
    compile_quickly()
    for name in sys.argv[1:]:
        print(f"{name}: {run(Path(name))} cells")

"""Gives every process of the build its share of the pages that run code.

Sphinx reads pages in parallel by consecutive runs of their sorted names, and nearly all the pages
that run code are guides: one process did most of the work. Here pages are dealt like cards, those
with most code cells first, and put in an order whose consecutive runs are the hands.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sphinx.util.parallel import make_chunks


def deal(app: Any, env: Any, docnames: list[str]) -> None:
    """Reorders the names of the pages to read, in place."""

    def cells(name: str) -> int:
        return Path(env.doc2path(name)).read_text().count("{code-cell}")

    sizes = [len(chunk) for chunk in make_chunks(docnames, app.parallel)]
    hands: list[list[str]] = [[] for _ in sizes]
    for name in sorted(docnames, key=cells, reverse=True):
        free = [i for i, size in enumerate(sizes) if len(hands[i]) < size]
        hands[min(free, key=lambda i: sum(map(cells, hands[i])))].append(name)
    docnames[:] = [name for hand in hands for name in hand]


def setup(app: Any) -> dict[str, Any]:
    """Connects it."""
    app.connect("env-before-read-docs", deal)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

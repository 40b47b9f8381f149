"""Gives the processes of the build one page that runs code at a time, as they become free.

Sphinx hands each process a few long runs of pages, and nearly all of the time goes into some of
them: one process works on while the other has nothing left. Here a page that runs code is a piece
of work of its own, those with most code cells begin first, and pages of text fill the gaps at the
end.
"""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

from sphinx import builders

_PLAIN = 4  # pieces of work that the pages without code make, for each process


def pieces(cells: dict[str, int], processes: int) -> list[list[str]]:
    """Pages, of which the numbers of code cells are given, in the order that Sphinx's queue needs.

    The queue starts what comes first at once, and goes on from its end.
    """
    running = sorted((name for name in cells if cells[name]), key=lambda name: cells[name])
    plain = [name for name in cells if not cells[name]]
    size = max(1, -(-len(plain) // (_PLAIN * processes)))
    texts = [plain[i : i + size] for i in range(0, len(plain), size)]
    longest, others = running[-processes:], running[:-processes]
    return [[name] for name in longest] + texts + [[name] for name in others]


def deal(app: Any, env: Any, docnames: list[str]) -> None:
    """Chooses what is read in one go. What is written is as Sphinx has it."""
    cells = {name: Path(env.doc2path(name)).read_text().count("{code-cell}") for name in docnames}
    chosen, usual = pieces(cells, app.parallel), builders.make_chunks

    def make_chunks(names: list[str], processes: int) -> list[list[str]]:
        builders.make_chunks = usual
        return chosen if sorted(chain(*chosen)) == sorted(names) else usual(names, processes)

    builders.make_chunks = make_chunks


def setup(app: Any) -> dict[str, Any]:
    """Connects it."""
    app.connect("env-before-read-docs", deal)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

"""Keywords of a page, its `{index}` entries, count as words that it has.

A search shows pages that have all words of a query; without this, a keyword is found only where
it is the whole query.
"""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.util.index_entries import split_index_msg


def add_words(app: Any, doctree: nodes.document) -> None:
    """Puts the words of all main entries where Sphinx's index reads keywords."""
    del app
    entries = [entry for node in doctree.findall(addnodes.index) for entry in node["entries"]]
    texts = [text for _, text, _, main, *_ in entries if main]
    if words := dict.fromkeys(word for text in texts for word in re.findall(r"\w+", text)):
        doctree.insert(0, nodes.meta(name="keywords", content=", ".join(words)))


def restore_entries(app: Any) -> list[Any]:
    """Completes the search index of a build that writes only some pages.

    Sphinx reads the index of the build before, but not the entries of pages in it.
    """
    index, entries = app.builder.indexer, app.env.get_domain("index").entries
    for page in set(app.env.all_docs) - set(index._index_entries):
        found = {
            (part, target, main)
            for kind, text, target, main, _ in entries.get(page, ())
            for part in split_index_msg(kind, text)
        }
        index._index_entries[page] = sorted(found)
    return []


def setup(app: Any) -> dict[str, Any]:
    """Registers the words of every page that is read."""
    app.connect("doctree-read", add_words)
    app.connect("html-collect-pages", restore_entries)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}

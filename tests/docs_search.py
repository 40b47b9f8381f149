"""Check the search of the built documentation: `python -m tests.docs_search DIRECTORY`.

The command ranks pages like Sphinx's search in the browser (titles, keywords, objects, words of the
text), with the scores of `docs/_ext/scorer.js`. A query of `tests/docs_queries.py` fails if none of
its pages is among the first three results.
"""

from __future__ import annotations

import functools
import json
import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.docs_queries import QUERIES

AMONG = 3
# Pages that are lists, which the search ranks last.
LISTS = {"changelog", "contributing", "design", "gallery/index", "index", "performance"}


@functools.cache
def english() -> Any:
    """Return Sphinx's stemmer; imported here, because pytest collects this file without Sphinx."""
    from sphinx.search.en import SearchEnglish

    return SearchEnglish({})


def read_index(directory: Path) -> dict[str, Any]:
    """Read the search index of a build."""
    text = (directory / "searchindex.js").read_text()
    return json.loads(text[text.index("{") : text.rindex("}") + 1])


def ranked(index: dict[str, Any], query: str) -> list[str]:
    """Return the pages that a query finds, best first, without duplicates."""
    names, subjects = index["docnames"], _subjects(index)
    query_stems = _stems(query)
    main, other = [], []  # index entries without `!` rank after all other matches
    for page, title, score, is_main in _matches(index, query.lower().strip()):
        name = names[page]
        hits = sum(stem in subjects[page] for stem in query_stems)
        score += 30 * hits / (len(query_stems) or 1) - 10 * (name in LISTS)
        (main if is_main else other).append((-score, title.lower(), name))
    return list(dict.fromkeys(name for group in (main, other) for *_, name in sorted(group)))


def _subjects(index: dict[str, Any]) -> list[set[str]]:
    """Return the stems of title and keywords for each page."""
    stems = [set(_stems(title)) for title in index["titles"]]
    for entry, places in index["indexentries"].items():
        for page, _, main in places:
            if main:
                stems[page].update(_stems(entry))
    return stems


def _matches(index: dict[str, Any], query: str) -> Iterator[tuple[int, str, float, bool]]:
    """Yield (page, displayed title, score, whether it is a main entry) for all matches."""
    titles = index["titles"]
    for title, places in index["alltitles"].items():
        if query in title.lower() and len(query) >= len(title) / 2:
            for page, _ in places:
                score = _round(15 * len(query) / len(title)) + (titles[page] == title)
                shown = title if titles[page] == title else f"{titles[page]} > {title}"
                yield page, shown, score, True
    for entry, places in index["indexentries"].items():
        if query in entry and len(query) >= len(entry) / 2:
            for page, _, main in places:
                yield page, titles[page], _round(100 * len(query) / len(entry)), bool(main)
    yield from _objects(index, set(_split(query)))
    for page, score in _words(index, query).items():
        yield page, titles[page], score, True


def _objects(index: dict[str, Any], terms: set[str]) -> Iterator[tuple[int, str, float, bool]]:
    """Match objects: one term in the name, the other terms in name, prefix, kind or page title."""
    priorities = {0: 15, 1: 5, 2: -5}
    for prefix, entries in index["objects"].items():
        for page, kind, priority, _, name in entries:
            full = f"{prefix}.{name}" if prefix else name
            context = f"{index['objnames'][str(kind)][2]} {index['titles'][page]}"
            text = f"{prefix} {name} {context}".lower()
            last = full.lower().split(".")[-1]
            for term in terms:
                if term in full.lower() and all(other in text for other in terms - {term}):
                    match = 11 if term in (full.lower(), last) else 6 * (term in last)
                    yield page, full, match + priorities[priority], True


def _words(index: dict[str, Any], query: str) -> dict[int, float]:
    """Return the pages that contain all words of a query, with the score of the best match."""
    words = set(_stems(query))
    by_word: dict[str, dict[int, float]] = {}
    for word in words:
        pages: dict[int, float] = {}
        tables = (index["terms"], 5, 2), (index["titleterms"], 15, 7)
        for table, whole, _ in tables:
            pages.update(dict.fromkeys(_pages(table, word), whole))
        for table, _, part in tables:
            if word not in table and len(word) > 2:
                for term in table:
                    if word in term:
                        pages.update(dict.fromkeys(_pages(table, term), part))
        if pages:
            by_word[word] = pages
    # Sphinx also accepts a page without the words of one or two letters.
    required = {len(words), sum(len(word) > 2 for word in words)}
    hits: dict[int, list[float]] = {}
    for pages in by_word.values():
        for page, score in pages.items():
            hits.setdefault(page, []).append(score)
    return {page: max(scores) for page, scores in hits.items() if len(scores) in required}


def _pages(table: dict[str, Any], word: str) -> list[int]:
    """Return the pages of a word; the index stores a single page without a list."""
    pages = table.get(word, [])
    return pages if isinstance(pages, list) else [pages]


def _round(x: float) -> int:
    """Round to the nearest integer, with halves rounded up, as in JavaScript."""
    return math.floor(x + 0.5)


def _split(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def _stems(text: str) -> list[str]:
    """Return the stems of all words, without stop words and numbers."""
    words = [word for word in _split(text) if not word.isdecimal()]
    return [english().stem(word) for word in words if word not in english().stopwords]


def main(directory: Path) -> int:
    """Print the failed queries, and return their number."""
    index, failed = read_index(directory), 0
    for query, answers in QUERIES.items():
        pages = ranked(index, query)
        ranks = [pages.index(a) + 1 for a in answers if a in pages]
        passes = bool(ranks) and min(ranks) <= AMONG
        failed += not passes
        if not passes:
            print(f"search: {query!r} finds {pages[:AMONG]}, expected {' or '.join(answers)}")
    print(f"search: {len(QUERIES) - failed} of {len(QUERIES)} queries find their page in {AMONG}")
    return failed


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))

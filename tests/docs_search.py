"""What the search box of the built documentation finds: `python -m tests.docs_search DIRECTORY`.

Ranks pages for a query as Sphinx's search does in the browser (titles, keywords, objects, words of
the text) with the scores of `docs/_ext/scorer.js`, and fails where what people type doesn't find
the page that answers among the first three.
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
# Pages that only list things: they come last.
LISTS = {"changelog", "contributing", "design", "gallery/index", "index", "performance"}


@functools.cache
def english() -> Any:
    """Sphinx's stemmer. The tests, which pytest finds this file among, run without Sphinx."""
    from sphinx.search.en import SearchEnglish

    return SearchEnglish({})


def read_index(directory: Path) -> dict[str, Any]:
    """The search index that a build left."""
    text = (directory / "searchindex.js").read_text()
    return json.loads(text[text.index("{") : text.rindex("}") + 1])


def ranked(index: dict[str, Any], query: str) -> list[str]:
    """The pages that a query finds, the best first, each once."""
    names, subjects = index["docnames"], _subjects(index)
    asked = _stems(query)
    main, aside = [], []  # what isn't marked as the main place comes behind everything else
    for page, shown, score, is_main in _found(index, query.lower().strip()):
        name = names[page]
        hits = sum(stem in subjects[page] for stem in asked)
        score += 30 * hits / (len(asked) or 1) - 10 * (name in LISTS)
        (main if is_main else aside).append((-score, shown.lower(), name))
    return list(dict.fromkeys(name for group in (main, aside) for *_, name in sorted(group)))


def _subjects(index: dict[str, Any]) -> list[set[str]]:
    """The stems of title and keywords, page by page."""
    found = [set(_stems(title)) for title in index["titles"]]
    for entry, places in index["indexentries"].items():
        for page, _, main in places:
            if main:
                found[page].update(_stems(entry))
    return found


def _found(index: dict[str, Any], query: str) -> Iterator[tuple[int, str, float, bool]]:
    """Page, what is shown, score, whether it is a main place: titles, keywords, objects, words."""
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
    """Classes and functions with one term in the name, and the others in it or beside it."""
    priorities = {0: 15, 1: 5, 2: -5}
    for prefix, entries in index["objects"].items():
        for page, kind, priority, _, name in entries:
            full = f"{prefix}.{name}" if prefix else name
            beside = f"{index['objnames'][str(kind)][2]} {index['titles'][page]}"
            text = f"{prefix} {name} {beside}".lower()
            last = full.lower().split(".")[-1]
            for term in terms:
                if term in full.lower() and all(other in text for other in terms - {term}):
                    match = 11 if term in (full.lower(), last) else 6 * (term in last)
                    yield page, full, match + priorities[priority], True


def _words(index: dict[str, Any], query: str) -> dict[int, float]:
    """The pages that have all words of a query, by the best place where one stands."""
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
    enough = {len(words), sum(len(word) > 2 for word in words)}
    hits: dict[int, list[float]] = {}
    for pages in by_word.values():
        for page, score in pages.items():
            hits.setdefault(page, []).append(score)
    return {page: max(scores) for page, scores in hits.items() if len(scores) in enough}


def _pages(table: dict[str, Any], word: str) -> list[int]:
    """The pages of a word; the index has a single one without its list."""
    places = table.get(word, [])
    return places if isinstance(places, list) else [places]


def _round(x: float) -> int:
    """To the nearest, halves up, as JavaScript does."""
    return math.floor(x + 0.5)


def _split(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def _stems(text: str) -> list[str]:
    """The stems of all words that are more than glue or a number."""
    words = [word for word in _split(text) if not word.isdecimal()]
    return [english().stem(word) for word in words if word not in english().stopwords]


def main(directory: Path) -> int:
    """Prints the rank of every answer; how many queries fail."""
    index, failed = read_index(directory), 0
    for query, answers in QUERIES.items():
        pages = ranked(index, query)
        ranks = [pages.index(a) + 1 for a in answers if a in pages]
        good = bool(ranks) and min(ranks) <= AMONG
        failed += not good
        if not good:
            print(f"search: {query!r} finds {pages[:AMONG]}, not {' or '.join(answers)}")
    print(f"search: {len(QUERIES) - failed} of {len(QUERIES)} queries find their page in {AMONG}")
    return failed


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))

"""The place of an error in a pipeline, for its message."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

# Tracing is plain Python, so the transform that is running is known when a message is written.
_places: contextvars.ContextVar[tuple[str, ...]] = contextvars.ContextVar("places", default=())


@contextlib.contextmanager
def place(name: str) -> Iterator[bool]:
    """Marks that `name` runs; yields whether it is the outermost such place."""
    outer = _places.get()
    token = _places.set((*outer, name))
    try:
        yield not outer
    finally:
        _places.reset(token)


def where() -> str:
    """The running transforms, outermost first: `'chain[1] > scale_by_adam: '`; `''` outside any."""
    text = ""
    for name in _places.get():
        text += name if name.startswith("[") or not text else f" > {name}"
    return f"{text}: " if text else ""


def listing(names: list[str], most: int = 8) -> str:
    """A list of names for a message, cut where it gets long."""
    shown = ", ".join(repr(n) for n in names[:most])
    more = len(names) - most
    return f"[{shown}{f', … and {more} more' if more > 0 else ''}]"

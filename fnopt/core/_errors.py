"""The place of an error in a pipeline, for its message."""

from __future__ import annotations

import contextvars

# Tracing is plain Python, so the transform that is running is known when a message is written.
_places: contextvars.ContextVar[tuple[str, ...]] = contextvars.ContextVar("places", default=())


class place:
    """Context that adds `name` to messages; yields whether it is the outermost context."""

    # A class and no generator, because every member of every update enters one.
    __slots__ = ("_name", "_token")

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> bool:
        outer = _places.get()
        self._token = _places.set((*outer, self._name))
        return not outer

    def __exit__(self, *error: object) -> None:
        _places.reset(self._token)


def where() -> str:
    """Path of the running transforms, `'chain[1] > scale_by_adam: '`; `''` outside of any."""
    text = ""
    for name in _places.get():
        text += name if name.startswith("[") or not text else f" > {name}"
    return f"{text}: " if text else ""


def listing(names: list[str], most: int = 8) -> str:
    """A list of names for a message, cut where it gets long."""
    shown = ", ".join(repr(n) for n in names[:most])
    more = len(names) - most
    return f"[{shown}{f', … and {more} more' if more > 0 else ''}]"

"""Warnings of what went wrong on the host, which never end the program."""

from __future__ import annotations

import sys
import warnings
import weakref
from typing import Any

_SAID: dict[int, Any] = {}  # what has been warned of, by its id: alive, so that no other has it


def say(message: str) -> None:
    """Warns; where warnings are errors, the message is printed."""
    try:
        warnings.warn(message, stacklevel=3)
    except UserWarning:
        print(message, file=sys.stderr)


def say_once(of: Any, message: str) -> None:
    """Warns of a thing, a function or an object, unless it has been warned of before."""
    owner = getattr(of, "__self__", of)  # a bound method is another one at every access
    key = id(owner)
    if key in _SAID:
        return
    try:
        _SAID[key] = weakref.ref(owner, lambda _: _SAID.pop(key, None))
    except TypeError:  # it has slots: kept, for its id stays taken
        _SAID[key] = owner
    say(message)

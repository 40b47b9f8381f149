"""Error messages: the position in a pipeline, names, missing libraries."""

from __future__ import annotations

import contextvars
import importlib
from typing import Any

# Tracing is plain Python, so the transform that is running is known when a message is written.
_places: contextvars.ContextVar[tuple[str, ...]] = contextvars.ContextVar("places", default=())


class error_scope:
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


def names_text(names: list[str], most: int = 8) -> str:
    """A list of names for a message, truncated to `most`."""
    shown = ", ".join(repr(n) for n in names[:most])
    more = len(names) - most
    return f"[{shown}{f', … and {more} more' if more > 0 else ''}]"


def import_optional(module: str, user: str, extra: str = "") -> Any:
    """Import an optional library; the error names the function that needs it and the extra.

    Args:
        module: The module to import.
        user: The public name that needs it, for the message.
        extra: The extra of fnopt that installs it.

    Returns:
        The module.

    Raises:
        ImportError: If it isn't installed.

    Example:
        >>> from fnopt.core import import_optional
        >>> import_optional("scipy.parse", "to_scipy")
        Traceback (most recent call last):
        ImportError: to_scipy needs scipy: install it with `pip install scipy`.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.split(".")[0]
        how = f"`pip install {package}`"
        if extra:
            how = f"all that fnopt.{extra} can use, with `pip install 'fnopt[{extra}]'`"
        together = ", or " if extra else " with "
        raise ImportError(f"{user} needs {package}: install it{together}{how}.") from error

"""Names of other results, in the error of a missing attribute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def explained(kind: str, names: dict[str, str]) -> Callable[[Any, str], Any]:
    """A `__getattr__` that says what to write in place of a name of another result.

    Args:
        kind: What has no such attribute, with its article.
        names: The other names, and what to write.

    Returns:
        A method that raises an AttributeError.
    """

    def missing(self: Any, name: str) -> Any:
        del self
        hint = f"; write {names[name]}" if name in names else ""
        raise AttributeError(f"{kind} has no {name!r}{hint}.")

    return missing

"""Names of other libraries' results and models, in the error of a missing attribute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn


def missing_attribute(kind: str, names: dict[str, str]) -> Callable[[Any, str], NoReturn]:
    """A `__getattr__` that says what to write in place of a name of another library.

    Args:
        kind: What has no such attribute, with its article.
        names: The other names, and what to write.

    Returns:
        A method that raises an AttributeError.

    Example:
        >>> from fnopt.core import missing_attribute
        >>> class Result:
        ...     __getattr__ = missing_attribute("a Result", {"x": "params"})
        >>> Result().x
        Traceback (most recent call last):
        AttributeError: a Result has no 'x'; write params.
    """

    def missing(self: Any, name: str) -> NoReturn:
        del self
        hint = f"; write {names[name]}" if name in names else ""
        raise AttributeError(f"{kind} has no {name!r}{hint}.")

    return missing

"""What SciPy calls otherwise, in the error of a missing attribute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def explained(kind: str, names: dict[str, str]) -> Callable[[Any, str], Any]:
    """A `__getattr__` that tells what stands for one of SciPy's names.

    Args:
        kind: What has no such attribute, with its article.
        names: SciPy's names, and what they are here.

    Returns:
        A method that raises an AttributeError.
    """

    def missing(self: Any, name: str) -> Any:
        del self
        hint = f". What SciPy calls so is {names[name]} here" if name in names else ""
        raise AttributeError(f"{kind} has no {name!r}{hint}.")

    return missing

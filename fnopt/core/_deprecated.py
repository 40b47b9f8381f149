"""Old names of a package, which warn."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Mapping
from typing import Any


def deprecated_names(package: str, new_names: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package some of whose names are renamed.

    Args:
        package: The package, `'fnopt.core'`.
        new_names: From an old name to the new one in the same package, or to a dotted path.

    Returns:
        A function that warns and returns what the new name stands for.
    """

    def find(name: str) -> Any:
        if name not in new_names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, _, new = new_names[name].rpartition(".")
        module = module or package
        text = f"{package}.{name} is deprecated: write {module}.{new}."
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        return getattr(importlib.import_module(module), new)

    return find

"""Libraries that are only needed where something is shown, written or handed over."""

from __future__ import annotations

import importlib
from typing import Any


def optional(module: str, user: str, extra: str = "") -> Any:
    """Imports an optional library, or says what needs it and how to get it.

    Args:
        module: What is imported.
        user: The public name that needs it, for the message.
        extra: The extra of fnopt that it comes with.

    Returns:
        The module.

    Raises:
        ImportError: If it isn't installed.

    Example:
        >>> from fnopt.core import optional
        >>> optional("scipy.parse", "to_scipy")
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

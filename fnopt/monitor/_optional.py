"""Libraries that are only needed where something is shown or written."""

from __future__ import annotations

import importlib
from typing import Any


def optional(module: str, user: str) -> Any:
    """Imports a library that fnopt can do without, or says who needs it and how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.split(".")[0]
        raise ImportError(
            f"{user} needs {package}: install it, or all that fnopt.monitor can use, with "
            f"`pip install 'fnopt[monitor]'`."
        ) from error

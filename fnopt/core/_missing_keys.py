"""Keys that are there, where a function asks for one that isn't."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from fnopt.core._errors import listing
from fnopt.core._paths import leaves_with_names


@contextlib.contextmanager
def missing_keys(params: Any) -> Iterator[None]:
    """Adds to an error of a user's function which keys its params have.

    Args:
        params: What the function gets; looked at where it is a dict.
    """
    try:
        yield
    except KeyError as error:
        if isinstance(params, dict):
            keys = [path for path, _ in leaves_with_names(params)[0]]
            error.add_note(f"params have the keys {listing(keys)}.")
        raise
    except AttributeError as error:
        if isinstance(error.obj, dict) and error.name in error.obj:
            error.add_note(f"Of a dict write [{error.name!r}] in place of .{error.name}.")
        raise

"""Text of messages and displays: positions in a chain, lists of names, tables, shapes."""

from __future__ import annotations

import contextvars
import importlib
from collections.abc import Iterable, Sequence
from typing import Any

import jax
from jax.core import Tracer

# Tracing is plain Python, so an error message can name the transform that is running.
_places: contextvars.ContextVar[tuple[str, ...]] = contextvars.ContextVar("places", default=())


class error_scope:
    """Context that adds `name` to messages; yields whether it is the outermost context."""

    # A class is faster than a generator, and every member of every update enters a scope.
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
    """Path of the running transforms, `'chain[1] > scale_by_adam: '`; `''` outside of them."""
    text = ""
    for name in _places.get():
        text += name if name.startswith("[") or not text else f" > {name}"
    return f"{text}: " if text else ""


def names_text(names: list[str], limit: int = 8) -> str:
    """Format a list of names for a message, truncated to `limit` names."""
    text = ", ".join(repr(n) for n in names[:limit])
    omitted = len(names) - limit
    return f"[{text}{f', … and {omitted} more' if omitted > 0 else ''}]"


def count_text(n: Any, noun: str, plural: str = "") -> str:
    """Format a count and its noun: `'1 leaf'`, `'2 leaves'`; by default, the plural ends in s."""
    return f"{n} {noun if n == 1 else plural or noun + 's'}"


def import_optional(module: str, user: str, extra: str = "") -> Any:
    """Import an optional library; the error names the calling function and the extra.

    Args:
        module: The module to import.
        user: The public function that needs the module, for the message.
        extra: The extra of fnopt that installs the module.

    Returns:
        The module.

    Raises:
        ImportError: If the module isn't installed.

    Example:
        >>> from fnopt.errors import import_optional
        >>> import_optional("scipy.parse", "to_scipy")
        Traceback (most recent call last):
        ImportError: to_scipy needs scipy: install it with `pip install scipy`.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.split(".")[0]
        message = f"{user} needs {package}: install it with `pip install {package}`."
        if extra:
            message += f" `pip install 'fnopt[{extra}]'` also installs the related libraries."
        raise ImportError(message) from error


def show_report(self: Any, printer: Any, cycle: bool) -> None:
    """Show the report of a result in IPython (`_repr_pretty_`), as `print` does."""
    del cycle
    printer.text(str(self))


def table_lines(rows: Sequence[Sequence[str]]) -> list[str]:
    """Format the rows of a table as lines, with cells padded to the width of their column."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


class _Shape:
    """Representation of an array by its dtype and shape."""

    def __init__(self, array: Any) -> None:
        self.text = f"{array.dtype}[{','.join(map(str, array.shape))}]"

    def __repr__(self) -> str:
        return self.text


def _has_display(x: Any) -> bool:
    # `show_shapes` has given this method to the states of inner transforms.
    return hasattr(type(x), "_repr_pretty_")


def _number_or_shape(x: Any) -> Any:
    if _has_display(x):
        return x
    # Counts are shown as numbers, and all other arrays by their shape.
    is_scalar = getattr(x, "ndim", 1) == 0 and not isinstance(x, Tracer)
    return x.item() if is_scalar and x.dtype.kind in "iufb" else _Shape(x)


def _show_shapes(self: Any, printer: Any, cycle: bool) -> None:
    """IPython's `_repr_pretty_` of a state: scalars as numbers, arrays as dtype and shape."""
    name = type(self).__name__
    if cycle:
        printer.text(f"{name}(...)")
        return
    with printer.group(4, f"{name}(", ")"):
        for i, field in enumerate(self._fields):
            if i:
                printer.text(",")
                printer.breakable()
            printer.text(f"{field}=")
            value = getattr(self, field)
            printer.pretty(jax.tree.map(_number_or_shape, value, is_leaf=_has_display))


def show_shapes(states: Iterable[Any]) -> None:
    """Make IPython display states of these classes with shapes in place of arrays."""
    for state in states:
        state._repr_pretty_ = _show_shapes


def type_text(x: Any) -> str:
    """Text for the type of a leaf: `'float32[8,3]'`, or the name of its Python type."""
    if not hasattr(x, "dtype"):
        return type(x).__name__
    return f"{x.dtype}[{','.join(map(str, x.shape))}]"

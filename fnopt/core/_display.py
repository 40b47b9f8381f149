"""Display in notebooks: results as reports, states as shapes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax
from jax.core import Tracer


def show_report(self: Any, printer: Any, cycle: bool) -> None:
    """Report of a result for IPython's `_repr_pretty_`, as `print` shows it."""
    del cycle
    printer.text(str(self))


def table_lines(rows: Sequence[Sequence[str]]) -> list[str]:
    """The rows of a table as lines, with columns of equal width."""
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


def _shows_itself(x: Any) -> bool:
    return hasattr(type(x), "_repr_pretty_")  # an inner state


def _shape(x: Any) -> Any:
    if _shows_itself(x):
        return x
    # A count is read more often than it is looked past.
    small = getattr(x, "ndim", 1) == 0 and not isinstance(x, Tracer)
    return x.item() if small and x.dtype.kind in "iufb" else _Shape(x)


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
            printer.pretty(jax.tree.map(_shape, value, is_leaf=_shows_itself))


def show_shapes(states: Iterable[Any]) -> None:
    """Make notebooks show states of these classes by the shapes of their arrays."""
    for state in states:
        state._repr_pretty_ = _show_shapes

"""Selection of the matrices in a tree, and their axes."""

from __future__ import annotations

import contextlib
import contextvars
import operator
from collections.abc import Iterator
from typing import Any

import jax

from fnopt.core import Value, is_none, static
from fnopt.errors import leaf_text, leaves_with_names, names_text, where
from fnopt.optimizers._matrix_layout import MatrixLayout
from fnopt.optimizers._matrix_names import axes_by_name
from fnopt.sharding import unsharded_leaves
from fnopt.transforms import Labels, Selector, by_pattern

# Axes of all leaves of a partition, keyed by path and shape: the members don't see the biases next
# to their kernels.
_inferred: contextvars.ContextVar[dict[Any, Any] | None] = contextvars.ContextVar(
    "axes", default=None
)


def _axes(given: Any) -> tuple[int, ...]:
    """Convert one axis or several to a tuple."""
    try:
        return tuple(map(operator.index, given if isinstance(given, (tuple, list)) else (given,)))
    except TypeError:
        raise TypeError(
            f"MatrixDimensionNumbers: the axis is {given!r}, expected an int or a tuple of ints."
        ) from None


def _parts(given: Any) -> int | tuple[int, ...]:
    """The number of parts, or their sizes; all at least 1."""
    parts = _axes(given)
    if not parts or min(parts) < 1:
        raise ValueError(
            f"MatrixDimensionNumbers: split = {given!r}, expected a number of parts or their "
            "sizes, all at least 1."
        )
    return parts if isinstance(given, (tuple, list)) else parts[0]


class MatrixDimensionNumbers(Value):
    """Axes of a leaf that are the rows and the columns of a matrix.

    For a kernel in `x @ W`, the rows are the inputs (the contracted axes), and the columns are the
    outputs. All other axes are a batch, so each entry is a separate matrix (layers stacked for a
    scan, heads, experts).

    Args:
        reduction_axis: The axis of the rows, or several axes that are merged into one.
        output_axis: The axis of the columns, or several axes that are merged into one.
        split: The number of matrices into which the columns are split, or the widths of these
            matrices: 3 for a kernel with concatenated query, key and value, `(512, 64, 64)` for
            grouped queries.

    Raises:
        TypeError: If an axis isn't an integer.
        ValueError: In use, if axes don't exist or overlap, or parts don't add up; the message names
            the leaf.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> conv = fnopt.MatrixDimensionNumbers((0, 1, 2), 3)  # height, width, inputs; outputs
        >>> tx = fnopt.orthogonalize(weight_dimension_numbers=conv)
        >>> kernel = jnp.ones((3, 3, 2, 4))
        >>> tx.update(kernel, tx.init(kernel))[0].shape
        (3, 3, 2, 4)
    """

    reduction_axis: int | tuple[int, ...] = static(default=0, convert=_axes)
    output_axis: int | tuple[int, ...] = static(default=1, convert=_axes)
    split: int | tuple[int, ...] = static(default=1, convert=_parts)


OUTPUTS_TOO = "inferred, with output layers"
"""The rule for which output layers are matrices like any other kernel."""


def _is_numbers(x: Any) -> bool:
    """Whether a value is a `MatrixDimensionNumbers`, or a similar tuple of another library."""
    return hasattr(x, "reduction_axis") and hasattr(x, "output_axis")


def _as_numbers(x: Any) -> Any:
    if x is None or isinstance(x, bool):
        return bool(x)
    if _is_numbers(x):
        return MatrixDimensionNumbers(x.reduction_axis, x.output_axis, getattr(x, "split", 1))
    raise TypeError(
        f"{where()}weight_dimension_numbers: {x!r} is a {type(x).__name__}, expected "
        "fnopt.MatrixDimensionNumbers(rows, columns), True (a matrix if it has two axes) "
        "or False or None (not a matrix)."
    )


def as_rule(given: Any) -> Any:
    """Convert the user's dimension numbers to a hashable form.

    The argument may be None; dimension numbers for all leaves with two axes or more; a pattern,
    `by_pattern` or `by_path` with values True, False or dimension numbers; or a tree of these, with
    the structure of the parameters or a prefix of it.
    """
    if isinstance(given, str):
        return by_pattern(given)
    if given is None or isinstance(given, (Selector, bool)):
        return given
    if _is_numbers(given):
        return _as_numbers(given)
    if callable(given) and jax.tree.leaves(given) == [given]:
        raise TypeError(
            f"weight_dimension_numbers = {given!r} is a function: write fnopt.by_path(fn), where "
            "fn(path, leaf) gives the fnopt.MatrixDimensionNumbers of one leaf, True or False."
        )
    pairs, _ = leaves_with_names(given, is_leaf=lambda x: x is None or _is_numbers(x))
    return Labels(tuple(p for p, _ in pairs), tuple(_as_numbers(x) for _, x in pairs))  # pyright: ignore[reportArgumentType]


def check_rule(rule: Any, positions: list[str]) -> None:
    """Raise a ValueError if a rule by path doesn't match the given paths."""
    if isinstance(rule, Selector):
        rule.check(positions)


def numbers_of(rule: Any, leaves: list[tuple[str, Any]]) -> list[MatrixDimensionNumbers | None]:
    """The dimension numbers of every leaf; None for a leaf that isn't a matrix."""
    if isinstance(rule, Selector):
        chosen = rule.choose(leaves)
        lacking = [path for (path, _), x in zip(leaves, chosen, strict=True) if x is None]
        if lacking and isinstance(rule, Labels):
            raise ValueError(
                f"{where()}weight_dimension_numbers has no entry for the leaves "
                f"{names_text(lacking)}, expected one for every leaf: None for a leaf "
                "that isn't a matrix."
            )
    elif rule is None or rule == OUTPUTS_TOO:
        chosen = _infer(leaves, rule == OUTPUTS_TOO)
    elif isinstance(rule, MatrixDimensionNumbers):
        chosen = [rule if len(_shape(leaf)) > 1 else False for _, leaf in leaves]
    else:
        chosen = [rule is not False] * len(leaves)
    return [_resolve(x, leaf) for x, (_, leaf) in zip(chosen, leaves, strict=True)]


def _shape(leaf: Any) -> tuple[int, ...]:
    # numbers, and values that are rejected later, have no shape.
    return tuple(getattr(leaf, "shape", ()))


def _infer(leaves: list[tuple[str, Any]], has_outputs: bool) -> list[Any]:
    """Infer the dimension numbers of leaves from names and shapes."""
    keys = [(path, _shape(leaf)) for path, leaf in leaves]
    known = _inferred.get()
    if known is not None and not has_outputs and all(key in known for key in keys):
        return [known[key] for key in keys]
    found = axes_by_name(tuple(keys), has_outputs)
    return [None if axes is None else MatrixDimensionNumbers(*axes) for axes in found]


@contextlib.contextmanager
def inference_scope(tree: Any) -> Iterator[None]:
    """Context in which transforms of a part of a tree use axes inferred from all leaves."""
    leaves = as_whole(leaves_with_names(tree)[0])
    keys = [(path, _shape(leaf)) for path, leaf in leaves]
    token = _inferred.set(dict(zip(keys, _infer(leaves, False), strict=True)))
    try:
        yield
    finally:
        _inferred.reset(token)


def _resolve(chosen: Any, leaf: Any) -> MatrixDimensionNumbers | None:
    chosen = _as_numbers(chosen)
    if chosen is True:  # the default rule: leaves with two axes are matrices
        return MatrixDimensionNumbers() if len(_shape(leaf)) == 2 else None
    return chosen or None


def as_whole(leaves: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Return named leaves; under `sharded`, the shapes of the unsharded leaves."""
    known = unsharded_leaves()
    if known is None:
        return leaves
    for name, _ in leaves:
        if name not in known.shapes:
            raise ValueError(
                f"{where()}{leaf_text(name)} is not a leaf of the params, expected one: "
                "under sharded the shape of any other whole leaf is unknown. Use "
                "fnopt.distributed.state_sharding(tx, params, axis=...) instead of "
                "sharded."
            )
    return [(name, jax.ShapeDtypeStruct(known.shapes[name], x.dtype)) for name, x in leaves]


def layouts_of(rule: Any, tree: Any, *, required: bool = True) -> list[Any]:
    """The matrix layout of every leaf; an error, or None, for a leaf that isn't a matrix."""
    leaves = as_whole(leaves_with_names(tree)[0])
    check_rule(rule, [path for path, _ in leaves_with_names(tree, is_leaf=is_none)[0]])
    rows = zip(leaves, numbers_of(rule, leaves), strict=True)
    return [None if d is None and not required else _layout(path, x, d) for (path, x), d in rows]


def _layout(path: str, leaf: Any, numbers: MatrixDimensionNumbers | None) -> MatrixLayout:
    shape, name = tuple(leaf.shape), f"{where()}{leaf_text(path)} has shape {tuple(leaf.shape)}"
    if numbers is None:
        raise ValueError(
            f"{name}, which isn't a matrix. Give it fnopt.MatrixDimensionNumbers(rows, "
            "columns), or use another optimizer for it: the recipes (fnopt.muon, "
            "fnopt.soap, ...) use Adam for such leaves, and fnopt.partition uses any "
            "optimizer of your choice."
        )
    given = {"reduction_axis": numbers.reduction_axis, "output_axis": numbers.output_axis}
    axes: dict[str, tuple[int, ...]] = {}
    for what, chosen in given.items():
        chosen = _axes(chosen)
        if not chosen or any(not -len(shape) <= a < len(shape) for a in chosen):
            raise ValueError(
                f"{name}, but {what} = {chosen}, expected axes from 0 to "
                f"{len(shape) - 1}, because a matrix has rows and columns. Correct its "
                "fnopt.MatrixDimensionNumbers, or pass None for a leaf that isn't a "
                "matrix."
            )
        axes[what] = tuple(a % len(shape) for a in chosen)
    rows, columns = axes.values()
    if len({*rows, *columns}) < len(rows) + len(columns):
        raise ValueError(
            f"{name}: reduction_axis = {rows} and output_axis = {columns} overlap, "
            "expected every axis once. Correct its fnopt.MatrixDimensionNumbers."
        )
    layout = MatrixLayout.from_axes(shape, rows, columns, numbers.split)
    if layout is None:
        raise ValueError(
            f"{name}, so its columns can't be split by split = {numbers.split}: expected "
            "a divisor of their number, or sizes that add up to it."
        )
    return layout

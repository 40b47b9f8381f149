"""Rules that determine which leaves of a tree are matrices, and their axes."""

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

# Axes inferred from all leaves of a partition, keyed by path and shape. A member of the partition
# couldn't infer the axes, because the member's tree contains the kernels without their biases.
_inferred: contextvars.ContextVar[dict[Any, Any] | None] = contextvars.ContextVar(
    "axes", default=None
)


def _axes(axes: Any) -> tuple[int, ...]:
    """Convert one axis or several axes to a tuple."""
    try:
        return tuple(map(operator.index, axes if isinstance(axes, (tuple, list)) else (axes,)))
    except TypeError:
        raise TypeError(
            f"MatrixDimensionNumbers: the axis is {axes!r}, expected an int or a tuple of ints."
        ) from None


def _parts(split: Any) -> int | tuple[int, ...]:
    """Check the number of parts, or the sizes of parts."""
    parts = _axes(split)
    if not parts or min(parts) < 1:
        raise ValueError(
            f"MatrixDimensionNumbers: split = {split!r}, expected a number of parts or their "
            "sizes, all at least 1."
        )
    return parts if isinstance(split, (tuple, list)) else parts[0]


class MatrixDimensionNumbers(Value):
    """Row and column axes of a leaf that is a matrix or a batch of matrices.

    For a kernel `W` in `x @ W`, the rows are the inputs (the contracted axes), and the columns are
    the outputs. All other axes are batch axes, along which the matrices are separate (layers
    stacked for a scan, heads, experts).

    Args:
        reduction_axis: The axis of the rows, or a tuple of axes that are merged into the rows.
        output_axis: The axis of the columns, or a tuple of axes that are merged into the columns.
        split: The number of matrices into which the columns are split, or their widths. For
            example, 3 for a kernel with concatenated query, key and value, or `(512, 64, 64)` for
            grouped-query attention.

    Raises:
        TypeError: If an axis isn't an integer.
        ValueError: If a part is smaller than 1. In use, if axes don't exist or overlap, or if the
            widths don't add up to the number of columns.

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
"""Rule that infers the matrices, and treats output layers like other kernels."""


def _is_numbers(x: Any) -> bool:
    """Whether a value is a `MatrixDimensionNumbers`, or an equivalent tuple of another library."""
    return hasattr(x, "reduction_axis") and hasattr(x, "output_axis")


def _as_numbers(x: Any) -> Any:
    if x is None or isinstance(x, bool):
        return bool(x)
    if _is_numbers(x):
        return MatrixDimensionNumbers(x.reduction_axis, x.output_axis, getattr(x, "split", 1))
    raise TypeError(
        f"{where()}weight_dimension_numbers: {x!r} is a {type(x).__name__}, expected "
        "fnopt.MatrixDimensionNumbers(rows, columns), True (a matrix if the leaf has two "
        "axes), or False or None (not a matrix)."
    )


def as_rule(rule: Any) -> Any:
    """Convert the user's dimension numbers to a hashable form.

    Args:
        rule: None, or dimension numbers for all leaves with two axes or more; or a pattern,
            `by_pattern` or `by_path` with values True, False or dimension numbers; or a tree of
            such values, with the structure of the parameters or a prefix of this structure.
    """
    if isinstance(rule, str):
        return by_pattern(rule)
    if rule is None or isinstance(rule, (Selector, bool)):
        return rule
    if _is_numbers(rule):
        return _as_numbers(rule)
    if callable(rule) and jax.tree.leaves(rule) == [rule]:
        raise TypeError(
            f"weight_dimension_numbers = {rule!r} is a function, expected fnopt.by_path(fn), where "
            "fn(path, leaf) returns the fnopt.MatrixDimensionNumbers of one leaf, True or False."
        )
    pairs, _ = leaves_with_names(rule, is_leaf=lambda x: x is None or _is_numbers(x))
    return Labels(tuple(p for p, _ in pairs), tuple(_as_numbers(x) for _, x in pairs))  # pyright: ignore[reportArgumentType]


def check_rule(rule: Any, positions: list[str]) -> None:
    """Raise a ValueError if a rule's paths don't match the paths of the leaves."""
    if isinstance(rule, Selector):
        rule.check(positions)


def numbers_of(rule: Any, leaves: list[tuple[str, Any]]) -> list[MatrixDimensionNumbers | None]:
    """Determine the dimension numbers of every leaf; None for a leaf that isn't a matrix."""
    if isinstance(rule, Selector):
        values = rule.choose(leaves)
        missing = [path for (path, _), x in zip(leaves, values, strict=True) if x is None]
        if missing and isinstance(rule, Labels):
            raise ValueError(
                f"{where()}weight_dimension_numbers has no entry for the leaves "
                f"{names_text(missing)}, expected one for every leaf: None for a leaf "
                "that isn't a matrix."
            )
    elif rule is None or rule == OUTPUTS_TOO:
        values = _infer(leaves, rule == OUTPUTS_TOO)
    elif isinstance(rule, MatrixDimensionNumbers):
        values = [rule if len(_shape(leaf)) > 1 else False for _, leaf in leaves]
    else:
        values = [rule is not False] * len(leaves)
    return [_resolve(x, leaf) for x, (_, leaf) in zip(values, leaves, strict=True)]


def _shape(leaf: Any) -> tuple[int, ...]:
    # Python numbers, and invalid leaves that are rejected later, have no shape.
    return tuple(getattr(leaf, "shape", ()))


def _infer(leaves: list[tuple[str, Any]], has_outputs: bool) -> list[Any]:
    """Infer the dimension numbers of leaves from names and shapes."""
    keys = [(path, _shape(leaf)) for path, leaf in leaves]
    inferred = _inferred.get()
    if inferred is not None and not has_outputs and all(key in inferred for key in keys):
        return [inferred[key] for key in keys]
    all_axes = axes_by_name(tuple(keys), has_outputs)
    return [None if axes is None else MatrixDimensionNumbers(*axes) for axes in all_axes]


@contextlib.contextmanager
def inference_scope(tree: Any) -> Iterator[None]:
    """Context in which transforms of a subtree use the axes inferred from all leaves."""
    leaves = as_unsharded(leaves_with_names(tree)[0])
    keys = [(path, _shape(leaf)) for path, leaf in leaves]
    token = _inferred.set(dict(zip(keys, _infer(leaves, False), strict=True)))
    try:
        yield
    finally:
        _inferred.reset(token)


def _resolve(value: Any, leaf: Any) -> MatrixDimensionNumbers | None:
    numbers = _as_numbers(value)
    if numbers is True:  # a leaf with two axes is a matrix
        return MatrixDimensionNumbers() if len(_shape(leaf)) == 2 else None
    return numbers or None


def as_unsharded(leaves: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Return named leaves; inside `sharded`, the shapes of the unsharded leaves instead."""
    unsharded = unsharded_leaves()
    if unsharded is None:
        return leaves
    for name, _ in leaves:
        if name not in unsharded.shapes:
            raise ValueError(
                f"{where()}{leaf_text(name)} is not a leaf of the params, expected a leaf of the "
                "params, because inside sharded the complete shapes of other leaves are unknown. "
                "Use fnopt.distributed.state_sharding(tx, params, axis=...) instead of sharded."
            )
    return [(name, jax.ShapeDtypeStruct(unsharded.shapes[name], x.dtype)) for name, x in leaves]


def layouts_of(rule: Any, tree: Any, *, required: bool = True) -> list[Any]:
    """Return the matrix layout of every leaf.

    Args:
        rule: The rule, from `as_rule`.
        tree: The tree of leaves.
        required: Whether to raise an error for a leaf that isn't a matrix; otherwise its layout is
            None.
    """
    leaves = as_unsharded(leaves_with_names(tree)[0])
    check_rule(rule, [path for path, _ in leaves_with_names(tree, is_leaf=is_none)[0]])
    rows = zip(leaves, numbers_of(rule, leaves), strict=True)
    return [None if d is None and not required else _layout(path, x, d) for (path, x), d in rows]


def _layout(path: str, leaf: Any, numbers: MatrixDimensionNumbers | None) -> MatrixLayout:
    shape, subject = tuple(leaf.shape), f"{where()}{leaf_text(path)} has shape {tuple(leaf.shape)}"
    if numbers is None:
        raise ValueError(
            f"{subject}, which isn't a matrix, expected a matrix. Pass the leaf's "
            "fnopt.MatrixDimensionNumbers(rows, columns), or use another optimizer for the leaf: "
            "fnopt.muon, fnopt.soap and similar recipes use Adam, and fnopt.partition uses the "
            "optimizer of your choice."
        )
    fields = {"reduction_axis": numbers.reduction_axis, "output_axis": numbers.output_axis}
    axes: dict[str, tuple[int, ...]] = {}
    for field, value in fields.items():
        field_axes = _axes(value)
        if not field_axes or any(not -len(shape) <= a < len(shape) for a in field_axes):
            raise ValueError(
                f"{subject}, but {field} = {field_axes}, expected axes from 0 to "
                f"{len(shape) - 1}. Correct its fnopt.MatrixDimensionNumbers, or pass None for a "
                "leaf that isn't a matrix."
            )
        axes[field] = tuple(a % len(shape) for a in field_axes)
    rows, columns = axes.values()
    if len({*rows, *columns}) < len(rows) + len(columns):
        raise ValueError(
            f"{subject}: reduction_axis = {rows} and output_axis = {columns} overlap, "
            "expected every axis once. Correct its fnopt.MatrixDimensionNumbers."
        )
    layout = MatrixLayout.from_axes(shape, rows, columns, numbers.split)
    if layout is None:
        raise ValueError(
            f"{subject}, but split = {numbers.split}, expected a divisor of the number of columns, "
            "or sizes that add up to this number."
        )
    return layout

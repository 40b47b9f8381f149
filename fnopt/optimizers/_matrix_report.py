"""Table of the treatment of every parameter by a matrix optimizer."""

from __future__ import annotations

from typing import Any, NamedTuple

from fnopt.core import Transformation, leaves_with_names, show_report, table_lines
from fnopt.optimizers._matrix_rule import as_whole, layouts_of
from fnopt.optimizers._partition_matrices import matrix_labels
from fnopt.transforms import partition


class MatrixRow(NamedTuple):
    """Treatment of one parameter.

    Attributes:
        name: Its path.
        shape: Its shape.
        label: The label of its optimizer in the partition.
        matrices: Number, rows and columns of its matrices; empty for other leaves.
    """

    name: str
    shape: tuple[int, ...]
    label: str
    matrices: tuple[tuple[int, int, int], ...]


class MatrixReport(NamedTuple):
    """Treatment of every parameter by a matrix optimizer; `print` shows a table."""

    rows: tuple[MatrixRow, ...]

    _repr_pretty_ = show_report

    def __str__(self) -> str:
        head = ("param", "shape", "optimizer", "matrices")
        table = [
            (
                row.name,
                str(row.shape),
                row.label,
                ", ".join(f"{k} x [{m}, {n}]" for k, m, n in row.matrices),
            )
            for row in self.rows
        ]
        return "\n".join(table_lines([head, *table]))


def matrix_report(tx: Any, params: Any) -> MatrixReport:
    """Report which parameters an optimizer treats as matrices, and of which sizes, before a step.

    Args:
        tx: An optimizer with a `partition_matrices` in it: `muon`, `soap`, chains and wrappers of
            them.
        params: The params, or their shapes.

    Returns:
        A `MatrixReport`.

    Raises:
        ValueError: If `tx` has no such partition, or axes don't fit a leaf.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> params = {"embedding": jnp.ones((9, 4)), "qkv": jnp.ones((4, 12)), "b": jnp.ones(4)}
        >>> axes = {"embedding": None, "qkv": fnopt.MatrixDimensionNumbers(split=3), "b": None}
        >>> print(fnopt.matrix_report(fnopt.muon(0.1, weight_dimension_numbers=axes), params))
        param      shape    optimizer  matrices
        b          (4,)     adam
        embedding  (9, 4)   adam
        qkv        (4, 12)  muon       3 x [4, 4]
    """
    found = _partition(tx)
    if found is None:
        raise ValueError(
            f"matrix_report: {tx!r} has no partition_matrices, expected an optimizer such as "
            "fnopt.muon(0.02), or a chain or wrapper of one."
        )
    labels = found.labels
    assert isinstance(labels, matrix_labels)
    leaves = as_whole(leaves_with_names(params)[0])
    rows = (
        MatrixRow(
            name,
            tuple(x.shape),
            labels.other if one is None else labels.matrix,
            one.shapes if one else (),
        )
        for (name, x), one in zip(
            leaves, layouts_of(labels.rule, params, required=False), strict=True
        )
    )
    return MatrixReport(tuple(rows))


def _partition(tx: Transformation) -> partition | None:
    """The first partition of matrices in an optimizer."""
    if isinstance(tx, partition) and isinstance(tx.labels, matrix_labels):
        return tx
    inner = (_partition(member.tx) for member in tx.members())
    return next((found for found in inner if found is not None), None)

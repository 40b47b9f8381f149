"""Report on the treatment of every parameter by a matrix optimizer."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax

from fnopt.core import Transformation
from fnopt.errors import check_count, leaves_with_names, show_report, table_lines
from fnopt.optimizers._matrix_rule import as_whole, layouts_of
from fnopt.optimizers._matrixwise import Matrixwise
from fnopt.optimizers._partition_matrices import matrix_labels
from fnopt.transforms import partition


class MatrixRow(NamedTuple):
    """Treatment of one parameter.

    Attributes:
        name: Its path.
        shape: Its shape.
        label: The label of its optimizer in the partition.
        matrices: Number, rows and columns of its matrices; empty for leaves that aren't matrices.
    """

    name: str
    shape: tuple[int, ...]
    label: str
    matrices: tuple[tuple[int, int, int], ...]


class MatrixReport(NamedTuple):
    """Treatment of every parameter by a matrix optimizer; `print` shows a table.

    Attributes:
        rows: One `MatrixRow` for every parameter.
        devices: The number of devices that share the matrices.
        sent_bytes: The number of bytes that a device sends in the all-to-alls of a step.
        flops: Floating-point operations per device in a step of the matrix transforms, without
            factorizations (eigenvalues, QR).
    """

    rows: tuple[MatrixRow, ...]
    devices: int = 1
    sent_bytes: float = 0.0
    flops: float = 0.0

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
        lines = table_lines([head, *table])
        work = f"{self.flops:.3g} FLOPs and {self.sent_bytes:.3g} bytes sent in a step"
        return "\n".join([*lines, f"each of {self.devices} device(s): {work}"])


def matrix_report(tx: Any, params: Any, devices: int = 1) -> MatrixReport:
    """Report which parameters an optimizer treats as matrices, and the sizes of these matrices.

    Args:
        tx: An optimizer that contains a `partition_matrices`: `muon`, `soap`, or chains and
            wrappers of these.
        params: The params, or their shapes.
        devices: The number of devices of `fnopt.distributed.sharded`, for the work of each device
            and the bytes that it sends. `fnopt.costs.Hardware` and `Network` convert both to
            seconds.

    Returns:
        A `MatrixReport`.

    Raises:
        ValueError: If `tx` contains no `partition_matrices`, axes don't match a leaf, or `devices`
            is below 1.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> params = {"embedding": jnp.ones((9, 4)), "qkv": jnp.ones((4, 12)), "b": jnp.ones(4)}
        >>> print(fnopt.matrix_report(fnopt.muon(0.1), params, devices=3))
        param      shape    optimizer  matrices
        b          (4,)     adam
        embedding  (9, 4)   adam
        qkv        (4, 12)  muon       3 x [4, 4]
        each of 3 device(s): 2.47e+03 FLOPs and 85.3 bytes sent in a step
    """
    check_count(devices, "devices", "matrix_report")
    found = _partition(tx)
    if found is None:
        raise ValueError(
            f"matrix_report: {tx!r} has no partition_matrices, expected an optimizer such as "
            "fnopt.muon(0.02), or a chain or wrapper of one."
        )
    labels = found.labels
    assert isinstance(labels, matrix_labels)
    named, treedef = leaves_with_names(params)
    leaves = as_whole(named)
    layouts = layouts_of(labels.rule, params, required=False)
    rows = (
        MatrixRow(
            name,
            tuple(x.shape),
            labels.other if one is None else labels.matrix,
            one.shapes if one else (),
        )
        for (name, x), one in zip(leaves, layouts, strict=True)
    )
    pairs = zip(leaves, layouts, strict=True)
    matrices = treedef.unflatten([x if one else None for (_, x), one in pairs])
    with labels.scope(params):
        parts = _matrixwise_parts(found.transforms[labels.matrix])
        plans = [_plan(part, matrices, devices) for part in parts]
    return MatrixReport(tuple(rows), devices, *map(sum, zip((0.0, 0.0), *plans, strict=True)))


def _matrixwise_parts(tx: Transformation) -> list[Matrixwise]:
    """The transforms of matrices in an optimizer."""
    inner = [x for member in tx.members() for x in _matrixwise_parts(member.tx)]
    return [tx, *inner] if isinstance(tx, Matrixwise) else inner


def _plan(tx: Matrixwise, matrices: Any, devices: int) -> tuple[float, float]:
    """The bytes that a device sends in a step of one transform, and its FLOPs."""
    counts: dict[tuple[int, int], int] = {}
    for layout in tx.layouts(matrices):
        for k, *shape in layout.wide_shapes if tx.wide else layout.shapes:
            counts[shape[0], shape[1]] = counts.get((shape[0], shape[1]), 0) + k
    sent = flops = 0.0
    for shape, count in counts.items():
        part, flops_of_one = tx.one_matrix(shape)
        come, params = (sum(map(_bytes, jax.tree.leaves(x))) for x in (part, part.get("params")))
        mine = math.ceil(count / devices)
        # Every owner gets its matrices and slots in pieces, and sends back all but the params.
        sent += mine * (2 * come - params) * (devices - 1) / devices
        flops += mine * flops_of_one
    return sent, flops


def _bytes(x: Any) -> int:
    return math.prod(x.shape) * x.dtype.itemsize


def _partition(tx: Transformation) -> partition | None:
    """The first partition of matrices in an optimizer."""
    if isinstance(tx, partition) and isinstance(tx.labels, matrix_labels):
        return tx
    inner = (_partition(member.tx) for member in tx.members())
    return next((found for found in inner if found is not None), None)

"""Report on which parameters an optimizer treats as matrices."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax

from fnopt.core import Transformation
from fnopt.errors import check_count, count_text, leaves_with_names, show_report, table_lines
from fnopt.optimizers._matrix_rule import as_unsharded, layouts_of
from fnopt.optimizers._matrixwise import Matrixwise
from fnopt.optimizers._partition_matrices import matrix_labels
from fnopt.transforms import partition


class MatrixRow(NamedTuple):
    """Row of a `MatrixReport`, for one parameter.

    Attributes:
        name: The path of the parameter.
        shape: The shape of the parameter.
        label: The label of the parameter's optimizer in the partition.
        matrices: Number, rows and columns of the matrices in the parameter; empty if the parameter
            isn't a matrix.
    """

    name: str
    shape: tuple[int, ...]
    label: str
    matrices: tuple[tuple[int, int, int], ...]


class MatrixReport(NamedTuple):
    """Result of `matrix_report`; `print` shows a table.

    Attributes:
        rows: One `MatrixRow` for each parameter.
        devices: The number of devices that share the matrices.
        sent_bytes: The number of bytes that a device sends in the all-to-alls of a step.
        flops: The number of floating-point operations per device in a step of the matrix
            transforms, without factorizations (eigenvalues, QR).
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
        costs = f"{self.flops:.3g} FLOPs and {self.sent_bytes:.3g} bytes sent in a step"
        return "\n".join([*lines, f"each of {count_text(self.devices, 'device')}: {costs}"])


def matrix_report(tx: Any, params: Any, devices: int = 1) -> MatrixReport:
    """Report which parameters an optimizer treats as matrices, and the sizes of these matrices.

    Args:
        tx: An optimizer with a `partition_matrices`, such as `muon`, `soap`, or a chain or wrapper
            of them.
        params: The params, or their shapes.
        devices: The number of devices of `fnopt.distributed.sharded`, which determines the FLOPs
            and the sent bytes per device. `fnopt.costs.Hardware` and `Network` convert these
            numbers to seconds.

    Returns:
        A `MatrixReport`.

    Raises:
        ValueError: If `tx` contains no `partition_matrices`, if axes don't match a leaf, or if
            `devices` is below 1.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> params = {"embedding": jnp.ones((9, 4)), "qkv": jnp.ones((4, 12)), "b": jnp.ones(4)}
        >>> print(fnopt.matrix_report(fnopt.muon(0.1), params, devices=3))
        param      shape    optimizer  matrices
        b          (4,)     adam
        embedding  (9, 4)   adam
        qkv        (4, 12)  muon       3 x [4, 4]
        each of 3 devices: 2.47e+03 FLOPs and 85.3 bytes sent in a step
    """
    check_count(devices, "devices", "matrix_report")
    matrix_partition = _partition(tx)
    if matrix_partition is None:
        raise ValueError(
            f"matrix_report: {tx!r} has no partition_matrices, expected an optimizer such as "
            "fnopt.muon(0.02), or a chain or wrapper of such an optimizer."
        )
    labels = matrix_partition.labels
    assert isinstance(labels, matrix_labels)
    named_leaves, treedef = leaves_with_names(params)
    leaves = as_unsharded(named_leaves)
    layouts = layouts_of(labels.rule, params, required=False)
    rows = (
        MatrixRow(
            name,
            tuple(x.shape),
            labels.other if layout is None else labels.matrix,
            layout.shapes if layout else (),
        )
        for (name, x), layout in zip(leaves, layouts, strict=True)
    )
    pairs = zip(leaves, layouts, strict=True)
    matrices = treedef.unflatten([x if layout else None for (_, x), layout in pairs])
    with labels.scope(params):
        transforms = _matrix_transforms(matrix_partition.transforms[labels.matrix])
        costs = [_costs(transform, matrices, devices) for transform in transforms]
    return MatrixReport(tuple(rows), devices, *map(sum, zip((0.0, 0.0), *costs, strict=True)))


def _matrix_transforms(tx: Transformation) -> list[Matrixwise]:
    """List the transforms of matrices in an optimizer."""
    inner = [x for member in tx.members() for x in _matrix_transforms(member.tx)]
    return [tx, *inner] if isinstance(tx, Matrixwise) else inner


def _costs(tx: Matrixwise, matrices: Any, devices: int) -> tuple[float, float]:
    """Count the bytes that a device sends in a step of one transform, and the device's FLOPs."""
    counts: dict[tuple[int, int], int] = {}
    for layout in tx.layouts(matrices):
        for k, *shape in layout.wide_shapes if tx.wide else layout.shapes:
            counts[shape[0], shape[1]] = counts.get((shape[0], shape[1]), 0) + k
    sent_bytes = flops = 0.0
    for shape, count in counts.items():
        part, matrix_flops = tx.one_matrix(shape)
        size, params = (sum(map(_bytes, jax.tree.leaves(x))) for x in (part, part.get("params")))
        owned = math.ceil(count / devices)
        # Owners receive pieces of gradients, slots and params, and send back all but the params. A
        # device needn't send the pieces of the matrices that it owns.
        sent_bytes += owned * (2 * size - params) * (devices - 1) / devices
        flops += owned * matrix_flops
    return sent_bytes, flops


def _bytes(x: Any) -> int:
    return math.prod(x.shape) * x.dtype.itemsize


def _partition(tx: Transformation) -> partition | None:
    """Return the first `partition_matrices` in an optimizer; None if there is none."""
    if isinstance(tx, partition) and isinstance(tx.labels, matrix_labels):
        return tx
    partitions = (_partition(member.tx) for member in tx.members())
    return next((x for x in partitions if x is not None), None)

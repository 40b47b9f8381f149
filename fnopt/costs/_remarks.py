"""Tables of costs as text, and remarks on upper bounds and omissions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from fnopt.costs._roofline import Hardware, Work
from fnopt.errors import count_text

_HEADER = ("", "matmul FLOP", "other FLOP", "transcend.", "bytes", "FLOP/byte", "share")

Row = tuple[str, Sequence[Work]]
"""A name, and the work of phases that run one after the other."""


def work_table(rows: Sequence[Row], hardware: Hardware | None = None) -> list[str]:
    """Format rows as lines with aligned columns; the last row is the total, below a rule."""
    timed = ("time at least", "limit") if hardware else ()
    total = _sum(rows[-1][1])
    cells = [(*_HEADER, *timed), *(_row(name, works, total, hardware) for name, works in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [align_row(row, widths) for row in cells]
    rule = "-" * (sum(widths) + 2 * (len(widths) - 1))
    return [lines[0], rule, *lines[1:-1], *([rule] if len(rows) > 1 else []), lines[-1]]


def align_row(row: tuple[str, ...], widths: list[int]) -> str:
    """Format a line with the first cell left-aligned and the other cells right-aligned."""
    figures = [cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True)]
    return "  ".join([row[0].ljust(widths[0]), *figures]).rstrip()


def si(x: float) -> str:
    """Format a number with a decimal prefix: `'1.23 G'`."""
    return _scaled(x, 1000.0, ("", "k", "M", "G", "T", "P", "E"))


def binary(x: float) -> str:
    """Format a size in bytes with a binary prefix: `'1.23 MiB'`."""
    return f"{_scaled(x, 1024.0, ('', 'Ki', 'Mi', 'Gi', 'Ti', 'Pi'))}B"


def seconds(t: float) -> str:
    """Format a time in seconds with a unit: `'1.23 ms'`."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if t >= size:
            return f"{t / size:.3g} {unit}"
    return f"{t / 1e-9:.3g} ns"


def _row(
    name: str, works: Sequence[Work], total: Work, hardware: Hardware | None
) -> tuple[str, ...]:
    work = _sum(works)
    share = f"{work.flops / total.flops:.1%}" if total.flops else "-"
    counts = (work.matmul_flops, work.elementwise_flops, work.transcendentals)
    row = (name, *map(si, counts), binary(work.bytes), f"{work.intensity:.3g}", share)
    if hardware is None:
        return row
    return (*row, seconds(sum(map(hardware.seconds, works))), hardware.limit(work))


def _sum(works: Sequence[Work]) -> Work:
    return sum(works, Work())


def _scaled(x: float, base: float, prefixes: Sequence[str]) -> str:
    for prefix in prefixes[:-1]:
        if abs(x) < base:
            # Small counts are integers.
            return f"{x:.0f} {prefix}" if not prefix else f"{x:.4g} {prefix}"
        x /= base
    return f"{x:.4g} {prefixes[-1]}"


Bound = Literal["at most", "incomplete"]
_SHOWN = 8  # maximum number of remarks per kind, so that a table with remarks fits a screen


class Unknown(NamedTuple):
    """An operation that isn't counted, or only partly.

    Attributes:
        name: The primitive, or the name of the loop.
        part: The part of the model that contains the operation.
        reason: The reason why the operation isn't counted, and a remedy.
        count: Number of runs of the operation.
    """

    name: str
    part: str
    reason: str
    count: int


class Loop(NamedTuple):
    """A loop of a program, with its trip count.

    Attributes:
        name: Part and kind of the loop, such as `'decoder/while'`, with a number if a part has
            several loops of a kind.
        trips: The trip count; `None` if unknown. The body is then counted once.
        at_most: Whether `trips` is an upper bound, as with `(error > tol) & (i < 50)`.
    """

    name: str
    trips: int | None
    at_most: bool = False

    @property
    def is_while(self) -> bool:
        """Whether the loop is a while loop, not a scan."""
        return self.name.split("/")[-1].startswith("while")


class Compiled(NamedTuple):
    """XLA's cost and memory analysis of the program, on the default backend.

    Attributes:
        flops: FLOPs, with the body of every loop counted ONCE.
        transcendentals: Evaluations of tanh, exp, log and similar functions.
        bytes_accessed: Estimate of the memory traffic.
        argument_bytes: Size of the arguments.
        output_bytes: Size of the results.
        temp_bytes: Size of the temporary buffers.
        peak_bytes: Total size of arguments, results and temporary buffers; donated buffers are
            counted once.
        host_bytes: Peak memory on the host, for `offloaded` state. `peak_bytes` of an accelerator
            doesn't include this memory. On a CPU, `host_bytes` is 0 and `peak_bytes` includes
            everything.
    """

    flops: float
    transcendentals: float
    bytes_accessed: float
    argument_bytes: int
    output_bytes: int
    temp_bytes: int
    peak_bytes: int
    host_bytes: int = 0


def labeled(name: str, bounds: Iterable[Bound]) -> str:
    """Add to the label of a row whether its figures are upper bounds or incomplete."""
    kinds = set(bounds)
    worst = "incomplete" if "incomplete" in kinds else "at most"
    return f"{name} ({worst})" if kinds else name


def notes(unknown: Sequence[Unknown], loops: Sequence[Loop], choices: Sequence[str]) -> list[str]:
    """Remarks on omitted operations, on loops counted with their limit, and on conds."""
    omissions = [f"incomplete: {u.name} x {u.count}{_in_part(u.part)}: {u.reason}" for u in unknown]
    bounds = [
        f"at most: {loop.name} is counted with its limit of "
        f"{count_text(loop.trips, 'iteration')}; pass trip_counts={{{loop.name!r}: n}} to count n "
        "iterations"
        for loop in loops
        if loop.at_most
    ]
    branches = [
        f"at most: the costlier branch of a cond{_in_part(part)} is counted" for part in choices
    ]
    return [
        *_shortened(omissions, "incomplete", "unknown"),
        *_shortened(bounds, "at most", "loops"),
        *_shortened(branches, "at most", "choices"),
    ]


def compiler_notes(compiled: Compiled | None, flops: int, loops: Sequence[Loop]) -> list[str]:
    """Remarks with XLA's cost and memory analysis, if the program was compiled."""
    if compiled is None:
        return []
    share = f" ({compiled.flops / flops:.1%} of the total above)" if flops else ""
    once = "; the compiler counts the body of a loop once" if loops else ""
    return [
        f"compiler: {si(compiled.flops)}FLOP{share}{once}",
        f"peak memory: {binary(compiled.peak_bytes)} = arguments "
        f"{binary(compiled.argument_bytes)} + results {binary(compiled.output_bytes)} + temporary "
        f"buffers {binary(compiled.temp_bytes)} - donated buffers",
    ]


def _shortened(lines: Sequence[str], what: str, where: str) -> list[str]:
    omitted = len(lines) - _SHOWN
    return [*lines[:_SHOWN], *([f"{what}: {omitted} more, see .{where}"] if omitted > 0 else [])]


def _in_part(part: str) -> str:
    return f" in {part}" if part else ""

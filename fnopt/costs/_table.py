"""Costs as text."""

from __future__ import annotations

from collections.abc import Sequence

from fnopt.costs._roofline import Hardware, Work

_HEADER = ("", "matmul FLOP", "other FLOP", "transcend.", "bytes", "FLOP/byte", "share")

# A name, and the works that are done one after the other.
Row = tuple[str, Sequence[Work]]


def work_table(rows: Sequence[Row], hardware: Hardware | None = None) -> list[str]:
    """Lines with aligned columns; the last row stands below a rule and is the total."""
    timed = ("time at least", "limit") if hardware else ()
    total = _sum(rows[-1][1])
    cells = [(*_HEADER, *timed), *(_row(name, works, total, hardware) for name, works in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [aligned(row, widths) for row in cells]
    rule = "-" * (sum(widths) + 2 * (len(widths) - 1))
    return [lines[0], rule, *lines[1:-1], *([rule] if len(rows) > 1 else []), lines[-1]]


def aligned(row: tuple[str, ...], widths: list[int]) -> str:
    """A line: the first cell to the left, the others to the right."""
    figures = [cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True)]
    return "  ".join([row[0].ljust(widths[0]), *figures]).rstrip()


def si(x: float) -> str:
    """A number with a decimal prefix: `'1.23 G'`."""
    return _scaled(x, 1000.0, ("", "k", "M", "G", "T", "P", "E"))


def binary(x: float) -> str:
    """A size with a binary prefix: `'1.23 MiB'`."""
    return f"{_scaled(x, 1024.0, ('', 'Ki', 'Mi', 'Gi', 'Ti', 'Pi'))}B"


def seconds(t: float) -> str:
    """A time: `'1.23 ms'`."""
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
            # Small counts are whole numbers, and stay so.
            return f"{x:.0f} {prefix}" if not prefix else f"{x:.4g} {prefix}"
        x /= base
    return f"{x:.4g} {prefixes[-1]}"

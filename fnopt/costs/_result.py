"""The cost of a program, as numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

from fnopt.core import show_report
from fnopt.costs._roofline import Hardware
from fnopt.costs._table import Row, binary, si, work_table
from fnopt.costs._work import Work


class Unknown(NamedTuple):
    """Something that is in the program and not, or not wholly, in the figures.

    Attributes:
        name: The primitive, or the name of the loop.
        part: The part of the model that it is in.
        reason: Why it isn't counted, and what to do.
        count: How often the program runs it.
    """

    name: str
    part: str
    reason: str
    count: int


class Loop(NamedTuple):
    """A loop of the program.

    Attributes:
        name: Its part and kind, numbered where a part has several: `'decoder/while'`.
        trips: How often its body runs; `None` if that isn't known.
    """

    name: str
    trips: int | None

    @property
    def is_while(self) -> bool:
        """Whether it is a while loop, and not a scan."""
        return self.name.split("/")[-1].startswith("while")


class Compiled(NamedTuple):
    """The compiler's own figures for the same program (for this machine's backend).

    Attributes:
        flops: Its count; it counts the body of every loop ONCE.
        transcendentals: Its count of tanh, exp, log and so on.
        bytes_accessed: Its estimate of the memory traffic.
        argument_bytes: Size of the arguments.
        output_bytes: Size of the results.
        temp_bytes: Size of the working memory.
        peak_bytes: Arguments, results and working memory together, donated buffers counted once.
    """

    flops: float
    transcendentals: float
    bytes_accessed: float
    argument_bytes: int
    output_bytes: int
    temp_bytes: int
    peak_bytes: int


@dataclasses.dataclass(frozen=True, repr=False)
class Cost:
    """The cost of one run of a program; `print(cost)` shows a table.

    Attributes:
        parts: Work per part: the path of `jax.named_scope`s and of the user's jitted functions,
            `''` for what is in none. The parts add up to `total`.
        unknown: What is not in the figures; empty when everything was counted.
        loops: The loops and how often each runs.
        compiled: The compiler's figures, if they were asked for.

    Example:
        >>> from fnopt.costs import cost
        >>> c = cost(lambda x, w: jnp.tanh(x @ w))(jnp.ones((8, 16)), jnp.ones((16, 4)))
        >>> c.matmul_flops, c.transcendentals, c.bytes
        (1024, 32, 896)
    """

    parts: dict[str, Work]
    unknown: tuple[Unknown, ...] = ()
    loops: tuple[Loop, ...] = ()
    compiled: Compiled | None = None

    @property
    def total(self) -> Work:
        """The work of all parts together."""
        return sum(self.parts.values(), Work())

    @property
    def flops(self) -> int:
        """Floating-point operations: those of matrix products and all others."""
        return self.total.flops

    @property
    def matmul_flops(self) -> int:
        """The FLOPs of matrix products and convolutions; a multiply-add counts as two."""
        return self.total.matmul_flops

    @property
    def elementwise_flops(self) -> int:
        """The FLOPs of all other operations: elementwise arithmetic, reductions, factorisations."""
        return self.total.elementwise_flops

    @property
    def transcendentals(self) -> int:
        """Evaluations of exp, log, tanh, sqrt, ... (not in `flops`, as with the compiler)."""
        return self.total.transcendentals

    @property
    def bytes(self) -> int:
        """Memory traffic if everything elementwise is fused away."""
        return self.total.bytes

    @property
    def intensity(self) -> float:
        """Arithmetic intensity: FLOPs per byte."""
        return self.total.intensity

    @property
    def exact(self) -> bool:
        """Whether everything in the program was counted."""
        return not self.unknown

    def part(self, path: str) -> Work:
        """The work of one part, with all that is inside it.

        Args:
            path: Such as `'encoder'` or `'encoder/attention'`.

        Raises:
            KeyError: There is no such part; the message lists those there are.
        """
        inside = [w for name, w in self.parts.items() if f"{name}/".startswith(f"{path}/")]
        if not inside:
            raise KeyError(f"no part is called {path!r}; there are {sorted(self.parts)}")
        return sum(inside, Work())

    def grouped(self, depth: int) -> dict[str, Work]:
        """The work per part, parts deeper than `depth` counted to the one that they are in.

        A root that all named parts share (the model's own name, in Flax) is no level.
        """
        groups: dict[str, Work] = {}
        depth += _shared([name.split("/") for name in self.parts if name])
        for name, work in self.parts.items():
            group = "/".join(name.split("/")[:depth])
            groups[group] = groups.get(group, Work()) + work
        return groups

    def seconds(self, hardware: Hardware) -> float:
        """The roofline time: no machine with these rates can be faster."""
        return hardware.seconds(self.total)

    def table(self, depth: int = 2, hardware: Hardware | None = None) -> str:
        """The figures as text, a line for every part.

        Args:
            depth: How many levels of parts to show.
            hardware: Rates of a machine; adds the roofline time and what limits it.
        """
        return _cost_table(self, depth, hardware)

    _repr_pretty_ = show_report

    def __str__(self) -> str:
        return self.table()

    def __repr__(self) -> str:
        unknown = "" if self.exact else f", unknown={len(self.unknown)}"
        return f"Cost(flops={self.flops}, bytes={self.bytes}, parts={len(self.parts)}{unknown})"

    def __add__(self, other: Any) -> Cost:
        """The cost of running one program after the other."""
        if not isinstance(other, Cost):
            return NotImplemented
        parts = dict(self.parts)
        for name, work in other.parts.items():
            parts[name] = parts.get(name, Work()) + work
        return Cost(parts, self.unknown + other.unknown, self.loops + other.loops)


def _shared(paths: Sequence[Sequence[str]]) -> int:
    """The number of leading path parts that all have in common."""
    if len(paths) < 2:
        return 0
    same = [len({*level}) == 1 for level in zip(*paths, strict=False)]
    return next((i for i, alike in enumerate(same) if not alike), len(same))


_SHOWN = 8  # things that are not counted, with a line of their own


def _cost_table(cost: Cost, depth: int, hardware: Hardware | None) -> str:
    """The table of one program: a line a part, the total, and what else there is to say."""
    rows = [(name or "(rest)", [work]) for name, work in cost.grouped(depth).items()]
    rows = [] if len(rows) < 2 else sorted(rows, key=_heaviest)
    lines = work_table([*rows, ("total", [cost.total])], hardware)
    return "\n".join([*lines, *notes([cost], cost.compiled)])


def _heaviest(row: Row) -> tuple[int, int]:
    work = sum(row[1], Work())
    return -work.flops, -work.bytes


def notes(costs: Sequence[Cost], compiled: Compiled | None) -> list[str]:
    """Remarks: what the figures leave out, and the compiler's own figures."""
    found = [u for cost in costs for u in cost.unknown]
    lines = [f"not counted: {u.name} x {u.count}{_in(u.part)}: {u.reason}" for u in found[:_SHOWN]]
    if len(found) > _SHOWN:
        lines.append(f"not counted: {len(found) - _SHOWN} more, see .unknown")
    return lines if compiled is None else [*lines, *_compiled(costs, compiled)]


def _compiled(costs: Sequence[Cost], compiled: Compiled) -> list[str]:
    flops = sum(cost.flops for cost in costs)
    share = f" ({compiled.flops / flops:.1%} of the above)" if flops else ""
    once = "; it counts the body of a loop once" if any(cost.loops for cost in costs) else ""
    return [
        f"compiler: {si(compiled.flops)}FLOP{share}{once}",
        f"memory: {binary(compiled.peak_bytes)} at most = arguments "
        f"{binary(compiled.argument_bytes)} + results {binary(compiled.output_bytes)} + working "
        f"memory {binary(compiled.temp_bytes)} - what is donated",
    ]


def _in(part: str) -> str:
    return f" in {part}" if part else ""

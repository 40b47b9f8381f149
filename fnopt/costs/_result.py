"""Results: the costs of a program, of a gradient and of a training step."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from fnopt.costs._remarks import (
    Bound,
    Compiled,
    Loop,
    Row,
    Unknown,
    binary,
    compiler_notes,
    labeled,
    notes,
    work_table,
)
from fnopt.costs._roofline import Hardware, Work
from fnopt.errors import show_report


@dataclasses.dataclass(frozen=True, repr=False)
class Cost:
    """The cost of one run of a program; `print(cost)` shows a table.

    Attributes:
        parts: Work per part. The key is the path of `jax.named_scope`s and of the user's jitted
            functions, or `''` for operations outside of all scopes. The work of all parts adds up
            to `total`.
        unknown: Operations that the figures omit; empty if all operations are counted.
        loops: The loops and their trip counts.
        compiled: XLA's cost and memory analysis, if requested.
        inexact: The parts with inexact figures. `'at most'` means that a loop is counted with its
            limit, or a cond with the maximum over its branches. `'incomplete'` means that the part
            has operations in `unknown`.
        choices: The parts of conds whose branches have different costs.

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
    inexact: dict[str, Bound] = dataclasses.field(default_factory=dict)
    choices: tuple[str, ...] = ()

    @property
    def total(self) -> Work:
        """Sum of the work of all parts."""
        return sum(self.parts.values(), Work())

    @property
    def flops(self) -> int:
        """FLOPs of all operations except transcendental functions."""
        return self.total.flops

    @property
    def matmul_flops(self) -> int:
        """FLOPs of matrix products and convolutions; a multiply-add counts as two."""
        return self.total.matmul_flops

    @property
    def elementwise_flops(self) -> int:
        """FLOPs of all other operations: elementwise arithmetic, reductions, factorizations."""
        return self.total.elementwise_flops

    @property
    def transcendentals(self) -> int:
        """Evaluations of exp, log, tanh, sqrt, ..., which `flops` excludes, as in XLA."""
        return self.total.transcendentals

    @property
    def bytes(self) -> int:
        """Memory traffic if all elementwise operations are fused."""
        return self.total.bytes

    @property
    def intensity(self) -> float:
        """Arithmetic intensity: FLOPs per byte."""
        return self.total.intensity

    @property
    def exact(self) -> bool:
        """Whether all operations were counted, with their exact number of runs."""
        return not self.unknown and not self.inexact

    @property
    def at_most(self) -> bool:
        """Whether the figures are upper bounds.

        Reasons are loops that may end early, and conds whose branches have different costs. Figures
        that are neither exact nor upper bounds are incomplete (see `unknown`).
        """
        return not self.exact and not self.unknown

    def part(self, path: str) -> Work:
        """Work of one part, including the parts inside it.

        Args:
            path: The part, such as `'encoder'` or `'encoder/attention'`.

        Raises:
            KeyError: If the part doesn't exist; the message lists the parts.
        """
        works = [w for name, w in self.parts.items() if f"{name}/".startswith(f"{path}/")]
        if not works:
            raise KeyError(f"no part is called {path!r}, expected one of {sorted(self.parts)}")
        return sum(works, Work())

    def grouped(self, depth: int) -> dict[str, Work]:
        """Work per part down to `depth` levels; deeper parts are added to their enclosing part.

        A common root of all named parts (in Flax, the name of the model) isn't counted as a level.
        """
        groups: dict[str, Work] = {}
        for name, group in self._groups(depth).items():
            groups[group] = groups.get(group, Work()) + self.parts[name]
        return groups

    def labels(self, depth: int) -> dict[str, str]:
        """Labels in a table of the parts of `grouped`, such as `'(rest)'` or `'solver (at most)'`.

        The `(rest)` of a part is the work outside of the part's inner parts.
        """
        groups = self._groups(depth)
        bounds: dict[str, list[Bound]] = {group: [] for group in groups.values()}
        for name in self.inexact.keys() & groups.keys():
            bounds[groups[name]].append(self.inexact[name])
        above = {group.rpartition("/")[0] for group in bounds} if depth else set()
        names = {group: f"{group} (rest)".lstrip() if group in above else group for group in bounds}
        return {group: labeled(names[group] or "(rest)", bounds[group]) for group in bounds}

    def _groups(self, depth: int) -> dict[str, str]:
        depth += _shared([name.split("/") for name in self.parts if name])
        return {name: "/".join(name.split("/")[:depth]) for name in self.parts}

    def seconds(self, hardware: Hardware) -> float:
        """Roofline time: a lower bound of the run time on a machine with these rates."""
        return hardware.seconds(self.total)

    def table(self, depth: int = 2, hardware: Hardware | None = None) -> str:
        """Format the cost as a table with one line per part.

        Args:
            depth: Number of levels of parts to show.
            hardware: Rates of a machine; adds columns with the roofline time and the bottleneck.
        """
        return _cost_table(self, depth, hardware)

    _repr_pretty_ = show_report

    def __str__(self) -> str:
        return self.table()

    def __repr__(self) -> str:
        bound = ", at_most=True" if self.at_most else ""
        unknown = f", unknown={len(self.unknown)}" if self.unknown else bound
        return f"Cost(flops={self.flops}, bytes={self.bytes}, parts={len(self.parts)}{unknown})"

    def __add__(self, other: Any) -> Cost:
        """Add the costs of two programs that run one after the other."""
        if not isinstance(other, Cost):
            return NotImplemented
        parts = dict(self.parts)
        for name, work in other.parts.items():
            parts[name] = parts.get(name, Work()) + work
        inexact = dict(self.inexact)
        for name, bound in other.inexact.items():
            inexact[name] = worse(inexact.get(name), bound)
        # XLA analyzes a program as a unit, so the analyses of two programs can't be added.
        unknown, loops = self.unknown + other.unknown, self.loops + other.loops
        return Cost(parts, unknown, loops, None, inexact, self.choices + other.choices)


def worse(bound_so_far: Bound | None, other: Bound) -> Bound:
    """Exactness of the sum of two figures: the worse of both; `None` is exact."""
    return "incomplete" if bound_so_far == "incomplete" else other


def _shared(paths: Sequence[Sequence[str]]) -> int:
    """Length of the common prefix of paths."""
    if len(paths) < 2:
        return 0
    is_common = [len({*level}) == 1 for level in zip(*paths, strict=False)]
    return next((i for i, common in enumerate(is_common) if not common), len(is_common))


def _cost_table(cost: Cost, depth: int, hardware: Hardware | None) -> str:
    """Table of one program: one line per part, the total, and remarks."""
    labels = cost.labels(depth)
    rows = [(labels[name], [work]) for name, work in cost.grouped(depth).items()]
    # The row of a single part would repeat the total.
    by_weight = sorted(rows, key=lambda row: (-row[1][0].flops, -row[1][0].bytes))
    rows = [] if len(rows) < 2 else by_weight
    total = labeled("total", cost.inexact.values())
    lines = work_table([*rows, (total, [cost.total])], hardware)
    compiler = compiler_notes(cost.compiled, cost.flops, cost.loops)
    return "\n".join([*lines, *notes(cost.unknown, cost.loops, cost.choices), *compiler])


@dataclasses.dataclass(frozen=True, repr=False)
class GradCost:
    """The cost of a gradient; `print` shows a table.

    Attributes:
        forward: Cost of the forward pass with residuals saved.
        backward: Cost of the backward pass, including recomputation by `jax.checkpoint`.
        residual_bytes: Size of the saved residuals, excluding arguments.
        compiled: XLA's cost and memory analysis of both passes in one program, if requested.
    """

    forward: Cost
    backward: Cost
    residual_bytes: int
    compiled: Compiled | None = dataclasses.field(default=None, kw_only=True)

    @property
    def phases(self) -> dict[str, Cost]:
        """Costs keyed by the name of the phase, in the order of execution."""
        return {"forward": self.forward, "backward": self.backward}

    @property
    def total(self) -> Work:
        """Work of all phases."""
        return sum((cost.total for cost in self.phases.values()), Work())

    @property
    def backward_to_forward(self) -> float:
        """FLOPs of the backward pass divided by FLOPs of the forward pass; 2 for a deep network."""
        return self.backward.flops / self.forward.flops if self.forward.flops else float("nan")

    @property
    def exact(self) -> bool:
        """Whether all operations were counted, with their exact number of runs."""
        return all(cost.exact for cost in self.phases.values())

    @property
    def at_most(self) -> bool:
        """Whether the figures are upper bounds, for example because loops may end early."""
        bounded = all(cost.exact or cost.at_most for cost in self.phases.values())
        return bounded and not self.exact

    def seconds(self, hardware: Hardware) -> float:
        """Sum of the roofline times of the phases."""
        return sum(cost.seconds(hardware) for cost in self.phases.values())

    def table(self, depth: int = 1, hardware: Hardware | None = None) -> str:
        """Format the costs as a table with one line per phase and per part of a phase.

        Args:
            depth: Number of levels of parts to show; 0 shows only the phases.
            hardware: Rates of a machine; adds columns with the roofline time and the bottleneck.
        """
        rows: list[Row] = []
        order = [*self.forward.grouped(depth)] if depth else []
        for name, cost in self.phases.items():
            label = labeled(name, cost.inexact.values())
            rows += [(label, [cost.total]), *_parts(cost, depth, order)]
        cost_of_all = sum(self.phases.values(), Cost({}))
        total = labeled("total", cost_of_all.inexact.values())
        rows.append((total, [cost.total for cost in self.phases.values()]))
        lines = work_table(rows, hardware)
        remarks = notes(cost_of_all.unknown, cost_of_all.loops, cost_of_all.choices)
        compiler = compiler_notes(self.compiled, cost_of_all.flops, cost_of_all.loops)
        return "\n".join([*lines, *self._remarks(), *remarks, *compiler])

    def _remarks(self) -> list[str]:
        return [
            f"backward / forward: {self.backward_to_forward:.3g} x the FLOPs",
            f"residuals saved for the backward pass: {binary(self.residual_bytes)}",
        ]

    _repr_pretty_ = show_report

    def __str__(self) -> str:
        return self.table()

    def __repr__(self) -> str:
        phases = ", ".join(f"{name}={cost!r}" for name, cost in self.phases.items())
        return f"{type(self).__name__}({phases}, residual_bytes={self.residual_bytes})"


@dataclasses.dataclass(frozen=True, repr=False)
class StepCost(GradCost):
    """The cost of a training step; `print` shows a table.

    Attributes:
        forward: Cost of the forward pass with residuals saved.
        backward: Cost of the backward pass, including recomputation by `jax.checkpoint`.
        residual_bytes: Size of the saved residuals, excluding arguments.
        update: Cost of the optimizer update, from gradients to new params and state.
        params_bytes: Size of the params.
        state_bytes: Size of the optimizer's state.
        compiled: XLA's cost and memory analysis of the whole step with donated params and state, if
            requested.
    """

    update: Cost
    params_bytes: int
    state_bytes: int

    @property
    def phases(self) -> dict[str, Cost]:
        """Costs keyed by the name of the phase, in the order of execution."""
        return {**super().phases, "update": self.update}

    def _remarks(self) -> list[str]:
        sizes = f"params: {binary(self.params_bytes)}, optimizer state: {binary(self.state_bytes)}"
        return [*super()._remarks(), sizes]


def _parts(cost: Cost, depth: int, order: Sequence[str]) -> list[Row]:
    """Rows of a phase's parts: the parts in `order` first, then all other parts."""
    groups = cost.grouped(depth) if depth else {}
    names = [n for n in order if n in groups] + [n for n in groups if n not in order]
    labels = cost.labels(depth)
    return [(f"  {labels[name]}", [groups[name]]) for name in names if any(groups)]

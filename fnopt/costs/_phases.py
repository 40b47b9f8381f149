"""The costs of a gradient and of a training step, phase by phase."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from fnopt.core import show_report
from fnopt.costs._remarks import Compiled, compiler_notes, labelled, notes
from fnopt.costs._result import Cost
from fnopt.costs._roofline import Hardware, Work
from fnopt.costs._table import Row, binary, work_table


@dataclasses.dataclass(frozen=True, repr=False)
class GradCost:
    """The cost of a gradient; `print` shows a table.

    Attributes:
        forward: The forward pass, as it runs when a backward pass will follow.
        backward: The backward pass; with `jax.checkpoint`, also what is computed again.
        residual_bytes: Bytes that the forward pass keeps for the backward pass, besides arguments.
        compiled: The compiler's figures for both together, if they were asked for.
    """

    forward: Cost
    backward: Cost
    residual_bytes: int
    compiled: Compiled | None = dataclasses.field(default=None, kw_only=True)

    @property
    def phases(self) -> dict[str, Cost]:
        """The costs by the name of the phase, in the order in which they run."""
        return {"forward": self.forward, "backward": self.backward}

    @property
    def total(self) -> Work:
        """The work of all phases."""
        return sum((cost.total for cost in self.phases.values()), Work())

    @property
    def backward_to_forward(self) -> float:
        """FLOPs of the backward pass for one of the forward pass: about 2 for a deep network."""
        return self.backward.flops / self.forward.flops if self.forward.flops else float("nan")

    @property
    def exact(self) -> bool:
        """Whether everything was counted, and as often as it runs."""
        return all(cost.exact for cost in self.phases.values())

    @property
    def at_most(self) -> bool:
        """Whether the figures are upper bounds, because loops may end early."""
        bounded = all(cost.exact or cost.at_most for cost in self.phases.values())
        return bounded and not self.exact

    def seconds(self, hardware: Hardware) -> float:
        """The roofline time: one phase after the other."""
        return sum(cost.seconds(hardware) for cost in self.phases.values())

    def table(self, depth: int = 1, hardware: Hardware | None = None) -> str:
        """The figures as text, a line for every phase and for its parts.

        Args:
            depth: How many levels of parts to show; 0 for the phases alone.
            hardware: Rates of a machine; adds the roofline times and what limits them.
        """
        rows: list[Row] = []
        order = [*self.forward.grouped(depth)] if depth else []
        for name, cost in self.phases.items():
            label = labelled(name, cost.inexact.values())
            rows += [(label, [cost.total]), *_parts(cost, depth, order)]
        every = sum(self.phases.values(), Cost({}))
        total = labelled("total", every.inexact.values())
        rows.append((total, [cost.total for cost in self.phases.values()]))
        lines = work_table(rows, hardware)
        remarks = notes(every.unknown, every.loops, every.choices)
        compiler = compiler_notes(self.compiled, every.flops, every.loops)
        return "\n".join([*lines, *self._remarks(), *remarks, *compiler])

    def _remarks(self) -> list[str]:
        return [
            f"backward / forward: {self.backward_to_forward:.3g} x the FLOPs",
            f"kept for the backward pass: {binary(self.residual_bytes)}",
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
        forward: The forward pass, as it runs when a backward pass will follow.
        backward: The backward pass; with `jax.checkpoint`, also what is computed again.
        residual_bytes: Bytes that the forward pass keeps for the backward pass, besides arguments.
        update: The optimizer: from gradients to new params and state.
        params_bytes: Size of the params.
        state_bytes: Size of the optimizer's state.
        compiled: The compiler's figures for the whole step with donated params and state, if they
            were asked for.
    """

    update: Cost
    params_bytes: int
    state_bytes: int

    @property
    def phases(self) -> dict[str, Cost]:
        """The costs by the name of the phase, in the order in which they run."""
        return {**super().phases, "update": self.update}

    def _remarks(self) -> list[str]:
        sizes = f"params: {binary(self.params_bytes)}, optimizer state: {binary(self.state_bytes)}"
        return [*super()._remarks(), sizes]


def _parts(cost: Cost, depth: int, order: Sequence[str]) -> list[Row]:
    """The rows of a phase's parts: first those of the forward pass, in its order."""
    groups = cost.grouped(depth) if depth else {}
    names = [n for n in order if n in groups] + [n for n in groups if n not in order]
    labels = cost.labels(depth)
    return [(f"  {labels[name]}", [groups[name]]) for name in names if any(groups)]

"""Metrics of benchmarks: ratios, which can be compared between machines."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal


@dataclasses.dataclass(frozen=True)
class Metric:
    """A metric of a case.

    Args:
        name: Name of the measurement, such as `'adamw, one leaf: run time'`.
        value: The ratio.
        unit: Denominator of the ratio, such as `'x optax'`.
        direction: Whether lower or higher values are better.
        tolerance: Largest relative change from the committed baseline that isn't a regression;
            `inf` for metrics that are never a regression.
        spread: First and third quartile of the rounds.
        detail: Absolute values, with their units in the names (`'ours_ms'`).
    """

    name: str
    value: float
    unit: str
    direction: Literal["lower", "higher"] = "lower"
    tolerance: float = 0.25
    spread: tuple[float, float] | None = None
    detail: dict[str, float] = dataclasses.field(default_factory=dict)

    def worse_than(self, baseline: float) -> bool:
        """Whether the value is worse than a baseline by more than the tolerance."""
        if self.direction == "lower":
            return self.value > baseline * (1 + self.tolerance)
        return self.value < baseline / (1 + self.tolerance)

    def as_json(self) -> dict[str, Any]:
        """Return the fields as JSON values (None for an infinite tolerance)."""
        fields = dataclasses.asdict(self)
        if self.tolerance == float("inf"):
            fields["tolerance"] = None
        return fields


class Skipped(Exception):  # noqa: N818
    """Exception of a case that can't run; the message states the reason."""

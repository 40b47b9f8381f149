"""A measured figure: always a ratio, so that it means the same on another machine."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal


@dataclasses.dataclass(frozen=True)
class Metric:
    """One figure of one case.

    Args:
        name: What was measured, e.g. `'adamw, one leaf: run time'`.
        value: The ratio.
        unit: What it is a ratio to, e.g. `'x optax'`.
        direction: Whether less or more is better.
        tolerance: By which relative amount the value may get worse than the committed baseline;
            `inf` for figures that are shown but not held against anybody.
        spread: The values between which the middle half of the rounds lies.
        detail: The absolute figures behind the ratio, with their unit in the name (`'ours_ms'`).
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
        """The fields as JSON has them (infinity as None)."""
        fields = dataclasses.asdict(self)
        if self.tolerance == float("inf"):
            fields["tolerance"] = None
        return fields


class Skipped(Exception):  # noqa: N818
    """A case cannot run here; the text says why."""

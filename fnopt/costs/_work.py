"""The units of work."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Work:
    """Counts of FLOPs, transcendentals and bytes, which add and scale.

    Attributes:
        matmul_flops: FLOPs of matrix products and convolutions; a multiply-add counts as two.
        elementwise_flops: All other FLOPs.
        transcendentals: Evaluations of exp, log, tanh, sqrt, ...
        bytes: Memory traffic if everything elementwise is fused away.
    """

    matmul_flops: int = 0
    elementwise_flops: int = 0
    transcendentals: int = 0
    bytes: int = 0

    @property
    def flops(self) -> int:
        """All floating-point operations except transcendental ones."""
        return self.matmul_flops + self.elementwise_flops

    @property
    def intensity(self) -> float:
        """Arithmetic intensity: FLOPs per byte; infinite if no memory is touched."""
        if self.bytes:
            return self.flops / self.bytes
        return float("inf") if self.flops else 0.0

    def __add__(self, other: Work) -> Work:
        return Work(
            self.matmul_flops + other.matmul_flops,
            self.elementwise_flops + other.elementwise_flops,
            self.transcendentals + other.transcendentals,
            self.bytes + other.bytes,
        )

    def __sub__(self, other: Work) -> Work:
        return self + other * -1

    def __mul__(self, times: int) -> Work:
        return Work(
            self.matmul_flops * times,
            self.elementwise_flops * times,
            self.transcendentals * times,
            self.bytes * times,
        )

    def at_least(self, other: Work) -> Work:
        """The larger of each of the amounts."""
        amounts = zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)
        return Work(*map(max, amounts))

"""Linear bounds of loop variables, and the iterations in which comparisons hold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import jax.numpy as jnp

Number = int | float | Fraction  # infinite as a float


class LinearBounds(NamedTuple):
    """Linear bounds `low + fall t <= x <= high + rise t` in iteration `t` of a loop.

    Attributes:
        low: The lower bound in iteration 0.
        high: The upper bound in iteration 0.
        fall: The change of the lower bound per iteration.
        rise: The change of the upper bound per iteration.
        lasts: The last iteration for which the bounds hold, before the number overflows.
    """

    low: Number
    high: Number
    fall: int | Fraction = 0
    rise: int | Fraction = 0
    lasts: Number = math.inf

    @property
    def known(self) -> bool:
        """Whether both bounds are finite."""
        return -math.inf < self.low and self.high < math.inf

    @property
    def steady(self) -> bool:
        """Whether the bounds are constant."""
        return self.fall == self.rise == 0


ANY = LinearBounds(-math.inf, math.inf)


class TripSpan(NamedTuple):
    """The iterations in which a condition holds.

    Attributes:
        until: The condition holds in all iterations before this one.
        end: The condition doesn't hold in this iteration.
        after: The condition holds neither in this iteration nor in a later one.
    """

    until: Number = 0
    end: Number = math.inf
    after: Number = math.inf


def both(*spans: TripSpan) -> TripSpan:
    """The iterations in which all conditions hold."""
    return TripSpan(*map(min, zip(*spans, strict=True)))


def either(*spans: TripSpan) -> TripSpan:
    """The iterations in which at least one condition holds."""
    until, _, after = map(max, zip(*spans, strict=True))
    return TripSpan(until, after, after)


def always(holds: bool) -> TripSpan:
    """The iterations of a condition that always holds, or never holds."""
    trips = math.inf if holds else 0
    return TripSpan(trips, trips, trips)


def difference(a: LinearBounds, b: LinearBounds) -> LinearBounds:
    """Bounds of `a - b` in exact arithmetic, without overflow."""
    lasts = min(a.lasts, b.lasts)
    return LinearBounds(a.low - b.high, a.high - b.low, a.fall - b.rise, a.rise - b.fall, lasts)


def plus(a: LinearBounds, b: LinearBounds) -> LinearBounds:
    """Bounds of `a + b`; infinite if the sum may overflow, as with an unbounded operand."""
    return difference(a, _flipped(b)) if a.known and b.known else ANY


def minus(a: LinearBounds, b: LinearBounds) -> LinearBounds:
    """Bounds of `a - b`; infinite if the difference may overflow."""
    return plus(a, _flipped(b))


def times(a: LinearBounds, b: LinearBounds) -> LinearBounds:
    """Bounds of a product with at least one constant factor."""
    if not (a.known and b.known) or not (a.steady or b.steady):
        return ANY
    if not b.steady:
        a, b = b, a
    lasts = min(a.lasts, b.lasts)
    if a.steady:
        corners = [x * y for x in a[:2] for y in b[:2]]
        return LinearBounds(min(corners), max(corners), lasts=lasts)
    if b.low != b.high:
        return ANY
    factor: Any = b.low
    a = a if factor >= 0 else _flipped(a)
    low, high, fall, rise = (x * abs(factor) for x in a[:4])
    return LinearBounds(low, high, fall, rise, lasts)


def largest(a: LinearBounds, b: LinearBounds) -> LinearBounds:
    """Bounds of `max(a, b)`."""
    low, fall = max((a.low, a.fall), (b.low, b.fall), key=lambda line: line[::-1])
    return LinearBounds(low, max(a.high, b.high), fall, max(a.rise, b.rise), min(a.lasts, b.lasts))


def smallest(a: LinearBounds, b: LinearBounds) -> LinearBounds:
    """Bounds of `min(a, b)`."""
    return _flipped(largest(_flipped(a), _flipped(b)))


def any_of(lines: Sequence[LinearBounds]) -> LinearBounds:
    """Bounds of a number that equals one of several numbers."""
    lows, highs, falls, rises, lasts = zip(*lines, strict=True)
    return LinearBounds(min(lows), max(highs), min(falls), max(rises), min(lasts))


def fitted(line: LinearBounds, dtype: Any) -> LinearBounds:
    """Restrict bounds to the iterations in which the dtype represents the bounded numbers.

    Bounds of floating-point numbers hold while the numbers are integers that the dtype represents
    exactly.
    """
    if jnp.issubdtype(dtype, jnp.floating):
        # Integers up to 2^(mantissa + 1) are exact; beyond, x + 1 may equal x, and a loop may never
        # end.
        most: Number = 2 ** (jnp.finfo(dtype).nmant + 1)
        least = -most
        if not line.known or any(x % 1 for x in line[:4]):
            return ANY
    elif jnp.issubdtype(dtype, jnp.integer):
        least, most = int(jnp.iinfo(dtype).min), int(jnp.iinfo(dtype).max)
    elif jnp.issubdtype(dtype, jnp.bool_):
        return line if line.known else LinearBounds(0, 1)
    else:
        return ANY
    above, below = _lasts(line.low - least, line.fall), _lasts(most - line.high, -line.rise)
    lasts = min(line.lasts, above, below)
    return line._replace(lasts=lasts) if lasts >= 0 else ANY


def positive(line: LinearBounds, strictly: bool) -> TripSpan:
    """The iterations in which a number is positive, or nonnegative."""
    until = _first_below(line.low, line.fall, strictly)
    end = _first_below(line.high, line.rise, strictly)
    return TripSpan(until, end, end if line.rise <= 0 else math.inf)


def zero(line: LinearBounds, is_zero: bool) -> TripSpan:
    """The iterations in which a number is zero, or nonzero, if its value is always known."""
    low, high, fall, rise, _ = line
    if low != high or fall != rise:
        return TripSpan()
    if fall == 0:
        return always((low == 0) == is_zero)
    trip, rest = divmod(-low, fall)
    met = trip if rest == 0 and trip >= 0 else None
    if not is_zero:
        return always(True) if met is None else TripSpan(met, met)
    if met == 0:
        return TripSpan(1, 1, 1)
    return TripSpan(0, 0, 0 if met is None else met + 1)


def _flipped(line: LinearBounds) -> LinearBounds:
    return LinearBounds(-line.high, -line.low, -line.rise, -line.fall, line.lasts)


def _lasts(room: Number, change: int | Fraction) -> Number:
    """Last iteration in which `room + change t` is at least zero; -1 without such an iteration."""
    if math.isinf(room):  # an unbounded number stays within its dtype if `room` doesn't shrink
        return math.inf if change >= 0 else -1
    return _first_below(room, change, strictly=False) - 1


def _first_below(start: Number, change: int | Fraction, strictly: bool) -> Number:
    """First iteration in which `start + change t` is below zero; with `strictly`, also at zero."""
    if start < 0 or (strictly and start == 0):
        return 0
    if change >= 0 or start == math.inf:
        return math.inf
    whole, rest = divmod(start, -change)
    return whole + (1 if rest or not strictly else 0)

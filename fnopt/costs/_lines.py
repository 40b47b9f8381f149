"""Arithmetic of linear bounds, and the iterations in which comparisons hold."""

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
        lasts: The last iteration in which the bounds hold, before the value overflows.
    """

    low: Number
    high: Number
    fall: int | Fraction = 0
    rise: int | Fraction = 0
    lasts: Number = math.inf

    @property
    def finite(self) -> bool:
        """Whether both bounds are finite."""
        return -math.inf < self.low and self.high < math.inf

    @property
    def constant(self) -> bool:
        """Whether the bounds are the same in all iterations."""
        return self.fall == self.rise == 0


ANY = LinearBounds(-math.inf, math.inf)


class TripSpan(NamedTuple):
    """Partial knowledge about the iterations in which a condition holds.

    Attributes:
        until: The condition holds in all iterations before this iteration.
        end: The condition doesn't hold in this iteration.
        after: The condition doesn't hold in this iteration and in all later iterations.
    """

    until: Number = 0
    end: Number = math.inf
    after: Number = math.inf


def conjunction(*spans: TripSpan) -> TripSpan:
    """Iterations in which all conditions hold."""
    return TripSpan(*map(min, zip(*spans, strict=True)))


def disjunction(*spans: TripSpan) -> TripSpan:
    """Iterations in which at least one condition holds."""
    # A disjunction ends only if all conditions are false in the same iteration. This is certain
    # only from the largest `after` on.
    until, _, after = map(max, zip(*spans, strict=True))
    return TripSpan(until, after, after)


def always(holds: bool) -> TripSpan:
    """Iterations of a condition that always holds (or never holds)."""
    trips = math.inf if holds else 0
    return TripSpan(trips, trips, trips)


def difference(a: LinearBounds, b: LinearBounds) -> LinearBounds:
    """Bounds of `a - b` in exact arithmetic, without overflow."""
    lasts = min(a.lasts, b.lasts)
    return LinearBounds(a.low - b.high, a.high - b.low, a.fall - b.rise, a.rise - b.fall, lasts)


def plus(a: LinearBounds, b: LinearBounds) -> LinearBounds:
    """Bounds of `a + b`; infinite if an operand is unbounded, because the sum may overflow."""
    return difference(a, _negative(b)) if a.finite and b.finite else ANY


def minus(a: LinearBounds, b: LinearBounds) -> LinearBounds:
    """Bounds of `a - b`; infinite if an operand is unbounded."""
    return plus(a, _negative(b))


def times(a: LinearBounds, b: LinearBounds) -> LinearBounds:
    """Bounds of `a * b`; infinite unless at least one factor has constant bounds."""
    if not (a.finite and b.finite) or not (a.constant or b.constant):
        return ANY
    if not b.constant:
        a, b = b, a
    lasts = min(a.lasts, b.lasts)
    if a.constant:
        corners = [x * y for x in a[:2] for y in b[:2]]
        return LinearBounds(min(corners), max(corners), lasts=lasts)
    if b.low != b.high:
        return ANY
    factor: Any = b.low
    a = a if factor >= 0 else _negative(a)
    low, high, fall, rise = (x * abs(factor) for x in a[:4])
    return LinearBounds(low, high, fall, rise, lasts)


def maximum(a: LinearBounds, b: LinearBounds) -> LinearBounds:
    """Bounds of `max(a, b)`."""
    # Each operand's lower bound is a lower bound of the maximum; use the one that grows fastest.
    low, fall = max((a.low, a.fall), (b.low, b.fall), key=lambda line: line[::-1])
    return LinearBounds(low, max(a.high, b.high), fall, max(a.rise, b.rise), min(a.lasts, b.lasts))


def minimum(a: LinearBounds, b: LinearBounds) -> LinearBounds:
    """Bounds of `min(a, b)`."""
    return _negative(maximum(_negative(a), _negative(b)))


def any_of(lines: Sequence[LinearBounds]) -> LinearBounds:
    """Bounds of a value that equals one of several values."""
    lows, highs, falls, rises, lasts = zip(*lines, strict=True)
    return LinearBounds(min(lows), max(highs), min(falls), max(rises), min(lasts))


def restrict_to_dtype(line: LinearBounds, dtype: Any) -> LinearBounds:
    """Restrict bounds to the iterations in which the dtype represents the values exactly.

    For floating-point dtypes, only integers have bounds, because other values may be rounded.
    """
    if jnp.issubdtype(dtype, jnp.floating):
        # Integers up to 2^(mantissa + 1) are exact. For larger x, x + 1 may equal x, and a loop may
        # never end.
        top: Number = 2 ** (jnp.finfo(dtype).nmant + 1)
        bottom = -top
        if not line.finite or any(x % 1 for x in line[:4]):
            return ANY
    elif jnp.issubdtype(dtype, jnp.integer):
        bottom, top = int(jnp.iinfo(dtype).min), int(jnp.iinfo(dtype).max)
    elif jnp.issubdtype(dtype, jnp.bool_):
        return line if line.finite else LinearBounds(0, 1)
    else:
        return ANY
    low_lasts = _last_nonnegative(line.low - bottom, line.fall)
    high_lasts = _last_nonnegative(top - line.high, -line.rise)
    lasts = min(line.lasts, low_lasts, high_lasts)
    return line._replace(lasts=lasts) if lasts >= 0 else ANY


def positive(line: LinearBounds, strictly: bool) -> TripSpan:
    """Iterations in which a value is positive (or nonnegative, unless `strictly`)."""
    until = _first_below(line.low, line.fall, strictly)
    end = _first_below(line.high, line.rise, strictly)
    return TripSpan(until, end, end if line.rise <= 0 else math.inf)


def zero(line: LinearBounds, is_zero: bool) -> TripSpan:
    """Iterations in which a value is zero (or nonzero); unknown unless the bounds are equal."""
    low, high, fall, rise, _ = line
    if low != high or fall != rise:
        return TripSpan()
    if fall == 0:
        return always((low == 0) == is_zero)
    trip, rest = divmod(-low, fall)
    root = trip if rest == 0 and trip >= 0 else None
    if not is_zero:
        return always(True) if root is None else TripSpan(root, root)
    if root == 0:
        return TripSpan(1, 1, 1)
    return TripSpan(0, 0, 0 if root is None else root + 1)


def _negative(line: LinearBounds) -> LinearBounds:
    return LinearBounds(-line.high, -line.low, -line.rise, -line.fall, line.lasts)


def _last_nonnegative(start: Number, change: int | Fraction) -> Number:
    """Last iteration in which `start + change t` is nonnegative; -1 without such an iteration."""
    # An infinite start means a value without a bound, which is in its dtype's range in every
    # iteration. With a negative change, the result is -1, the cautious one.
    if math.isinf(start):
        return math.inf if change >= 0 else -1
    return _first_below(start, change, strictly=False) - 1


def _first_below(start: Number, change: int | Fraction, strictly: bool) -> Number:
    """First iteration in which `start + change t` is below zero; with `strictly`, also at zero."""
    if start < 0 or (strictly and start == 0):
        return 0
    if change >= 0 or start == math.inf:
        return math.inf
    quotient, rest = divmod(start, -change)
    return quotient + (1 if rest or not strictly else 0)

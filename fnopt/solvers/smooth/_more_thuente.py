"""The line search of Moré and Thuente, one evaluation at a time."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class LinePoint(NamedTuple):
    """The value and the slope at a step length."""

    rate: jax.Array
    value: jax.Array
    slope: jax.Array


class LineSearch(NamedTuple):
    """The state of the line search."""

    rate: jax.Array  # the step to try next
    start: LinePoint
    best: LinePoint  # the best step so far
    other: LinePoint  # the other end of the interval, once there is one
    bracketed: jax.Array
    second: jax.Array  # whether the value itself is looked at, not its excess over a line
    low: jax.Array  # where the next step may be
    high: jax.Array
    width: jax.Array  # of the interval, and of the one before
    wider: jax.Array
    longest: jax.Array
    flattened: jax.Array  # whether any slope was flatter than the first
    count: jax.Array  # int32


class WolfeConditions(NamedTuple):
    """The conditions on a step length."""

    decrease: float = 1e-3
    flatness: float = 0.9
    narrow: float = 0.1
    most: int = 20  # evaluations
    endless: int = 40  # evaluations along a slope that hasn't turned yet


def begun(value: jax.Array, slope: jax.Array, rate: jax.Array, longest: jax.Array) -> LineSearch:
    """The search before its first step."""
    zero, no = jnp.zeros_like(rate), jnp.zeros((), bool)
    start = LinePoint(zero, value, slope)
    rate = jnp.minimum(rate, longest)
    wide = jnp.where(jnp.isfinite(longest), longest, jnp.asarray(1e20, rate.dtype))
    count = jnp.zeros((), jnp.int32)
    return LineSearch(
        rate, start, start, start, no, no, zero, 5 * rate, wide, 2 * wide, longest, no, count
    )


class Verdict(NamedTuple):
    """The verdict on an evaluation: whether the search ends, and whether it is the best so far."""

    search: LineSearch
    done: jax.Array
    better: jax.Array
    taken: jax.Array  # whether the search has a step to take


def updated(
    search: LineSearch, value: jax.Array, slope: jax.Array, rule: WolfeConditions, most: jax.Array
) -> Verdict:
    r"""The search after an evaluation at `search.rate`.

    A step is taken if :math:`f(\eta) \le f(0) + c_1 \eta f'(0)` and :math:`|f'(\eta)| \le c_2
    |f'(0)|`; or, where rounding hides differences of values, if the slope says the same.

    Args:
        search: The search.
        value: The value there; it may be NaN or infinite.
        slope: The slope there.
        rule: What is asked for.
        most: No value above this one is taken.

    Returns:
        What came of it.
    """
    new, start = LinePoint(search.rate, value, slope), search.start
    finite = jnp.isfinite(value) & jnp.isfinite(slope)
    line = rule.decrease * start.slope
    low_enough = value <= start.value + new.rate * line
    flat_enough = jnp.abs(slope) <= -rule.flatness * start.slope
    met = finite & (
        (low_enough & flat_enough) | (_met_by_slope(start, new, rule) & (value <= most))
    )
    beyond = finite & (new.rate >= search.longest) & low_enough & (slope <= line)
    after = _narrowed(search, new, line)
    after = _chosen(finite, after, _shrunk(search, new))
    count = search.count + jnp.ones((), jnp.int32)
    stuck = after.bracketed & (
        (after.rate <= after.low)
        | (after.rate >= after.high)
        | (after.high - after.low <= rule.narrow * after.high)
    )
    most_here = jnp.where(finite & ~after.bracketed, rule.endless, rule.most)
    over = met | beyond | (finite & stuck) | (count >= most_here) | (after.rate <= 0)
    better = finite & ((after.best.rate == new.rate) | met)
    best = _chosen(met, new, after.best)
    lower = (best.rate > 0) & (best.value < start.value)
    flattened = search.flattened | ~finite | (slope > rule.flatness * start.slope)
    after = after._replace(count=count, best=best, flattened=flattened)
    return Verdict(after, over, better, met | lower)


def _met_by_slope(start: LinePoint, new: LinePoint, rule: WolfeConditions) -> jax.Array:
    """Hager and Zhang's approximate conditions, where the values differ by rounding only."""
    eps = jnp.asarray(10 * jnp.finfo(new.value.dtype).eps, new.value.dtype)
    alike = jnp.abs(new.value - start.value) <= eps * jnp.abs(start.value)
    return (
        alike
        & (new.slope >= rule.flatness * start.slope)
        & (new.slope <= (2 * rule.decrease - 1) * start.slope)
    )


def _chosen(condition: jax.Array, a: LineSearch | LinePoint, b: LineSearch | LinePoint) -> Any:
    return jax.tree.map(functools.partial(jnp.where, condition), a, b)


def _shrunk(search: LineSearch, new: LinePoint) -> LineSearch:
    """After a step to where the function is no number: a tenth of it, and never again so far."""
    best = search.best.rate
    short = best + 0.1 * (new.rate - best)
    return search._replace(rate=short, longest=0.5 * (short + new.rate), high=new.rate)


def _narrowed(search: LineSearch, new: LinePoint, line: jax.Array) -> LineSearch:
    start = search.start
    low_enough = new.value <= start.value + new.rate * line
    second = search.second | (low_enough & (new.slope >= 0))
    by_excess = ~second & (new.value <= search.best.value) & ~low_enough

    def excess(place: LinePoint) -> LinePoint:
        value, slope = place.value - place.rate * line, place.slope - line
        return _chosen(by_excess, LinePoint(place.rate, value, slope), place)

    a, b, c = excess(search.best), excess(search.other), excess(new)
    rate, bracketed = _trial(a, b, c, search.bracketed, search.low, search.high)
    worse, turned = c.value > a.value, c.slope * jnp.sign(a.slope) < 0
    other = _chosen(worse, new, _chosen(turned, search.best, search.other))
    best = _chosen(worse, search.best, new)
    width = jnp.abs(other.rate - best.rate)
    slow = bracketed & (width >= 0.66 * search.wider)
    rate = jnp.where(slow, best.rate + 0.5 * (other.rate - best.rate), rate)
    ends = jnp.minimum(best.rate, other.rate), jnp.maximum(best.rate, other.rate)
    low = jnp.where(bracketed, ends[0], rate + 1.1 * (rate - best.rate))
    high = jnp.where(bracketed, ends[1], rate + 4.0 * (rate - best.rate))
    return search._replace(
        rate=jnp.clip(rate, 0, search.longest),
        best=best,
        other=other,
        bracketed=bracketed,
        second=second,
        low=low,
        high=high,
        width=jnp.where(bracketed, width, search.width),
        wider=jnp.where(bracketed, search.width, search.wider),
    )


def _root(a: jax.Array, b: jax.Array, c: jax.Array) -> jax.Array:
    r"""The root :math:`\sqrt{a^2 - b c}` without overflow; 0 where there is none."""
    s = jnp.maximum(jnp.maximum(jnp.abs(a), jnp.abs(b)), jnp.abs(c))
    s = jnp.where(s > 0, s, jnp.ones_like(s))
    return s * jnp.sqrt(jnp.maximum(jnp.square(a / s) - (b / s) * (c / s), 0))


def _ratio(p: jax.Array, q: jax.Array) -> jax.Array:
    return jnp.where(q != 0, p / jnp.where(q != 0, q, jnp.ones_like(q)), jnp.zeros_like(p))


def _difference(theta: jax.Array, root: jax.Array, a: jax.Array, b: jax.Array) -> jax.Array:
    r"""Theta less the root :math:`\pm\sqrt{\theta^2 - a b}`, where these two are nearly equal too.

    So they are after a step that was too long by many orders: the difference, rounded, would say
    that the minimum is where the search began.
    """
    alike = theta * root > 0
    total = jnp.where(alike, theta + root, jnp.ones_like(theta))
    return jnp.where(alike, (a / total) * b, theta - root)


def _trial(
    a: LinePoint, b: LinePoint, c: LinePoint, bracketed: jax.Array, low: jax.Array, high: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The step to try next, from the best one `a`, the other end `b` and the newest one `c`."""
    step = c.rate - a.rate
    theta = _ratio(3 * (a.value - c.value), step) + a.slope + c.slope
    root = jnp.sign(step) * _root(theta, a.slope, c.slope)

    # 1: the value rose, so there is a minimum in between.
    r = _ratio(_difference(theta, -root, a.slope, c.slope) - a.slope, 2 * root - a.slope + c.slope)
    cubic = a.rate + r * step
    parabola = a.rate + 0.5 * _ratio(a.slope, _ratio(a.value - c.value, step) + a.slope) * step
    nearer = jnp.abs(cubic - a.rate) < jnp.abs(parabola - a.rate)
    rose = jnp.where(nearer, cubic, cubic + 0.5 * (parabola - cubic))

    # 2: the slope turned.
    r = _ratio(_difference(theta, root, a.slope, c.slope) - c.slope, -2 * root - c.slope + a.slope)
    cubic = c.rate - r * step
    secant = c.rate - _ratio(c.slope, c.slope - a.slope) * step
    farther = jnp.abs(cubic - c.rate) > jnp.abs(secant - c.rate)
    turned = jnp.where(farther, cubic, secant)

    # 3: the slope is flatter; the cubic may have no minimum in this direction.
    r = _ratio(_difference(theta, root, a.slope, c.slope) - c.slope, -2 * root + a.slope - c.slope)
    limit = jnp.where(step > 0, high, low)
    cubic = jnp.where((r < 0) & (root != 0), c.rate - r * step, limit)
    nearer = jnp.abs(cubic - c.rate) < jnp.abs(secant - c.rate)
    flatter = jnp.where(nearer == bracketed, cubic, secant)
    reach = c.rate + 0.66 * (b.rate - c.rate)
    within = jnp.where(step > 0, jnp.minimum(reach, flatter), jnp.maximum(reach, flatter))
    flatter = jnp.where(bracketed, within, jnp.clip(flatter, low, high))

    # 4: the slope is as steep as before.
    back = b.rate - c.rate
    theta = _ratio(3 * (c.value - b.value), back) + b.slope + c.slope
    root = jnp.sign(back) * _root(theta, b.slope, c.slope)
    r = _ratio(root - c.slope + theta, 2 * root - c.slope + b.slope)
    steep = jnp.where(bracketed, c.rate + r * back, limit)

    risen, turns = c.value > a.value, c.slope * jnp.sign(a.slope) < 0
    calmer = jnp.abs(c.slope) < jnp.abs(a.slope)
    rate = jnp.where(turns, turned, jnp.where(calmer, flatter, steep))
    return jnp.where(risen, rose, rate), bracketed | risen | turns

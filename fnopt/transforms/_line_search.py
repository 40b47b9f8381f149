"""The common line search: one trial step at a time towards the strong Wolfe conditions.

A caller evaluates the objective at `next_rate` and passes the result to `advance_search`, until the
search is done. Therefore the compiled loop contains the function only once.

Reference:
    Nocedal and Wright (2006), Numerical Optimization, algorithms 3.5 and 3.6; Hager and Zhang
    (2005), A new conjugate gradient method with guaranteed descent and an efficient line search.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import EmptyState, scalar_loss, select_tree
from fnopt.numerics import zero_count


def with_extras(value_fn: Callable[..., Any], extra_args: dict[str, Any]) -> Callable[[Any], Any]:
    """Bind the extra arguments in a function's signature; return a function of the params."""
    parameters = list(inspect.signature(value_fn).parameters.values())[1:]
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return functools.partial(value_fn, **extra_args)
    names = {p.name for p in parameters if p.kind is not p.POSITIONAL_ONLY}
    return functools.partial(value_fn, **{k: v for k, v in extra_args.items() if k in names})


def value_and_grad_from_state(value_fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return value and gradient from a line search's state, or compute them.

    A line search ends with the value and the gradient at the accepted point. For a deterministic
    function, the next step can reuse both.

    Args:
        value_fn: `value_fn(params, *args, **kwargs)`, a scalar.

    Returns:
        A function `(params, *args, state, **kwargs) -> (value, gradient)`, where `state` is the
        state of an optimizer with one line search that stores gradients.

    Raises:
        ValueError: If no line search, or more than one, stores value and gradient in the state.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, params = fnopt.lbfgs(), jnp.asarray([3.0, 4.0])
        >>> value_and_grad = fnopt.value_and_grad_from_state(lambda x: jnp.sum(x**2))
        >>> value, grad = value_and_grad(params, state=tx.init(params))
        >>> float(value), grad.tolist()
        (25.0, [6.0, 8.0])
    """

    def value_and_grad(params: Any, *args: Any, state: Any, **kwargs: Any) -> tuple[Any, Any]:
        value, grad = stored_value_and_grad(state)

        def computed() -> tuple[Any, Any]:
            new, slope = jax.value_and_grad(value_fn)(params, *args, **kwargs)
            # `cond` requires equal dtypes of both branches.
            as_known = jax.tree.map(lambda a, b: a.astype(b.dtype), slope, grad)
            return scalar_loss(new, value.dtype), as_known

        # Before the first search the stored value is infinite.
        known = jnp.isfinite(value)
        return jax.lax.cond(known, lambda: (value, grad), computed)

    return value_and_grad


def stored_value_and_grad(state: Any) -> tuple[jax.Array, Any]:
    """Return the value and the gradient that a line search stores in a state."""
    found = find_kept(state)
    if len(found) != 1:
        raise ValueError(
            f"value_and_grad_from_state: {len(found)} line searches keep value and gradient in "
            "this state, expected one (a backtracking one does with store_grad=True)."
        )
    return found[0]


def find_kept(state: Any) -> list[tuple[jax.Array, Any]]:
    """Return all values and gradients that line searches store in a state."""
    fields = getattr(state, "_fields", ())
    if "value" in fields and "grad" in fields:
        return [] if state.grad is None else [(state.value, state.grad)]
    if isinstance(state, EmptyState) or not isinstance(state, (tuple, list, dict)):
        return []
    parts = state.values() if isinstance(state, dict) else state
    return [pair for part in parts for pair in find_kept(part)]


# Part of an interval that an interpolated step keeps off its ends, twice that for a cubic: optax'
# zoom search, after Nocedal and Wright (2006), section 3.5.
_MARGIN = 0.1


class LinePoint(NamedTuple):
    """The value and the slope at a step length."""

    rate: jax.Array
    value: jax.Array
    slope: jax.Array


class LineSearchCriteria(NamedTuple):
    """The criteria of a search."""

    value: jax.Array  # the value at step size 0
    slope: jax.Array  # the slope at step size 0
    tol: jax.Array
    c1: jax.Array  # fraction of the predicted decrease
    c2: jax.Array  # fraction of the slope
    # Increase of the value within rounding error, below which the slope decides.
    rise: jax.Array | None
    factor: jax.Array  # growth factor of steps
    longest: jax.Array
    narrow: jax.Array  # width of an interval at which narrowing ends
    most: jax.Array  # largest number of evaluations
    # Whether an interpolated step too near an end of its interval is moved off that end. Otherwise
    # the middle is tried, as optax does, which shortens a far too long step by halves only.
    clips: bool = False

    def is_higher(self, new: LinePoint, other: LinePoint) -> jax.Array:
        """Whether a value is at least another value, beyond rounding error."""
        if self.rise is None:
            return new.value >= other.value
        return new.value > other.value + self.rise

    def decrease_error(self, point: LinePoint) -> jax.Array:
        """Excess of the value over the sufficient decrease; infinite for NaN."""
        error = point.value - self.value - self.c1 * point.rate * self.slope
        if self.rise is not None:
            by_slope = point.slope - (2 * self.c1 - 1) * self.slope
            rise = point.value - self.value - self.rise
            error = jnp.minimum(error, jnp.maximum(by_slope, rise))
        return _as_error(error)

    def curvature_error(self, point: LinePoint) -> jax.Array:
        """Excess of the slope over the curvature condition; infinite for NaN."""
        return _as_error(jnp.abs(point.slope) - self.c2 * jnp.abs(self.slope))


def _as_error(x: jax.Array) -> jax.Array:
    return jnp.where(jnp.isnan(x), jnp.asarray(jnp.inf, x.dtype), jnp.maximum(x, 0))


class LineSearch(NamedTuple):
    """The state of the search."""

    count: jax.Array  # int32
    guess: jax.Array  # the first step to try
    last: LinePoint
    low: LinePoint  # the better end of the interval
    high: LinePoint
    third: LinePoint  # an end of an earlier interval, for a cubic through three points
    bracketed: jax.Array
    safe: LinePoint  # the step to take; 0 if none is known to lower the value enough
    decrease_error: jax.Array
    curvature_error: jax.Array
    done: jax.Array


def start_search(value: jax.Array, slope: jax.Array, guess: jax.Array) -> LineSearch:
    """Return the search before its first trial step.

    Args:
        value: The value at step size 0.
        slope: The slope at step size 0.
        guess: The first trial step size.
    """
    start = LinePoint(jnp.zeros_like(guess), value, slope)
    inf, no = jnp.asarray(jnp.inf, guess.dtype), jnp.zeros((), bool)
    return LineSearch(zero_count(), guess, start, start, start, start, no, start, inf, inf, no)


def next_rate(search: LineSearch, criteria: LineSearchCriteria) -> jax.Array:
    """The next trial step size."""
    longer = jnp.where(search.count > 0, criteria.factor * search.last.rate, search.guess)
    longer = jnp.minimum(longer, criteria.longest)
    inside = _interpolate(search.low, search.high, search.third, criteria.clips)
    return jnp.where(search.bracketed, inside, longer)


def _interpolate(low: LinePoint, high: LinePoint, third: LinePoint, clips: bool) -> jax.Array:
    """Safeguarded minimum of a cubic, or of a parabola, inside an interval."""
    width = high.rate - low.rate
    cubic = (_least_of_cubic(low, high, third) - low.rate) / width
    parabola = (_least_of_parabola(low, high) - low.rate) / width
    middle = jnp.asarray(0.5, width.dtype)
    least, most = jnp.asarray(_MARGIN, width.dtype), jnp.asarray(1 - _MARGIN, width.dtype)
    known = ~jnp.isnan(parabola) if clips else (parabola > least) & (parabola < most)
    parabola = jnp.where(known, jnp.clip(parabola, least, most), middle)
    part = jnp.where((cubic > 2 * least) & (cubic < 1 - 2 * least), cubic, parabola)
    return low.rate + part * width


def _least_of_parabola(a: LinePoint, b: LinePoint) -> jax.Array:
    """The minimum of the parabola through two values, with the slope at the first."""
    d = b.rate - a.rate
    curvature = (b.value - a.value - a.slope * d) / jnp.square(d)
    return a.rate - a.slope / (2 * curvature)


def _least_of_cubic(a: LinePoint, b: LinePoint, c: LinePoint) -> jax.Array:
    """The minimum of the cubic through three values, with the slope at the first."""
    d, e = b.rate - a.rate, c.rate - a.rate
    over_d, over_e = b.value - a.value - a.slope * d, c.value - a.value - a.slope * e
    scale = jnp.square(d * e) * (d - e)
    third = (jnp.square(e) * over_d - jnp.square(d) * over_e) / scale
    second = (d**3 * over_e - e**3 * over_d) / scale
    root = jnp.sqrt(jnp.square(second) - 3 * third * a.slope)
    # This is the stationary point with positive curvature.
    return a.rate + (root - second) / (3 * third)


def advance_search(
    search: LineSearch, criteria: LineSearchCriteria, new: LinePoint
) -> tuple[LineSearch, jax.Array]:
    """Update the search by a trial step; also return whether the step is the best of all trials."""
    decrease, curvature = criteria.decrease_error(new), criteria.curvature_error(new)
    met = jnp.maximum(decrease, curvature) <= criteria.tol
    count = search.count + jnp.ones((), jnp.int32)
    widening = _widen(search, criteria, new, decrease)
    narrowing = _narrow(search, criteria, new, decrease)
    after = select_tree(search.bracketed, narrowing, widening)
    found = search.bracketed | widening.bracketed | met
    # Before bracketing, every step with sufficient decrease is longer than the previous steps.
    better = (decrease <= criteria.tol) & (~search.bracketed | (new.value < search.safe.value))
    safe = select_tree(better | met, new, search.safe)
    at_limit = ~found & (new.rate >= criteria.longest)
    width = jnp.abs(search.high.rate - search.low.rate)
    narrow = search.bracketed & (width <= criteria.narrow) & (safe.rate > 0)
    exhausted = count.astype(new.rate.dtype) >= criteria.most
    # After the last evaluation, any finite step that decreases the value is accepted.
    lower = (new.value < criteria.value) & jnp.isfinite(new.value) & jnp.isfinite(new.slope)
    last_resort = exhausted & ~(safe.rate > 0) & lower
    safe = select_tree(last_resort, new, safe)
    return after._replace(
        count=count,
        last=new,
        bracketed=found,
        safe=safe,
        decrease_error=decrease,
        curvature_error=curvature,
        done=met | at_limit | narrow | exhausted,
    ), better | met | last_resort


def _widen(
    search: LineSearch, criteria: LineSearchCriteria, new: LinePoint, decrease: jax.Array
) -> LineSearch:
    """Bracketing phase (algorithm 3.5): whether the last two steps enclose an acceptable step."""
    last = search.last
    # The first trial has no previous trial to compare with.
    too_far = (decrease > 0) | (criteria.is_higher(new, last) & (search.count > 0))
    past = (new.slope >= 0) & ~too_far
    low, high = select_tree(past, new, last), select_tree(past, last, new)
    return search._replace(low=low, high=high, third=low, bracketed=too_far | past)


def _narrow(
    search: LineSearch, criteria: LineSearchCriteria, new: LinePoint, decrease: jax.Array
) -> LineSearch:
    """Zoom phase (algorithm 3.6): the subinterval that contains an acceptable step."""
    low, high = search.low, search.high
    too_far = (decrease > 0) | criteria.is_higher(new, low)
    turned = ~too_far & (new.slope * (high.rate - low.rate) >= 0)
    return search._replace(
        low=select_tree(too_far, low, new),
        high=select_tree(too_far, new, select_tree(turned, low, high)),
        third=select_tree(too_far | turned, high, low),
    )

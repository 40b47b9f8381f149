"""Line search for the strong Wolfe conditions, one trial step per call.

A caller evaluates the objective at `next_rate` and passes the result to `advance_search`, until the
search is done. Therefore the compiled loop contains the objective only once.

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


def bind_extra_args(
    value_fn: Callable[..., Any], extra_args: dict[str, Any]
) -> Callable[[Any], Any]:
    """Bind the extra arguments that a function's signature names; return a function of params."""
    parameters = list(inspect.signature(value_fn).parameters.values())[1:]
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return functools.partial(value_fn, **extra_args)
    names = {p.name for p in parameters if p.kind is not p.POSITIONAL_ONLY}
    return functools.partial(value_fn, **{k: v for k, v in extra_args.items() if k in names})


def value_and_grad_from_state(value_fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that reads value and gradient from a line search's state if possible.

    A line search ends with the value and the gradient at the accepted point. For a deterministic
    objective, the next step can reuse both. Before the first step, both are computed.

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

        def recompute_value_and_grad() -> tuple[Any, Any]:
            new_value, new_grad = jax.value_and_grad(value_fn)(params, *args, **kwargs)
            # `cond` requires equal dtypes in both branches.
            new_grad = jax.tree.map(lambda a, b: a.astype(b.dtype), new_grad, grad)
            return scalar_loss(new_value, value.dtype), new_grad

        # Before the first search, the stored value is infinite.
        is_stored = jnp.isfinite(value)
        return jax.lax.cond(is_stored, lambda: (value, grad), recompute_value_and_grad)

    return value_and_grad


def stored_value_and_grad(state: Any) -> tuple[jax.Array, Any]:
    """Return the value and the gradient that a line search stores in a state."""
    pairs = find_values_and_grads(state)
    if len(pairs) != 1:
        raise ValueError(
            f"value_and_grad_from_state: got {len(pairs)} line searches that store value and "
            "gradient in this state, expected one. A backtracking line search needs "
            "store_grad=True."
        )
    return pairs[0]


def find_values_and_grads(state: Any) -> list[tuple[jax.Array, Any]]:
    """Find all pairs of value and gradient that line searches store in a state."""
    fields = getattr(state, "_fields", ())
    if "value" in fields and "grad" in fields:
        return [] if state.grad is None else [(state.value, state.grad)]
    if isinstance(state, EmptyState) or not isinstance(state, (tuple, list, dict)):
        return []
    parts = state.values() if isinstance(state, dict) else state
    return [pair for part in parts for pair in find_values_and_grads(part)]


# Smallest distance of an interpolated step from the ends of the interval, relative to the width of
# the interval; twice as much for a cubic. The value is from optax's zoom line search, after Nocedal
# and Wright (2006), section 3.5.
_MARGIN = 0.1


class LinePoint(NamedTuple):
    """Value and slope (derivative with respect to the step size) at a step size."""

    rate: jax.Array
    value: jax.Array
    slope: jax.Array


class LineSearchCriteria(NamedTuple):
    """Parameters of the Wolfe conditions, and limits of a search."""

    value: jax.Array  # the value at step size 0
    slope: jax.Array  # the slope at step size 0
    tol: jax.Array
    c1: jax.Array  # fraction of the predicted decrease
    c2: jax.Array  # fraction of the slope
    # Largest increase of the value that may be a rounding error. For smaller increases, slopes are
    # compared instead of values. None disables this rule.
    rise: jax.Array | None
    factor: jax.Array  # growth factor of step sizes
    longest: jax.Array  # largest step size
    narrow: jax.Array  # width of the interval at which the search ends
    most: jax.Array  # largest number of evaluations
    # Whether an interpolated step too close to an end of the interval is clipped to the margin.
    # Otherwise the midpoint is tried, as in optax, which only halves a step that is far too long.
    clips: bool = False

    def is_higher(self, new: LinePoint, other: LinePoint) -> jax.Array:
        """Whether the value isn't below another value, up to the tolerance `rise` if it is set."""
        if self.rise is None:
            return new.value >= other.value
        return new.value > other.value + self.rise

    def decrease_error(self, point: LinePoint) -> jax.Array:
        """Violation of the sufficient decrease condition; infinite for NaN."""
        error = point.value - self.value - self.c1 * point.rate * self.slope
        if self.rise is not None:
            # The approximate Wolfe condition of Hager and Zhang (2005): a condition on the slope
            # that is equivalent to sufficient decrease for a quadratic function.
            slope_error = point.slope - (2 * self.c1 - 1) * self.slope
            value_error = point.value - self.value - self.rise
            error = jnp.minimum(error, jnp.maximum(slope_error, value_error))
        return _positive_part(error)

    def curvature_error(self, point: LinePoint) -> jax.Array:
        """Violation of the curvature condition; infinite for NaN."""
        return _positive_part(jnp.abs(point.slope) - self.c2 * jnp.abs(self.slope))


def _positive_part(x: jax.Array) -> jax.Array:
    """Compute `max(x, 0)`; infinity for NaN, so that a NaN violates every condition."""
    return jnp.where(jnp.isnan(x), jnp.asarray(jnp.inf, x.dtype), jnp.maximum(x, 0))


class LineSearch(NamedTuple):
    """State of the search."""

    count: jax.Array  # number of evaluations, int32
    guess: jax.Array  # the first trial step size
    last: LinePoint  # the last trial
    low: LinePoint  # the end of the interval with the lower value
    high: LinePoint
    third: LinePoint  # an end of an earlier interval, for a cubic through three points
    bracketed: jax.Array  # whether the interval contains an acceptable step
    safe: LinePoint  # the best trial with sufficient decrease; step size 0 without such a trial
    decrease_error: jax.Array
    curvature_error: jax.Array
    done: jax.Array


def start_search(value: jax.Array, slope: jax.Array, guess: jax.Array) -> LineSearch:
    """Return the state of a search before the first trial step.

    Args:
        value: The value at step size 0.
        slope: The slope at step size 0.
        guess: The first trial step size.
    """
    start = LinePoint(jnp.zeros_like(guess), value, slope)
    inf, false = jnp.asarray(jnp.inf, guess.dtype), jnp.zeros((), bool)
    return LineSearch(
        zero_count(), guess, start, start, start, start, false, start, inf, inf, false
    )


def next_rate(search: LineSearch, criteria: LineSearchCriteria) -> jax.Array:
    """Compute the next trial step size."""
    larger_rate = jnp.where(search.count > 0, criteria.factor * search.last.rate, search.guess)
    larger_rate = jnp.minimum(larger_rate, criteria.longest)
    inner_rate = _interpolate(search.low, search.high, search.third, criteria.clips)
    return jnp.where(search.bracketed, inner_rate, larger_rate)


def _interpolate(low: LinePoint, high: LinePoint, third: LinePoint, clips: bool) -> jax.Array:
    """Minimize a cubic inside an interval, or a parabola if the minimizer is close to the ends."""
    width = high.rate - low.rate
    # Both minimizers relative to the interval: 0 at `low`, 1 at `high`.
    cubic = (_cubic_minimizer(low, high, third) - low.rate) / width
    parabola = (_parabola_minimizer(low, high) - low.rate) / width
    middle = jnp.asarray(0.5, width.dtype)
    lower, upper = jnp.asarray(_MARGIN, width.dtype), jnp.asarray(1 - _MARGIN, width.dtype)
    is_valid = ~jnp.isnan(parabola) if clips else (parabola > lower) & (parabola < upper)
    parabola = jnp.where(is_valid, jnp.clip(parabola, lower, upper), middle)
    fraction = jnp.where((cubic > 2 * lower) & (cubic < 1 - 2 * lower), cubic, parabola)
    return low.rate + fraction * width


def _parabola_minimizer(a: LinePoint, b: LinePoint) -> jax.Array:
    """Minimizer of the parabola through two values, with the slope at the first point."""
    d = b.rate - a.rate
    curvature = (b.value - a.value - a.slope * d) / jnp.square(d)
    return a.rate - a.slope / (2 * curvature)


def _cubic_minimizer(a: LinePoint, b: LinePoint, c: LinePoint) -> jax.Array:
    """Minimizer of the cubic through three values, with the slope at the first point."""
    # f(a + x) = f(a) + f'(a) x + quadratic x^2 + cubic x^3, from the two equations at x = d and e.
    d, e = b.rate - a.rate, c.rate - a.rate
    rest_d, rest_e = b.value - a.value - a.slope * d, c.value - a.value - a.slope * e
    denominator = jnp.square(d * e) * (d - e)
    cubic = (jnp.square(e) * rest_d - jnp.square(d) * rest_e) / denominator
    quadratic = (d**3 * rest_e - e**3 * rest_d) / denominator
    root = jnp.sqrt(jnp.square(quadratic) - 3 * cubic * a.slope)
    # The stationary point with positive curvature.
    return a.rate + (root - quadratic) / (3 * cubic)


def advance_search(
    search: LineSearch, criteria: LineSearchCriteria, new: LinePoint
) -> tuple[LineSearch, jax.Array]:
    """Update the search after a trial; also return whether the trial is the best of all trials."""
    decrease, curvature = criteria.decrease_error(new), criteria.curvature_error(new)
    is_acceptable = jnp.maximum(decrease, curvature) <= criteria.tol
    count = search.count + jnp.ones((), jnp.int32)
    widening = _widen(search, criteria, new, decrease)
    narrowing = _narrow(search, criteria, new, decrease)
    next_search = select_tree(search.bracketed, narrowing, widening)
    bracketed = search.bracketed | widening.bracketed | is_acceptable
    # Before bracketing, steps grow, and a longer step with sufficient decrease replaces a shorter
    # step. After bracketing, values are compared.
    is_better = (decrease <= criteria.tol) & (~search.bracketed | (new.value < search.safe.value))
    safe = select_tree(is_better | is_acceptable, new, search.safe)
    at_limit = ~bracketed & (new.rate >= criteria.longest)
    width = jnp.abs(search.high.rate - search.low.rate)
    is_narrow = search.bracketed & (width <= criteria.narrow) & (safe.rate > 0)
    is_last = count.astype(new.rate.dtype) >= criteria.most
    # After the last evaluation, any finite step that decreases the value is accepted.
    decreases = (new.value < criteria.value) & jnp.isfinite(new.value) & jnp.isfinite(new.slope)
    is_fallback = is_last & ~(safe.rate > 0) & decreases
    safe = select_tree(is_fallback, new, safe)
    return next_search._replace(
        count=count,
        last=new,
        bracketed=bracketed,
        safe=safe,
        decrease_error=decrease,
        curvature_error=curvature,
        done=is_acceptable | at_limit | is_narrow | is_last,
    ), is_better | is_acceptable | is_fallback


def _widen(
    search: LineSearch, criteria: LineSearchCriteria, new: LinePoint, decrease: jax.Array
) -> LineSearch:
    """Bracketing phase (algorithm 3.5): test whether the last two trials bracket a step."""
    last = search.last
    # In the first trial, `last` is step size 0 instead of a trial.
    is_too_long = (decrease > 0) | (criteria.is_higher(new, last) & (search.count > 0))
    is_past_minimum = (new.slope >= 0) & ~is_too_long
    low = select_tree(is_past_minimum, new, last)
    high = select_tree(is_past_minimum, last, new)
    return search._replace(low=low, high=high, third=low, bracketed=is_too_long | is_past_minimum)


def _narrow(
    search: LineSearch, criteria: LineSearchCriteria, new: LinePoint, decrease: jax.Array
) -> LineSearch:
    """Zoom phase (algorithm 3.6): select the subinterval that contains an acceptable step."""
    low, high = search.low, search.high
    is_too_long = (decrease > 0) | criteria.is_higher(new, low)
    # If the value increases from the trial towards `high`, `low` and the trial enclose a minimum.
    replaces_high = ~is_too_long & (new.slope * (high.rate - low.rate) >= 0)
    return search._replace(
        low=select_tree(is_too_long, low, new),
        high=select_tree(is_too_long, new, select_tree(replaces_high, low, high)),
        third=select_tree(is_too_long | replaces_high, high, low),
    )

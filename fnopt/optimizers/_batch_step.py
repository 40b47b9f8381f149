"""Damped steps from the quadratic model of a batch: step length, damping and status."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import Schedule, Status, Transformation, slot_zeros
from fnopt.numerics import safe_increment, zero_count
from fnopt.transforms import all_finite, real_dtype_of

# Fraction of the linear decrease in Armijo's condition (Nocedal and Wright, 2006, section 3.1).
_ARMIJO_FRACTION = 1e-4
# Gain ratio below which the damping is too small (Nocedal and Wright, 2006, algorithm 4.1).
_SMALL_GAIN = 0.25
# Factor of the damping after a rejected step: the first two factors of Nielsen (1999), 2 and 4, at
# once, because a rejected step wastes a batch.
REJECTION_FACTOR = 8.0
# Madsen, Nielsen and Tingleff (2004), section 3.2: a good initial damping for losses of order 1.
_DAMPING_OF_UNIT_LOSS = 1e-3


class DampingRule(NamedTuple):
    """Factors of the damping after an accepted step.

    Attributes:
        good: Gain ratio (actual over predicted decrease) above which a full step decreases the
            damping.
        shrink: Factor after a full step with a gain ratio above `good`.
        grow: Factor after a shortened step, or after a step with a small gain ratio.
    """

    good: float
    shrink: float
    grow: float


class GaussNewtonDescentState(NamedTuple):
    r"""State of `gauss_newton_descent` and `natural_gradient`.

    Attributes:
        count: :math:`t`, the number of steps, including rejected steps.
        damping: :math:`\lambda` of the next step, if the damping adapts.
        momentum: :math:`d_t`, the direction of the last step; `None` without momentum.
        status: A `Status`: `RUNNING`, or the reason why the last step was rejected.
        value: The loss before the last step.
        length: The step length, which multiplied the last direction; 0 for a rejected step.
    """

    count: jax.Array
    damping: jax.Array
    momentum: Any
    status: jax.Array
    value: jax.Array
    length: jax.Array


class BatchStep(NamedTuple):
    """A direction `d`, and the quadratic model of the loss along `d`.

    Attributes:
        direction: `d`, a tree like the params.
        slope: `g^T d`, with the gradient `g` of the loss.
        second_derivative: `d^T G d`, with the Gauss-Newton matrix `G`.
        value: The loss.
        is_defined: Whether the loss and its derivatives are finite.
        phi: The direction to store as momentum; None without momentum.
        noise: The rounding error of differences of the loss.
    """

    direction: Any
    slope: jax.Array
    second_derivative: jax.Array
    value: jax.Array
    is_defined: jax.Array
    phi: Any
    noise: jax.Array


StepOptions = Any
"""A `BatchStepDescent`, whose fields are read."""


def check_solver(options: Any, name: str) -> None:
    """Check the options of the linear solver in the space of the batch's residuals."""
    if options.rank != 0 and options.solver != "cg":
        raise ValueError(
            f"{name}: got rank = {options.rank} with solver = {options.solver!r}, expected "
            "solver='cg', because rank is the rank of the preconditioner of conjugate gradients."
        )


def step_dtype(params: Any) -> Any:
    """The dtype of the loss, the step length and the damping."""
    return real_dtype_of(params) if jax.tree.leaves(params) else jnp.float32


class BatchStepDescent(Transformation):
    """Base class of methods that take damped steps from the quadratic model of a batch."""

    needs_params = True

    damping_rule: ClassVar[DampingRule]

    # `self` is untyped, because the subclasses declare the option fields in different orders.
    def __post_init__(self: Any) -> None:
        super().__post_init__()
        check_solver(self, type(self).__name__)

    def init(self: Any, params: Any) -> GaussNewtonDescentState:
        """Return the initial state."""
        dtype = step_dtype(params)
        return GaussNewtonDescentState(
            zero_count(),
            # A copy, because donating the state would delete the buffer of `self.damping`.
            jnp.array(self.damping, dtype),
            None if self.momentum is None else slot_zeros(params),
            Status.RUNNING.array,
            *(jnp.zeros((), dtype) for _ in range(2)),
        )

    def _current_damping(self: Any, state: GaussNewtonDescentState) -> jax.Array:
        """The damping of this step."""
        if self.adaptive:
            return state.damping
        return jnp.asarray(self.damping).astype(state.damping.dtype)

    def _momentum_change(self: Any, state: GaussNewtonDescentState, J: Any) -> jax.Array | None:
        r"""Linear change of the batch's residuals or outputs by momentum, :math:`\mu J d_{t-1}`.

        `J` is a `fnopt.curvature.BatchJacobian`.
        """
        if self.momentum is None:
            return None
        vector = J.flatten(J.parts(J.mv(state.momentum)))
        return jnp.asarray(self.momentum).astype(vector.dtype) * vector

    def _batch_step(
        self: Any,
        state: GaussNewtonDescentState,
        solution: Any,
        slope: jax.Array,
        second_derivative: jax.Array,
        value: jax.Array,
        is_defined: jax.Array,
        noise: jax.Array,
    ) -> BatchStep:
        """Return the direction: momentum minus the solution of the damped linear system."""
        phi = jax.tree.map(jnp.negative, solution)
        bias_factor = jnp.ones((), value.dtype)
        if self.momentum is not None:
            mu = jnp.asarray(self.momentum)
            phi = jax.tree.map(lambda p, m: p + mu.astype(m.dtype) * m, phi, state.momentum)
            # Momentum starts at zero, so early directions are too short by sqrt(1 - mu^(2t)).
            power = mu.astype(value.dtype) ** (2 * (state.count + 1)).astype(value.dtype)
            bias_factor = jax.lax.rsqrt(1 - power)
        return BatchStep(
            jax.tree.map(lambda p: p * bias_factor.astype(p.dtype), phi),
            bias_factor * slope,
            bias_factor * bias_factor * second_derivative,
            value,
            is_defined,
            None if self.momentum is None else phi,
            noise,
        )

    def _take_step(
        self: Any,
        state: GaussNewtonDescentState,
        step: BatchStep,
        params: Any,
        value_at: Callable[[Any], jax.Array],
    ) -> tuple[Any, GaussNewtonDescentState]:
        """Search along the direction, accept or reject the step, and update the state."""
        is_finite = all_finite(step._replace(phi=None))
        rate = self.learning_rate
        rate = rate(state.count) if isinstance(rate, Schedule) else rate
        full_length = jnp.asarray(rate).astype(state.damping.dtype)
        length, new_value = _search_length(self, params, step, full_length, value_at)
        accepted = is_finite & (length > 0) & jnp.isfinite(new_value)
        # A rejected step is zero, which leaves the params bit-identical.
        update = zero_unless(accepted, _scale(length, step.direction), params)
        # The ratio of actual to predicted reduction (Nocedal and Wright, 2006, eq. 4.4).
        gain_ratio = (step.value - new_value) / -(
            length * step.slope + length * length * step.second_derivative / 2
        )
        damping = self._current_damping(state)
        return update, GaussNewtonDescentState(
            safe_increment(state.count),
            _next_damping(self, damping, accepted, gain_ratio, length < full_length),
            # A rejected step resets the momentum, because `phi` may be non-finite.
            None if step.phi is None else zero_unless(accepted, step.phi, step.phi),
            _status(step, is_finite, accepted, new_value),
            step.value,
            jnp.where(accepted, length, jnp.zeros_like(length)),
        )


def _search_length(
    options: StepOptions,
    params: Any,
    step: BatchStep,
    full_length: jax.Array,
    value_at: Callable[[Any], jax.Array],
) -> tuple[jax.Array, jax.Array]:
    """Halve the step until Armijo's condition is satisfied; return the length and the loss.

    The length is 0 if the condition isn't satisfied after `options.halvings` halvings.
    """
    if options.halvings == 0 and not options.adaptive:
        return full_length, step.value

    def value(length: jax.Array) -> jax.Array:
        def move_leaf(p: Any, u: jax.Array) -> jax.Array:
            return p + u.astype(jnp.result_type(p))

        return value_at(jax.tree.map(move_leaf, params, _scale(length, step.direction)))

    if options.halvings == 0:
        return full_length, value(full_length)

    def decreases_enough(length: jax.Array, new_value: jax.Array) -> jax.Array:
        # The comparison is False for NaN.
        return new_value <= step.value + _ARMIJO_FRACTION * length * step.slope + step.noise

    def is_unfinished(carry: Any) -> jax.Array:
        i, length, new_value = carry
        return (i < options.halvings) & ~decreases_enough(length, new_value)

    def halve(carry: Any) -> Any:
        i, length, _ = carry
        return i + 1, length / 2, value(length / 2)

    start = jnp.zeros((), jnp.int32), full_length, value(full_length)
    _, length, new_value = jax.lax.while_loop(is_unfinished, halve, start)
    # For a positive slope, Armijo's condition would allow an increase of the loss.
    is_sufficient = decreases_enough(length, new_value) & (step.slope < 0)
    return jnp.where(is_sufficient, length, jnp.zeros_like(length)), new_value


def _next_damping(
    options: StepOptions,
    damping: jax.Array,
    accepted: jax.Array,
    gain_ratio: jax.Array,
    is_shortened: jax.Array,
) -> jax.Array:
    """Update the damping by the rule of Levenberg and Marquardt."""
    if not options.adaptive:
        return damping
    good, shrink, grow = options.damping_rule
    # `~(x >= y)` is also True for NaN.
    is_poor = is_shortened | ~(gain_ratio >= _SMALL_GAIN)
    factor = jnp.where(~is_shortened & (gain_ratio > good), shrink, jnp.where(is_poor, grow, 1.0))
    factor = jnp.where(accepted, factor, REJECTION_FACTOR).astype(damping.dtype)
    # The initial damping determines the scale of the loss. The damping stays within a factor eps of
    # this scale, so it can recover after many good or bad steps.
    eps, first = jnp.finfo(damping.dtype).eps, jnp.asarray(options.damping).astype(damping.dtype)
    scale, one = first / _DAMPING_OF_UNIT_LOSS, jnp.ones_like(first)
    lower, upper = eps * jnp.minimum(scale, one), jnp.maximum(scale, one) / eps
    return jnp.clip(damping * factor, lower, upper)


def zero_unless(accepted: jax.Array, tree: Any, like: Any) -> Any:
    """Cast a tree to the dtypes of another tree; return zeros for a rejected step."""

    def select_leaf(x: jax.Array, p: Any) -> jax.Array:
        return jnp.where(accepted, x, jnp.zeros_like(x)).astype(jnp.result_type(p))

    return jax.tree.map(select_leaf, tree, like)


def _scale(length: jax.Array, direction: Any) -> Any:
    return jax.tree.map(lambda d: length.astype(d.dtype) * d, direction)


def _status(
    step: BatchStep, is_finite: jax.Array, accepted: jax.Array, new_value: jax.Array
) -> jax.Array:
    """Status of a step: `RUNNING` if accepted, otherwise the reason for the rejection."""
    nonfinite = Status.NONFINITE_STEP.array
    rejection = jnp.where(jnp.isfinite(new_value), Status.STALLED.array, nonfinite)
    # The decrease that the linear model predicts is below rounding error.
    is_converged = -step.slope <= step.noise
    rejection = jnp.where(is_converged, Status.CONVERGED_COST.array, rejection)
    failure = jnp.where(step.is_defined, nonfinite, Status.NONFINITE_START.array)
    status = jnp.where(is_finite, rejection, failure)
    return jnp.where(accepted, Status.RUNNING.array, status)

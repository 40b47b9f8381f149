"""Damped steps from the quadratic model of a batch: step length, damping and status."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import Schedule, Status, Transformation, slot_zeros
from fnopt.numerics import safe_increment, zero_count
from fnopt.transforms import all_finite, real_dtype_of

_DECREASE = 1e-4  # fraction of the linear decrease in Armijo's condition
_POOR = 0.25  # gain ratio below which the damping was too small: Nocedal and Wright, algorithm 4.1
_REFUSED = 8.0  # factor of the damping after a rejected step
_USUAL = 1e-3  # initial damping for losses of order 1


class DampingRule(NamedTuple):
    """The factors of the damping after an accepted step.

    Attributes:
        good: The gain ratio (actual over predicted decrease) above which the damping shrinks after
            a full step.
        shrink: The factor after a full step with a gain ratio above `good`.
        grow: The factor after a shortened step, or a step with a small gain ratio.
    """

    good: float
    shrink: float
    grow: float


class GaussNewtonDescentState(NamedTuple):
    """Step count, damping, last direction, and the outcome of the last step.

    Attributes:
        count: Number of updates that were made.
        damping: The damping of the next step, if the damping adapts.
        momentum: The direction of the last step, like the params; `None` without momentum.
        status: A `Status`: `RUNNING`, or the reason why the last step was rejected.
        value: The loss before the last step.
        length: The step length, the factor of the last direction; 0 for a rejected step.
    """

    count: jax.Array
    damping: jax.Array
    momentum: Any
    status: jax.Array
    value: jax.Array
    length: jax.Array


class BatchStep(NamedTuple):
    """A direction, and the exact quadratic model along it."""

    direction: Any  # a tree like the params
    slope: jax.Array  # g^T d
    second_derivative: jax.Array  # d^T G d
    value: jax.Array  # the loss
    known: jax.Array  # whether the loss and its derivatives are finite
    phi: Any  # the direction to store as momentum; None without momentum
    noise: jax.Array  # rounding error of differences of the loss


StepOptions = Any
"""A `BatchStepDescent`, of which only fields are read."""


def check_solver(options: Any, name: str) -> None:
    """Check the options of the linear solver in the space of the batch's residuals."""
    if options.rank != 0 and options.solver != "cg":
        raise ValueError(
            f"{name}: rank = {options.rank} with solver = {options.solver!r}, expected "
            "solver='cg': rank is the rank of the preconditioner of conjugate gradients."
        )


def step_dtype(params: Any) -> Any:
    """The dtype of losses, lengths and damping."""
    return real_dtype_of(params) if jax.tree.leaves(params) else jnp.float32


class BatchStepDescent(Transformation):
    """Base class of damped steps from the quadratic model of a batch."""

    needs_params = True

    damping_rule: ClassVar[DampingRule]

    # `self` is untyped, because the options are fields of the subclasses, in different orders.
    def __post_init__(self: Any) -> None:
        super().__post_init__()
        check_solver(self, type(self).__name__)

    def init(self: Any, params: Any) -> GaussNewtonDescentState:
        """Return the initial state."""
        dtype = step_dtype(params)
        return GaussNewtonDescentState(
            zero_count(),
            # Copy: donating the state would delete the buffer of `self.damping`.
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
        r"""The change of the batch's outputs or residuals by momentum, :math:`\mu J d_{t-1}`.

        `J` is a `fnopt.curvature.BatchJacobian`.
        """
        if self.momentum is None:
            return None
        vector = J.flatten(J.parts(J.mv(state.momentum)))
        return jnp.asarray(self.momentum).astype(vector.dtype) * vector

    def _batch_step(
        self: Any,
        state: GaussNewtonDescentState,
        pulled: Any,
        slope: jax.Array,
        second_derivative: jax.Array,
        value: jax.Array,
        known: jax.Array,
        noise: jax.Array,
    ) -> BatchStep:
        """The step along momentum minus `pulled`, with the quadratic model along the step."""
        phi = jax.tree.map(jnp.negative, pulled)
        longer = jnp.ones((), value.dtype)
        if self.momentum is not None:
            mu = jnp.asarray(self.momentum)
            phi = jax.tree.map(lambda p, m: p + mu.astype(m.dtype) * m, phi, state.momentum)
            # Momentum starts at zero, so the first directions are too short by sqrt(1 - mu^2t).
            power = mu.astype(value.dtype) ** (2 * (state.count + 1)).astype(value.dtype)
            longer = jax.lax.rsqrt(1 - power)
        return BatchStep(
            jax.tree.map(lambda p: p * longer.astype(p.dtype), phi),
            longer * slope,
            longer * longer * second_derivative,
            value,
            known,
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
        """Take the step along the direction if the loss decreases, and update the state."""
        finite = all_finite(step._replace(phi=None))
        rate = self.learning_rate
        rate = rate(state.count) if isinstance(rate, Schedule) else rate
        tried = jnp.asarray(rate).astype(state.damping.dtype)
        length, after = _search_length(self, params, step, tried, value_at)
        accepted = finite & (length > 0) & jnp.isfinite(after)
        # A rejected step is zero, which leaves the params bit-identical.
        moved = zero_unless(accepted, _scale(length, step.direction), params)
        # The ratio of actual to predicted reduction (Nocedal and Wright, 2006, eq. 4.4).
        gain = (step.value - after) / -(
            length * step.slope + length * length * step.second_derivative / 2
        )
        damping = self._current_damping(state)
        return moved, GaussNewtonDescentState(
            safe_increment(state.count),
            _next_damping(self, damping, accepted, gain, length < tried),
            None if step.phi is None else zero_unless(accepted, step.phi, step.phi),
            _status(step, finite, accepted, after),
            step.value,
            jnp.where(accepted, length, jnp.zeros_like(length)),
        )


def _search_length(
    options: StepOptions,
    params: Any,
    step: BatchStep,
    tried: jax.Array,
    value_at: Callable[[Any], jax.Array],
) -> tuple[jax.Array, jax.Array]:
    """Halve the step until Armijo's condition holds; return its length (or 0), and the loss."""
    if options.halvings == 0 and not options.adaptive:
        return tried, step.value

    def value(length: jax.Array) -> jax.Array:
        def move_leaf(p: Any, u: jax.Array) -> jax.Array:
            return p + u.astype(jnp.result_type(p))

        return value_at(jax.tree.map(move_leaf, params, _scale(length, step.direction)))

    if options.halvings == 0:
        return tried, value(tried)

    def decreases_enough(length: jax.Array, after: jax.Array) -> jax.Array:
        # The comparison is False for NaN.
        return after <= step.value + _DECREASE * length * step.slope + step.noise

    def is_unfinished(carry: Any) -> jax.Array:
        i, length, after = carry
        return (i < options.halvings) & ~decreases_enough(length, after)

    def halve(carry: Any) -> Any:
        i, length, _ = carry
        return i + 1, length / 2, value(length / 2)

    zero = jnp.zeros((), jnp.int32)
    _, length, after = jax.lax.while_loop(is_unfinished, halve, (zero, tried, value(tried)))
    # A step along an ascent direction is never accepted.
    found = decreases_enough(length, after) & (step.slope < 0)
    return jnp.where(found, length, jnp.zeros_like(length)), after


def _next_damping(
    options: StepOptions, damping: jax.Array, accepted: jax.Array, gain: jax.Array, cut: jax.Array
) -> jax.Array:
    if not options.adaptive:
        return damping
    good, shrink, grow = options.damping_rule
    poor = cut | ~(gain >= _POOR)
    factor = jnp.where(~cut & (gain > good), shrink, jnp.where(poor, grow, 1.0))
    factor = jnp.where(accepted, factor, _REFUSED).astype(damping.dtype)
    # The bounds are multiples of the initial damping, from which the damping can recover.
    eps, first = jnp.finfo(damping.dtype).eps, jnp.asarray(options.damping).astype(damping.dtype)
    unit, one = first / _USUAL, jnp.ones_like(first)
    least, most = eps * jnp.minimum(unit, one), jnp.maximum(unit, one) / eps
    return jnp.clip(damping * factor, least, most)


def zero_unless(accepted: jax.Array, tree: Any, like: Any) -> Any:
    """Cast a tree to the dtypes of another tree; return zeros if the step is rejected."""

    def select_leaf(x: jax.Array, p: Any) -> jax.Array:
        return jnp.where(accepted, x, jnp.zeros_like(x)).astype(jnp.result_type(p))

    return jax.tree.map(select_leaf, tree, like)


def _scale(length: jax.Array, direction: Any) -> Any:
    return jax.tree.map(lambda d: length.astype(d.dtype) * d, direction)


def _status(step: BatchStep, finite: jax.Array, accepted: jax.Array, after: jax.Array) -> jax.Array:
    """The status of a step: accepted, or the reason for the rejection."""
    code = lambda status: status.array  # noqa: E731
    # The linear model predicts a decrease below rounding error.
    flat = -step.slope <= step.noise
    refused = jnp.where(jnp.isfinite(after), code(Status.STALLED), code(Status.NONFINITE_STEP))
    refused = jnp.where(flat, code(Status.CONVERGED_COST), refused)
    started = jnp.where(step.known, code(Status.NONFINITE_STEP), code(Status.NONFINITE_START))
    failed = jnp.where(finite, refused, started)
    return jnp.where(accepted, code(Status.RUNNING), failed)

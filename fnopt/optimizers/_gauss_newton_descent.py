"""Gauss-Newton steps of networks, solved among the residuals of a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import (
    Scalar,
    ScalarOrSchedule,
    Schedule,
    Status,
    Transformation,
    compute_dtype,
    hyper,
    increment,
    matmul,
    real_dtype,
    slot_zeros,
    static,
    zero_count,
)

if TYPE_CHECKING:
    from fnopt.curvature import BatchJacobian

_DECREASE = 1e-4  # of what the slope promises: Armijo's condition
_SHRINK, _REFUSED = 1 / 4, 8.0  # what damping is multiplied by


class GaussNewtonDescentState(NamedTuple):
    """Steps so far, the damping, the last direction, how the last step went.

    Attributes:
        count: How many updates were made.
        damping: The damping of the next step, where it adapts.
        momentum: The direction of the last step, like the params; `None` without momentum.
        status: A `Status`: `RUNNING`, or why the last step was refused.
        value: The loss before the last step.
        length: The length of the last step in units of its direction; 0 for a refused step.
    """

    count: jax.Array
    damping: jax.Array
    momentum: Any
    status: jax.Array
    value: jax.Array
    length: jax.Array


class _Step(NamedTuple):
    """A direction, and the exact quadratic model along it."""

    direction: Any  # a tree like the params
    slope: jax.Array  # g^T d
    second_derivative: jax.Array  # ||J d||^2
    value: jax.Array  # the loss
    known: jax.Array  # whether residuals and Jacobian are finite


class gauss_newton_descent(Transformation):
    r"""Gauss-Newton (natural gradient) descent in the space of a batch's residuals.

    .. math:: f(\theta) = \frac{1}{2n} \sum_i \|r(\theta, x_i)\|^2, \qquad
        d = -J^\top (J J^\top + \lambda I)^{-1} r,

    with `r` and `J` divided by :math:`\sqrt n`. This is the step :math:`-(J^\top J + \lambda
    I)^{-1} \nabla f` of all params together, not of blocks or a diagonal; `J` is never formed
    (:func:`fnopt.curvature.batch_jacobian`). It costs two gradients or so, and a Cholesky
    factorisation with one row for every residual of the batch. With momentum :math:`\mu` it is
    SPRING,

    .. math:: d_t = \mu d_{t-1} - J^\top (J J^\top + \lambda I)^{-1} (r + \mu J d_{t-1}),

    the point closest to :math:`\mu d_{t-1}` that solves this batch, scaled by
    :math:`(1 - \mu^{2t})^{-1/2}` for the first steps.

    The step is halved until the loss of the batch falls as the slope promises. A step that doesn't
    is refused: the update is zero, the state says why, the damping grows, and the momentum starts
    anew. Where a whole step gains half of what the quadratic model promises, the damping shrinks.

    Like :func:`fnopt.levenberg_marquardt`, `update` ignores the gradients (they may be `None`) and
    needs the residuals: `update(None, state, params, residual_fn=fn, batch=batch)`, of ONE example.
    For several functions with batches of their own (the equation and its boundary) give sequences;
    the loss is the sum of theirs.

    Args:
        learning_rate: The first length that is tried, a number or a `Schedule`.
        damping: :math:`\lambda`; the first one, if it adapts.
        momentum: :math:`\mu`; `None` for none.
        adaptive: Whether the damping adapts.
        halvings: How often a step may be halved; 0 takes every finite step (ENGD-W and SPRING as
            they were published), without a further evaluation if the damping doesn't adapt.
        method: `'auto'`, `'ghost'` or `'formed'`, as in :func:`fnopt.curvature.batch_jacobian`.
        chunk_size: How many examples to take at once; `None` for all.

    Raises:
        ValueError: If a hyper-parameter is out of its range.

    Example:
        >>> import jax, jax.numpy as jnp, fnopt
        >>> def residual(params, example):
        ...     x, y = example
        ...     return params["a"] * jnp.exp(params["b"] * x) - y
        >>> x = jnp.linspace(0.0, 1.0, 5)
        >>> batch, params = (x, 2 * jnp.exp(-x)), {"a": jnp.ones(()), "b": jnp.zeros(())}
        >>> tx = fnopt.gauss_newton_descent()
        >>> state = tx.init(params)
        >>> @jax.jit
        ... def step(params, state):
        ...     updates, state = tx.update(None, state, params, residual_fn=residual, batch=batch)
        ...     return fnopt.apply_updates(params, updates), state
        >>> for _ in range(20):
        ...     params, state = step(params, state)
        >>> print(f"{params['a']:.3f} {params['b']:.3f}")
        2.000 -1.000

    Reference:
        Ren and Goldfarb, 2019, arXiv:1906.02353; Müller and Zeinhofer, 2023, arXiv:2302.13163;
        Goldshlager, Abrahamsen and Lin, 2024, arXiv:2401.10190 (SPRING); Guzmán-Cordero,
        Dangel, Goldshlager and Zeinhofer, 2025, arXiv:2505.12149 (ENGD-W).
    """

    needs_params = True

    learning_rate: ScalarOrSchedule = hyper(default=1.0, schedule=True)
    damping: Scalar = hyper(default=1e-3, gt=0)
    momentum: Scalar | None = hyper(default=None, ge=0, lt=1)
    adaptive: bool = static(default=True)
    halvings: int = static(default=10)
    method: str = static(default="auto")
    chunk_size: int | None = static(default=None)

    def init(self, params: Any) -> GaussNewtonDescentState:
        """No step so far."""
        dtype = _dtype(params)
        zero = jnp.zeros((), dtype)
        return GaussNewtonDescentState(
            zero_count(),
            jnp.asarray(self.damping).astype(dtype),
            None if self.momentum is None else slot_zeros(params),
            Status.RUNNING.array,
            zero,
            zero,
        )

    def update(
        self,
        updates: Any,
        state: GaussNewtonDescentState,
        params: Any = None,
        *,
        residual_fn: Callable[..., Any] | Any,
        batch: Any,
        **extra_args: Any,
    ) -> tuple[Any, GaussNewtonDescentState]:
        """A step that lowers the loss of the batch, or none."""
        from fnopt.curvature import batch_jacobian  # `import fnopt` needs no curvature

        del updates, extra_args
        J = batch_jacobian(residual_fn, method=self.method, chunk_size=self.chunk_size)
        J = J(params, batch)
        dtype = _dtype(params)
        damping = state.damping if self.adaptive else jnp.asarray(self.damping).astype(dtype)
        scale = jnp.concatenate([jnp.full(n * k, n**-0.5, dtype) for n, k in J.sizes])
        step, phi = self._direction(J, scale, damping, state)
        finite = _is_finite(step)
        tried = self._length(state.count, dtype)
        length, after = self._searched(J, scale, params, step, tried)
        taken = finite & (length > 0) & jnp.isfinite(after)
        moved = _scaled(step.direction, length, taken, params)
        gain = (step.value - after) / -(
            length * step.slope + length * length * step.second_derivative / 2
        )
        status = _status(step, finite, taken, after)
        return moved, GaussNewtonDescentState(
            increment(state.count),
            self._next_damping(damping, taken, gain, length < tried),
            None if phi is None else _kept(phi, taken),
            status,
            step.value,
            jnp.where(taken, length, jnp.zeros_like(length)),
        )

    def _length(self, count: jax.Array, dtype: Any) -> jax.Array:
        rate = self.learning_rate
        return jnp.asarray(rate(count) if isinstance(rate, Schedule) else rate).astype(dtype)

    def _direction(
        self, J: BatchJacobian, scale: jax.Array, damping: jax.Array, state: Any
    ) -> tuple[_Step, Any]:
        """The direction, and what momentum remembers of it."""
        r = scale * J.vector.astype(scale.dtype)
        K = scale[:, None] * J.gram().astype(scale.dtype) * scale[None, :]
        before, correction = jnp.zeros_like(r), jnp.ones((), r.dtype)
        if self.momentum is not None:
            mu = jnp.asarray(self.momentum).astype(r.dtype)
            before = mu * scale * J.flatten(J.parts(J.mv(state.momentum))).astype(r.dtype)
            steps = (2 * (state.count + 1)).astype(r.dtype)
            correction = jax.lax.rsqrt(1 - mu**steps)
        a = _solved(K, r + before, damping)
        change = before - matmul(K, a)
        phi = jax.tree.map(jnp.negative, J.rmv(scale * a))
        if self.momentum is not None:
            mu = jnp.asarray(self.momentum)
            phi = jax.tree.map(lambda p, m: p + mu.astype(m.dtype) * m, phi, state.momentum)
        direction = jax.tree.map(lambda p: p * correction.astype(p.dtype), phi)
        change = correction * change
        value = jnp.dot(r, r) / 2
        known = jnp.isfinite(value) & jnp.all(jnp.isfinite(jnp.diagonal(K)))
        step = _Step(direction, jnp.dot(r, change), jnp.dot(change, change), value, known)
        return step, (None if self.momentum is None else phi)

    def _searched(
        self, J: BatchJacobian, scale: jax.Array, params: Any, step: _Step, tried: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """The first of the halved lengths that lowers the loss enough, or 0; and the loss there."""
        if self.halvings == 0 and not self.adaptive:
            return tried, step.value

        def value(length: jax.Array) -> jax.Array:
            always = jnp.ones((), bool)
            there = _added(params, _scaled(step.direction, length, always, params))
            r = scale * J.vector_at(there).astype(scale.dtype)
            return jnp.dot(r, r) / 2

        if self.halvings == 0:
            return tried, value(tried)
        # Differences of losses below this are rounding.
        noise = 4 * jnp.finfo(tried.dtype).eps * step.value

        def enough(length: jax.Array, after: jax.Array) -> jax.Array:
            # False for NaN.
            return after <= step.value + _DECREASE * length * step.slope + noise

        def goes_on(carry: Any) -> jax.Array:
            i, length, after = carry
            return (i < self.halvings) & ~enough(length, after)

        def halve(carry: Any) -> Any:
            i, length, _ = carry
            return i + 1, length / 2, value(length / 2)

        zero = jnp.zeros((), jnp.int32)
        _, length, after = jax.lax.while_loop(goes_on, halve, (zero, tried, value(tried)))
        found = enough(length, after) & (step.slope < 0)
        return jnp.where(found, length, jnp.zeros_like(length)), after

    def _next_damping(
        self, damping: jax.Array, taken: jax.Array, gain: jax.Array, cut: jax.Array
    ) -> jax.Array:
        if not self.adaptive:
            return damping
        # A poor gain or a cut step doesn't make it grow: the search has found a good length,
        # and a batch that is drawn anew in each step would keep the damping where it began.
        factor = jnp.where(~cut & (gain > 0.5), _SHRINK, 1.0)
        factor = jnp.where(taken, factor, _REFUSED).astype(damping.dtype)
        # So that it comes back from where it was not needed.
        least = jnp.finfo(damping.dtype).eps
        return jnp.clip(damping * factor, least, 1 / least)


def _dtype(params: Any) -> Any:
    leaves = [jnp.result_type(p) for p in jax.tree.leaves(params)]
    return real_dtype(compute_dtype(*leaves)) if leaves else jnp.float32


def _solved(K: jax.Array, b: jax.Array, damping: jax.Array) -> jax.Array:
    """`(K + lam I)^-1 b`; the rounding of `K` must not make it indefinite."""
    least = 2 * jnp.finfo(K.dtype).eps * jnp.trace(K)
    lam = jnp.maximum(damping, least)
    # A matrix without any derivative has a zero trace: the damping is then all there is.
    factor = jax.scipy.linalg.cho_factor(K + lam * jnp.eye(K.shape[0], dtype=K.dtype), lower=True)
    return jax.scipy.linalg.cho_solve(factor, b)


def _is_finite(step: _Step) -> jax.Array:
    found = [jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(step)]
    return jnp.all(jnp.stack(found))


def _scaled(direction: Any, length: jax.Array, taken: jax.Array, params: Any) -> Any:
    def one(d: jax.Array, p: Any) -> jax.Array:
        u = length.astype(d.dtype) * d
        return jnp.where(taken, u, jnp.zeros_like(u)).astype(jnp.result_type(p))

    return jax.tree.map(one, direction, params)


def _added(params: Any, updates: Any) -> Any:
    return jax.tree.map(lambda p, u: p + u.astype(jnp.result_type(p)), params, updates)


def _kept(phi: Any, taken: jax.Array) -> Any:
    """The memory of a step; none of one that was refused."""
    return jax.tree.map(lambda p: jnp.where(taken, p, jnp.zeros_like(p)), phi)


def _status(step: _Step, finite: jax.Array, taken: jax.Array, after: jax.Array) -> jax.Array:
    """The status of the step."""
    code = lambda status: status.array  # noqa: E731
    flat = -step.slope <= 4 * jnp.finfo(step.slope.dtype).eps * step.value
    refused = jnp.where(jnp.isfinite(after), code(Status.STALLED), code(Status.NONFINITE_STEP))
    refused = jnp.where(flat, code(Status.CONVERGED_COST), refused)
    started = jnp.where(step.known, code(Status.NONFINITE_STEP), code(Status.NONFINITE_START))
    failed = jnp.where(finite, refused, started)
    return jnp.where(taken, code(Status.RUNNING), failed)

"""Line searches as transforms: strong Wolfe conditions, and backtracking (Armijo)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import Scalar, Slot, Transformation, hyper, scalar_loss, select_tree, static
from fnopt.errors import where
from fnopt.numerics import zero_count
from fnopt.sharding import while_loop
from fnopt.transforms._line_search import (
    LinePoint,
    LineSearch,
    LineSearchCriteria,
    advance_search,
    bind_extra_args,
    next_rate,
    start_search,
)
from fnopt.transforms._tree_algebra import (
    conjugate_tree,
    inner,
    numbers,
    params_after_step,
    real_dtype_of,
    scale_tree,
)


class ZoomLinesearchInfo(NamedTuple):
    """Result of a search: number of evaluations, and violations of the Wolfe conditions."""

    num_linesearch_steps: jax.Array  # int32
    decrease_error: jax.Array
    curvature_error: jax.Array


class ScaleByZoomLinesearchState(NamedTuple):
    """Last step size, and value, gradient and search info at the accepted point."""

    learning_rate: jax.Array
    value: jax.Array
    grad: Slot
    info: ZoomLinesearchInfo


class scale_by_zoom_linesearch(Transformation):
    r"""Find a step size that satisfies the strong Wolfe conditions.

    .. math:: f(\theta + \eta u) \le f(\theta) + c_1 \eta \langle u, \nabla f(\theta) \rangle +
              \epsilon, \qquad
              |\langle u, \nabla f(\theta + \eta u) \rangle| \le c_2 |\langle u, \nabla f(\theta)
              \rangle| + \epsilon

    Step sizes grow until they bracket such a step; interpolation then narrows the bracket. If
    values differ by less than :math:`c_3 |f|`, the search compares slopes instead of values,
    because rounding errors dominate the difference. If no step decreases the value, the update is
    zero.

    Put `scale_by_zoom_linesearch` after transforms that compute a descent direction, including the
    minus sign.

    Args:
        max_linesearch_steps: The maximum number of trial steps.
        max_learning_rate: The largest step size; by default unbounded.
        tol: :math:`\epsilon`.
        increase_factor: The growth factor of step sizes; with 1 or less, step sizes don't grow.
        slope_rtol: :math:`c_1`.
        curv_rtol: :math:`c_2`.
        approx_dec_rtol: :math:`c_3`; None disables the comparison of slopes.
        stepsize_precision: The bracket's width at which the search ends, if a trial decreased the
            value.
        initial_guess_strategy: `'keep'` starts with the last step size, `'one'` with a step size of
            1, for methods that approximate the Hessian.

    Raises:
        ValueError: If the strategy is neither `'keep'` nor `'one'`.

    Example:
        >>> import jax, jax.numpy as jnp, fnopt
        >>> def f(x): return jnp.sum(x**4)
        >>> tx = fnopt.chain(fnopt.sgd(1.0), fnopt.scale_by_zoom_linesearch(20))
        >>> x = jnp.asarray([1.0, 2.0])
        >>> value, grad = jax.value_and_grad(f)(x)
        >>> u, state = tx.update(grad, tx.init(x), x, value=value, grad=grad, value_fn=f)
        >>> bool(f(x + u) < value)
        True

    Reference:
        Nocedal and Wright (2006), Numerical Optimization, algorithms 3.5 and 3.6; Hager and Zhang
        (2006), Algorithm 851: CG_DESCENT.
    """

    max_linesearch_steps: Scalar = hyper(ge=1)
    max_learning_rate: Scalar | None = hyper(default=None, gt=0, infinite=True)
    tol: Scalar = hyper(default=0.0, ge=0)
    increase_factor: Scalar = hyper(default=2.0, gt=0)
    # Nocedal and Wright (2006), section 3.1: c1 = 1e-4, and c2 = 0.9 for Newton-like directions.
    slope_rtol: Scalar = hyper(default=1e-4, ge=0)
    curv_rtol: Scalar = hyper(default=0.9, ge=0)
    # The approximate Wolfe condition of Hager and Zhang (2005), with their epsilon.
    approx_dec_rtol: Scalar | None = 1e-6
    stepsize_precision: Scalar = hyper(default=1e-5, ge=0)
    initial_guess_strategy: str = static(default="keep", choices=("keep", "one"))

    needs_params = True

    def init(self, params: Any) -> ScaleByZoomLinesearchState:
        """Return a step size of 1, without value and gradient."""
        dtype = real_dtype_of(params)
        # Separate arrays, because a donated state may not contain an array twice.
        value, *errors = (jnp.full((), jnp.inf, dtype) for _ in range(3))
        info = ZoomLinesearchInfo(zero_count(), *errors)
        grad = jax.tree.map(jnp.zeros_like, params)
        return ScaleByZoomLinesearchState(jnp.ones((), dtype), value, grad, info)

    def update(
        self,
        updates: Any,
        state: ScaleByZoomLinesearchState,
        params: Any = None,
        *,
        value: Any,
        grad: Any,
        value_fn: Callable[..., Any],
        **extra_args: Any,
    ) -> tuple[Any, ScaleByZoomLinesearchState]:
        """Multiply the updates by the step size of the search.

        Args:
            updates: A descent direction.
            state: The state.
            params: The params.
            value: The value of the function at the params.
            grad: The gradient of the function at the params.
            value_fn: The function, which receives the extra arguments in its signature.
            **extra_args: Further arguments of `value_fn`.

        Returns:
            The scaled updates and the state.
        """
        fn, dtype = bind_extra_args(value_fn, extra_args), state.value.dtype
        grad = jax.tree.map(lambda g, like: jnp.asarray(g, like.dtype), grad, state.grad)
        criteria = self._criteria(scalar_loss(value, dtype), inner(grad, updates), dtype)
        value_and_grad = jax.value_and_grad(lambda p: scalar_loss(fn(p), dtype))

        def try_step(carry: tuple[LineSearch, Any]) -> tuple[LineSearch, Any]:
            search, safe_grad = carry
            rate = next_rate(search, criteria)
            # The trial point is rounded to the dtypes of the params, so that the stored value is
            # the value at the new params.
            new_value, gradient = value_and_grad(params_after_step(params, rate, updates))
            gradient = jax.tree.map(lambda g, like: g.astype(like.dtype), gradient, safe_grad)
            point = LinePoint(
                rate, new_value, inner(conjugate_tree(gradient), updates).astype(dtype)
            )
            search, is_better = advance_search(search, criteria, point)
            return search, select_tree(is_better, gradient, safe_grad)

        # After a failed search the last step size is 0, which can't grow, so 1 is tried instead.
        uses_last = (self.initial_guess_strategy == "keep") & (state.learning_rate > 0)
        guess = jnp.where(uses_last, state.learning_rate, jnp.ones((), dtype))
        start = start_search(criteria.value, criteria.slope, guess)
        end, gradient = while_loop(
            lambda carry: ~carry[0].done, try_step, (start, conjugate_tree(grad))
        )
        info = ZoomLinesearchInfo(end.count, end.decrease_error, end.curvature_error)
        rate = end.safe.rate
        return scale_tree(rate, updates), ScaleByZoomLinesearchState(
            rate, end.safe.value, gradient, info
        )

    def _criteria(self, value: jax.Array, slope: jax.Array, dtype: Any) -> LineSearchCriteria:
        h = numbers(self, dtype)
        max_rate = h.max_learning_rate
        if max_rate is None:
            max_rate = jnp.asarray(jnp.inf, dtype)
        return LineSearchCriteria(
            value=value,
            slope=slope.astype(dtype),
            tol=h.tol,
            c1=h.slope_rtol,
            c2=h.curv_rtol,
            rise=None if h.approx_dec_rtol is None else h.approx_dec_rtol * jnp.abs(value),
            factor=h.increase_factor,
            longest=max_rate,
            narrow=h.stepsize_precision,
            most=h.max_linesearch_steps,
        )


class BacktrackingLinesearchInfo(NamedTuple):
    """Result of a search: number of evaluations, and violation of the decrease condition."""

    num_linesearch_steps: jax.Array  # int32
    decrease_error: jax.Array


class ScaleByBacktrackingLinesearchState(NamedTuple):
    """Last trial step size, and value, gradient and search info at the end of the search."""

    learning_rate: jax.Array
    value: jax.Array
    grad: Slot | None
    info: BacktrackingLinesearchInfo


class _Trial(NamedTuple):
    rate: jax.Array
    value: jax.Array
    error: jax.Array
    count: jax.Array


class scale_by_backtracking_linesearch(Transformation):
    r"""Backtrack until the value decreases sufficiently (Armijo's criterion).

    .. math:: f(\theta + \eta u) \le f(\theta) + \delta\, |f(\theta)| + \eta\, c\, \langle u,
              \nabla f \rangle + \epsilon

    Put `scale_by_backtracking_linesearch` after transforms that compute a descent direction,
    including the minus sign, such as `fnopt.sgd(1.0)`. The first trial step size is
    `increase_factor` times the last step size. If no step decreases the value, the update is zero.

    Args:
        max_backtracking_steps: The maximum number of backtracking steps.
        slope_rtol: :math:`c`, the required fraction of the predicted decrease.
        decrease_factor: The factor that reduces a rejected step size.
        increase_factor: The ratio of the first trial step size to the last step size. Infinity
            always starts at `max_learning_rate`; with 1 or less, step sizes don't grow.
        max_learning_rate: The largest step size.
        atol: :math:`\epsilon`, an absolute tolerance.
        rtol: :math:`\delta`, a tolerance relative to the modulus of the value.
        store_grad: Whether to store the final gradient for :func:`fnopt.value_and_grad_from_state`.

    Example:
        >>> import jax, jax.numpy as jnp, fnopt
        >>> def f(x): return jnp.sum(x**4)
        >>> tx = fnopt.chain(fnopt.sgd(1.0), fnopt.scale_by_backtracking_linesearch(20))
        >>> x = jnp.asarray([1.0, 2.0])
        >>> value, grad = jax.value_and_grad(f)(x)
        >>> u, state = tx.update(grad, tx.init(x), x, value=value, grad=grad, value_fn=f)
        >>> bool(f(x + u) < value)
        True

    Reference:
        Vaswani et al. (2019), Painless stochastic gradient, arXiv:1905.09997; Nocedal and Wright
        (2006), Numerical Optimization, section 3.1.
    """

    max_backtracking_steps: Scalar = hyper(ge=0)
    slope_rtol: Scalar = hyper(default=1e-4, ge=0)
    # The defaults of optax.
    decrease_factor: Scalar = hyper(default=0.8, gt=0, lt=1)
    increase_factor: Scalar = hyper(default=1.5, gt=0, infinite=True)
    max_learning_rate: Scalar = hyper(default=1.0, gt=0, infinite=True)
    atol: Scalar = hyper(default=0.0, ge=0)
    rtol: Scalar = hyper(default=0.0, ge=0)
    store_grad: bool = static(default=False)

    needs_params = True

    def __post_init__(self) -> None:
        super().__post_init__()
        limits = self.increase_factor, self.max_learning_rate
        if all(isinstance(x, float) and math.isinf(x) for x in limits):
            raise ValueError(
                f"{where()}scale_by_backtracking_linesearch: increase_factor and max_learning_rate "
                "are infinite, expected at least one finite number, because the first trial step "
                "size must be finite."
            )

    def init(self, params: Any) -> ScaleByBacktrackingLinesearchState:
        """Return a step size of 1, without value and gradient."""
        dtype = real_dtype_of(params)
        value, error = (jnp.full((), jnp.inf, dtype) for _ in range(2))
        grad = jax.tree.map(jnp.zeros_like, params) if self.store_grad else None
        info = BacktrackingLinesearchInfo(zero_count(), error)
        return ScaleByBacktrackingLinesearchState(jnp.ones((), dtype), value, grad, info)

    def update(
        self,
        updates: Any,
        state: ScaleByBacktrackingLinesearchState,
        params: Any = None,
        *,
        value: Any,
        grad: Any,
        value_fn: Callable[..., Any],
        **extra_args: Any,
    ) -> tuple[Any, ScaleByBacktrackingLinesearchState]:
        """Multiply the updates by the step size; as in `scale_by_zoom_linesearch.update`."""
        fn, dtype = bind_extra_args(value_fn, extra_args), state.value.dtype
        h = jax.tree.map(lambda x: jnp.asarray(x, dtype), self)
        start, slope = scalar_loss(value, dtype), inner(grad, updates).astype(dtype)

        def error(rate: jax.Array, new: jax.Array) -> jax.Array:
            excess = new - start - h.rtol * jnp.abs(start) - h.slope_rtol * rate * slope
            # A step to NaN is rejected, because its violation is infinite.
            return jnp.where(jnp.isnan(excess), jnp.inf, jnp.maximum(excess, 0)).astype(dtype)

        def needs_step(trial: _Trial) -> jax.Array:
            is_rejected = ~(trial.error <= h.atol)
            # The first trial isn't a backtracking step, so the limit allows one more evaluation.
            return is_rejected & (trial.count.astype(dtype) <= h.max_backtracking_steps)

        def backtrack(trial: _Trial) -> _Trial:
            rate = jnp.where(trial.count > 0, h.decrease_factor * trial.rate, trial.rate)
            new_value = scalar_loss(fn(params_after_step(params, rate, updates)), dtype)
            return _Trial(
                rate, new_value, error(rate, new_value), trial.count + jnp.ones((), jnp.int32)
            )

        rate = h.increase_factor * state.learning_rate
        # Not `jnp.minimum`, because infinity times a step size of 0 is NaN.
        rate = jnp.where(rate <= h.max_learning_rate, rate, h.max_learning_rate)
        first = _Trial(rate, start, jnp.asarray(jnp.inf, dtype), zero_count())
        end = while_loop(needs_step, backtrack, first)
        is_accepted = (end.error <= h.atol) | (end.value < start)
        rate = jnp.where(is_accepted, end.rate, jnp.zeros_like(end.rate))
        new_grad = None
        if self.store_grad:
            gradient = jax.grad(lambda p: scalar_loss(fn(p), dtype))(
                params_after_step(params, rate, updates)
            )
            new_grad = jax.tree.map(lambda g, p: g.astype(p.dtype), gradient, state.grad)
        info = BacktrackingLinesearchInfo(end.count, end.error)
        new_value = jnp.where(is_accepted, end.value, start)
        # A rejected step size is stored, so that the next search continues from this step size.
        new_state = ScaleByBacktrackingLinesearchState(end.rate, new_value, new_grad, info)
        return scale_tree(rate, updates), new_state

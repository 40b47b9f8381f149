"""Backtracking line search (Armijo)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import Scalar, Slot, Transformation, hyper, scalar_loss, static, where, zero_count
from fnopt.sharding import while_loop
from fnopt.transforms._line_search import with_extras
from fnopt.transforms._tree_algebra import inner, params_after_step, real_dtype_of, scale_tree


class BacktrackingLinesearchInfo(NamedTuple):
    """The outcome of a search: evaluations made, and by how much the criterion is missed."""

    num_linesearch_steps: jax.Array  # int32
    decrease_error: jax.Array


class ScaleByBacktrackingLinesearchState(NamedTuple):
    """The last step that was tried, and what is known where the search ended."""

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
    r"""Shorten a step until the value falls enough (Armijo's criterion).

    .. math:: f(\theta + \eta u) \le f(\theta) + \delta\, |f(\theta)| + \eta\, c\, \langle u,
              \nabla f \rangle + \epsilon

    It stands behind transforms that make a descent direction, the minus sign included, such as
    `fnopt.sgd(1.0)`. The first step that is tried is `increase_factor` times the last one. If no
    step lowers the value, the update is zero.

    Args:
        max_backtracking_steps: How often a step is shortened at most.
        slope_rtol: :math:`c`, the part of the predicted decrease that is asked for.
        decrease_factor: The factor that shortens a refused step.
        increase_factor: The ratio of the next first step to the last step. Infinity
            starts at `max_learning_rate` always; with 1 or less, steps never grow.
        max_learning_rate: The longest step.
        atol: :math:`\epsilon`, an absolute tolerance.
        rtol: :math:`\delta`, a relative tolerance, of the modulus of the value.
        store_grad: Whether to keep the gradient at the end for
            :func:`fnopt.value_and_grad_from_state`.

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
    decrease_factor: Scalar = hyper(default=0.8, gt=0, lt=1)
    increase_factor: Scalar = hyper(default=1.5, gt=0, infinite=True)
    max_learning_rate: Scalar = hyper(default=1.0, gt=0, infinite=True)
    atol: Scalar = hyper(default=0.0, ge=0)
    rtol: Scalar = hyper(default=0.0, ge=0)
    store_grad: bool = static(default=False)

    needs_params = True

    def __post_init__(self) -> None:
        super().__post_init__()
        both = self.increase_factor, self.max_learning_rate
        if all(isinstance(x, float) and math.isinf(x) for x in both):
            raise ValueError(
                f"{where()}scale_by_backtracking_linesearch: increase_factor and max_learning_rate "
                "are infinite, expected one of them finite: the first step would have no length."
            )

    def init(self, params: Any) -> ScaleByBacktrackingLinesearchState:
        """A first step of 1, and nothing known."""
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
        """The updates times the step that was found.

        Args:
            updates: A descent direction.
            state: The state.
            params: The params.
            value: The value of the function at the params.
            grad: Its gradient there.
            value_fn: The function; it gets those of the other extra arguments that it names.
            **extra_args: Further arguments of `value_fn`.

        Returns:
            The scaled updates and the state.
        """
        fn, dtype = with_extras(value_fn, extra_args), state.value.dtype
        h = jax.tree.map(lambda x: jnp.asarray(x, dtype), self)
        start, slope = scalar_loss(value, dtype), inner(grad, updates).astype(dtype)

        def error(rate: jax.Array, new: jax.Array) -> jax.Array:
            over = new - start - h.rtol * jnp.abs(start) - h.slope_rtol * rate * slope
            return jnp.where(jnp.isnan(over), jnp.inf, jnp.maximum(over, 0)).astype(dtype)

        def unfinished(trial: _Trial) -> jax.Array:
            refused = ~(trial.error <= h.atol)
            return refused & (trial.count.astype(dtype) <= h.max_backtracking_steps)

        def shorten(trial: _Trial) -> _Trial:
            rate = jnp.where(trial.count > 0, h.decrease_factor * trial.rate, trial.rate)
            new = scalar_loss(fn(params_after_step(params, rate, updates)), dtype)
            return _Trial(rate, new, error(rate, new), trial.count + jnp.ones((), jnp.int32))

        grown = h.increase_factor * state.learning_rate
        # Infinity times a step that has underflowed is no number.
        first = jnp.where(grown <= h.max_learning_rate, grown, h.max_learning_rate)
        begin = _Trial(first, start, jnp.asarray(jnp.inf, dtype), zero_count())
        end = while_loop(unfinished, shorten, begin)
        usable = (end.error <= h.atol) | (end.value < start)
        rate = jnp.where(usable, end.rate, jnp.zeros_like(end.rate))
        kept = None
        if self.store_grad:
            gradient = jax.grad(lambda p: scalar_loss(fn(p), dtype))(
                params_after_step(params, rate, updates)
            )
            kept = jax.tree.map(lambda g, p: g.astype(p.dtype), gradient, state.grad)
        info = BacktrackingLinesearchInfo(end.count, end.error)
        new = jnp.where(usable, end.value, start)
        # A step that was refused is remembered, so that the next search goes on from it.
        after = ScaleByBacktrackingLinesearchState(end.rate, new, kept, info)
        return scale_tree(rate, updates), after

"""Line search for the strong Wolfe conditions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import Scalar, Slot, Transformation, hyper, scalar_loss, static, where, zero_count
from fnopt.sharding import while_loop
from fnopt.transforms._line_search import (
    LinePoint,
    LineSearch,
    LineSearchCriteria,
    advance_search,
    next_rate,
    start_search,
    with_extras,
)
from fnopt.transforms._tree_algebra import (
    chosen,
    conjugate_tree,
    inner,
    params_after_step,
    real_dtype_of,
    scale_tree,
)


class ZoomLinesearchInfo(NamedTuple):
    """The outcome of a search: evaluations made, and by how much the two criteria are missed."""

    num_linesearch_steps: jax.Array  # int32
    decrease_error: jax.Array
    curvature_error: jax.Array


class ScaleByZoomLinesearchState(NamedTuple):
    """The step of the last search, and what is known where it ended."""

    learning_rate: jax.Array
    value: jax.Array
    grad: Slot
    info: ZoomLinesearchInfo


class scale_by_zoom_linesearch(Transformation):
    r"""Find a step that meets the strong Wolfe conditions.

    .. math:: f(\theta + \eta u) \le f(\theta) + c_1 \eta \langle u, \nabla f(\theta) \rangle +
              \epsilon, \qquad
              |\langle u, \nabla f(\theta + \eta u) \rangle| \le c_2 |\langle u, \nabla f(\theta)
              \rangle| + \epsilon

    Steps grow until an interval must hold such a step; that is then narrowed by interpolation.
    Where values differ by less than :math:`c_3 |f|`, the slope decides instead of the value, which
    rounding has blurred. If no step lowers the value, the update is zero.

    It stands behind transforms that make a descent direction, the minus sign included.

    Args:
        max_linesearch_steps: Number of steps that are tried at most.
        max_learning_rate: The longest step; by default there is none.
        tol: :math:`\epsilon`.
        increase_factor: By which factor steps grow; with 1 or less they never do.
        slope_rtol: :math:`c_1`.
        curv_rtol: :math:`c_2`.
        approx_dec_rtol: :math:`c_3`; None leaves the rule out.
        stepsize_precision: The length of an interval that is narrow enough.
        initial_guess_strategy: `'keep'` starts with the last step, `'one'` with 1, which is right
            for methods that know the curvature.

    Raises:
        ValueError: If the strategy is neither of the two.

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
    slope_rtol: Scalar = hyper(default=1e-4, ge=0)
    curv_rtol: Scalar = hyper(default=0.9, ge=0)
    approx_dec_rtol: Scalar | None = 1e-6
    stepsize_precision: Scalar = hyper(default=1e-5, ge=0)
    initial_guess_strategy: str = static(default="keep")

    needs_params = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.initial_guess_strategy not in ("keep", "one"):
            raise ValueError(
                f"{where()}scale_by_zoom_linesearch: initial_guess_strategy = "
                f"{self.initial_guess_strategy!r}, expected 'keep' or 'one'."
            )

    def init(self, params: Any) -> ScaleByZoomLinesearchState:
        """A first step of 1, and nothing known."""
        dtype = real_dtype_of(params)
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
        grad = jax.tree.map(lambda g, like: jnp.asarray(g, like.dtype), grad, state.grad)
        criteria = self._criteria(scalar_loss(value, dtype), inner(grad, updates), dtype)
        differentiated = jax.value_and_grad(lambda p: scalar_loss(fn(p), dtype))

        def try_step(carry: tuple[LineSearch, Any]) -> tuple[LineSearch, Any]:
            search, safe_grad = carry
            rate = next_rate(search, criteria)
            new, gradient = differentiated(params_after_step(params, rate, updates))
            gradient = jax.tree.map(lambda g, like: g.astype(like.dtype), gradient, safe_grad)
            point = LinePoint(rate, new, inner(conjugate_tree(gradient), updates).astype(dtype))
            search, is_better = advance_search(search, criteria, point)
            return search, chosen(is_better, gradient, safe_grad)

        keeps = (self.initial_guess_strategy == "keep") & (state.learning_rate > 0)
        guess = jnp.where(keeps, state.learning_rate, jnp.ones((), dtype))
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
        def number(x: Any) -> jax.Array:
            return jnp.asarray(x, dtype)

        most, approximate = self.max_learning_rate, self.approx_dec_rtol
        return LineSearchCriteria(
            value=value,
            slope=slope.astype(dtype),
            tol=number(self.tol),
            c1=number(self.slope_rtol),
            c2=number(self.curv_rtol),
            rise=None if approximate is None else number(approximate) * jnp.abs(value),
            factor=number(self.increase_factor),
            longest=number(jnp.inf if most is None else most),
            narrow=number(self.stepsize_precision),
            most=number(self.max_linesearch_steps),
        )

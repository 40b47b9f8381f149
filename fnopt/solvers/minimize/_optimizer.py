"""`optimizer_steps`: an optimizer of fnopt or optax as a method of `minimize`."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt import tree
from fnopt.core import Transformation, apply_updates
from fnopt.sharding import cond
from fnopt.solvers.minimize._method import Direction, MinimizeMethod
from fnopt.solvers.minimize._problem import Evaluation, SmoothObjective
from fnopt.transforms import Chain, find_values_and_grads, scale_by_zoom_linesearch

EXTRA_ARGS = frozenset({"value", "grad", "value_fn", "obj_fn"})
"""The extra arguments that an optimizer receives from `minimize`."""

# Kelley (1999), Iterative Methods for Optimization, section 2.3.1: a relative gradient.
_RELATIVE_GRADIENT = 1e-5


class OptimizerMemory(NamedTuple):
    """The state of the optimizer, and the largest gradient entry so far."""

    state: Any
    max_gradient: jax.Array


class optimizer_steps(MinimizeMethod):
    """Take the steps of an optimizer, without an additional line search.

    The optimizer receives the value, the gradient and the function. The search converges when the
    largest entry of the gradient is below 1e-5 times the largest entry at any iterate. In float32
    the factor is the square root of the machine epsilon.

    Args:
        tx: The optimizer.

    Example:
        >>> import fnopt, jax.numpy as jnp
        >>> end = fnopt.minimize(lambda x: (x - 1.0) ** 2, 0.0, method=fnopt.adam(0.1))
        >>> round(float(end.params), 3)
        1.0
    """

    tx: Transformation

    monotone = False
    wolfe = None

    def begin(self, problem: SmoothObjective, point: Evaluation) -> OptimizerMemory:
        """Return the initial state of the optimizer."""
        max_gradient = jnp.max(jnp.abs(point.gradient), initial=0)
        return OptimizerMemory(self.tx.init(problem.unflatten(point.x)), max_gradient)

    def learn(
        self, memory: OptimizerMemory, before: Evaluation, after: Evaluation, fresh: jax.Array
    ) -> OptimizerMemory:
        """Update the largest gradient entry."""
        new = jnp.max(jnp.abs(after.gradient), initial=0)
        return memory._replace(max_gradient=jnp.maximum(memory.max_gradient, new))

    def direction(
        self, problem: SmoothObjective, point: Evaluation, memory: OptimizerMemory, fresh: jax.Array
    ) -> tuple[Direction, OptimizerMemory]:
        """Return the next step of the optimizer."""
        params, slope = problem.unflatten(point.x), problem.unflatten(point.gradient)

        # optax's line searches raise an error for extra arguments (`obj_fn`) that the function
        # doesn't declare.
        def value_fn(tree: Any, obj_fn: Any = None) -> Any:
            del obj_fn
            return problem.f(problem.flatten(tree))

        extra = {"value": point.value, "grad": slope, "value_fn": value_fn, "obj_fn": value_fn}
        updates, state = self.tx.update(slope, memory.state, params, **extra)
        # The carry of a `while_loop` keeps its dtypes, but an optimizer may promote its state.
        state = jax.tree.map(lambda a, b: jnp.asarray(a, jnp.result_type(b)), state, memory.state)
        step = problem.flatten(apply_updates(params, updates)) - point.x
        one, inf = jnp.ones_like(point.value), jnp.asarray(jnp.inf, point.value.dtype)
        return Direction(step, one, inf, inf), memory._replace(state=state)

    def is_stationary(
        self, problem: SmoothObjective, point: Evaluation, memory: OptimizerMemory
    ) -> jax.Array:
        """Whether the gradient is small relative to the largest gradient entry so far."""
        eps = float(jnp.finfo(point.x.dtype).eps)
        tolerance = jnp.asarray(max(_RELATIVE_GRADIENT, eps**0.5), point.x.dtype)
        return jnp.max(jnp.abs(point.gradient), initial=0) <= tolerance * memory.max_gradient

    def evaluate(
        self, problem: SmoothObjective, x: jax.Array, memory: OptimizerMemory
    ) -> Evaluation:
        """Reuse the last evaluation of the optimizer's line search, or evaluate the function."""
        if not self._ends_with_search:
            return problem.evaluate(x)
        ((value, slope),) = find_values_and_grads(memory.state)
        stored = Evaluation(x, value.astype(x.dtype), problem.flatten(slope))
        return cond(jnp.isfinite(value), lambda: stored, lambda: problem.evaluate(x))

    @property
    def _ends_with_search(self) -> bool:
        members = self.tx.transforms if isinstance(self.tx, Chain) else (self.tx,)
        return isinstance(members[-1], scale_by_zoom_linesearch)

    def evaluations(self, memory: OptimizerMemory) -> jax.Array:
        """Return the number of evaluations by line searches and by `evaluate`."""
        evaluated = jnp.ones((), jnp.int32)
        if self._ends_with_search:
            evaluated = jnp.where(
                jnp.isfinite(find_values_and_grads(memory.state)[0][0]), 0, evaluated
            )
        counts = tree.get_all_with_path(memory.state, "num_linesearch_steps")
        return sum((jnp.asarray(count, jnp.int32) for _, count in counts), start=evaluated)

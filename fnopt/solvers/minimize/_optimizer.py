"""Any optimizer of fnopt or optax as a method of `minimize`."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt import tree
from fnopt.core import Transformation, apply_updates
from fnopt.sharding import cond
from fnopt.solvers.minimize._method import Direction, MinimizeMethod
from fnopt.solvers.minimize._problem import Evaluation, SmoothObjective
from fnopt.transforms import Chain, find_kept, scale_by_zoom_linesearch

GIVEN = frozenset({"value", "grad", "value_fn", "obj_fn"})
"""The extra arguments that an optimizer receives from `minimize`."""

# Kelley (1999), Iterative Methods for Optimization, section 2.3.1: a relative gradient.
_RELATIVE_GRADIENT = 1e-5


class OptimizerMemory(NamedTuple):
    """The state of the optimizer, and the largest gradient norm so far."""

    state: Any
    steepest: jax.Array


class optimizer_steps(MinimizeMethod):
    """Take the steps of an optimizer, which receives value, gradient and function.

    The search converges when the gradient is below 1e-5 (or the square root of the machine epsilon,
    if that is larger) times the largest gradient of all steps.

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
        steepest = jnp.max(jnp.abs(point.gradient), initial=0)
        return OptimizerMemory(self.tx.init(problem.unflatten(point.x)), steepest)

    def learn(
        self, memory: OptimizerMemory, before: Evaluation, after: Evaluation, fresh: jax.Array
    ) -> OptimizerMemory:
        """Update the largest gradient."""
        steepest = jnp.maximum(memory.steepest, jnp.max(jnp.abs(after.gradient), initial=0))
        return memory._replace(steepest=steepest)

    def direction(
        self, problem: SmoothObjective, point: Evaluation, memory: OptimizerMemory, fresh: jax.Array
    ) -> tuple[Direction, OptimizerMemory]:
        """Return the next step of the optimizer."""
        params, slope = problem.unflatten(point.x), problem.unflatten(point.gradient)

        # optax's line searches refuse extra arguments that the function doesn't name.
        def value_fn(tree: Any, obj_fn: Any = None) -> Any:
            del obj_fn
            return problem.f(problem.flatten(tree))

        given = {"value": point.value, "grad": slope, "value_fn": value_fn, "obj_fn": value_fn}
        updates, state = self.tx.update(slope, memory.state, params, **given)
        state = jax.tree.map(lambda a, b: jnp.asarray(a, jnp.result_type(b)), state, memory.state)
        step = problem.flatten(apply_updates(params, updates)) - point.x
        one, inf = jnp.ones_like(point.value), jnp.asarray(jnp.inf, point.value.dtype)
        return Direction(step, one, inf, inf), memory._replace(state=state)

    def is_stationary(
        self, problem: SmoothObjective, point: Evaluation, memory: OptimizerMemory
    ) -> jax.Array:
        """Whether the gradient is small relative to the largest gradient so far."""
        eps = float(jnp.finfo(point.x.dtype).eps)
        part = jnp.asarray(max(_RELATIVE_GRADIENT, eps**0.5), point.x.dtype)
        return jnp.max(jnp.abs(point.gradient), initial=0) <= part * memory.steepest

    def evaluate(
        self, problem: SmoothObjective, x: jax.Array, memory: OptimizerMemory
    ) -> Evaluation:
        """Reuse the evaluation of a line search at the end of a chain, or evaluate the function."""
        if not self._ends_with_search:
            return problem.evaluate(x)
        ((value, slope),) = find_kept(memory.state)
        kept = Evaluation(x, value.astype(x.dtype), problem.flatten(slope))
        return cond(jnp.isfinite(value), lambda: kept, lambda: problem.evaluate(x))

    @property
    def _ends_with_search(self) -> bool:
        members = self.tx.transforms if isinstance(self.tx, Chain) else (self.tx,)
        return isinstance(members[-1], scale_by_zoom_linesearch)

    def evaluations(self, memory: OptimizerMemory) -> jax.Array:
        """Return the number of evaluations by line searches and by the driver."""
        own = jnp.ones((), jnp.int32)
        if self._ends_with_search:
            own = jnp.where(jnp.isfinite(find_kept(memory.state)[0][0]), 0, own)
        counts = tree.get_all_with_path(memory.state, "num_linesearch_steps")
        return sum((jnp.asarray(count, jnp.int32) for _, count in counts), start=own)

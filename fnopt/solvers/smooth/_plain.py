"""Any optimizer of the library, or of another one, as a method."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import Transformation, apply_updates
from fnopt.solvers.smooth._method import (
    FAILED,
    MOVED,
    Answer,
    Evaluation,
    MinimizeMethod,
    SmoothObjective,
    StepPlan,
)
from fnopt.transforms import Chain, find_kept, scale_by_zoom_linesearch

GIVEN = frozenset({"value", "grad", "value_fn", "obj_fn"})
"""The extra arguments that an optimizer gets here."""


class OptimizerRun(NamedTuple):
    """The state of the optimizer before and after its step."""

    before: Any
    after: Any


class plain(MinimizeMethod):
    """Takes every step of an optimizer; it gets value, gradient and function.

    Args:
        tx: The optimizer.

    Example:
        >>> import fnopt, jax.numpy as jnp
        >>> end = fnopt.minimize(lambda x: (x - 1.0) ** 2, 0.0, method=fnopt.adam(0.1))
        >>> round(float(end.params), 3)
        1.0
    """

    tx: Transformation

    scale_free = False
    monotone = False
    searches = False

    def begin(self, problem: SmoothObjective, point: Evaluation) -> OptimizerRun:
        """The optimizer's first state."""
        state = self.tx.init(problem.tree(point.x))
        return OptimizerRun(state, state)

    def plan(self, problem: SmoothObjective, point: Evaluation, state: OptimizerRun) -> StepPlan:
        """The optimizer's next step."""
        params, slope = problem.tree(point.x), problem.tree(point.gradient)

        # optax's line searches refuse extra arguments that the function doesn't name.
        def value_fn(tree: Any, obj_fn: Any = None) -> Any:
            del obj_fn
            return problem.f(problem.flat(tree))

        given = {"value": point.value, "grad": slope, "value_fn": value_fn, "obj_fn": value_fn}
        updates, after = self.tx.update(slope, state.after, params, **given)
        x = problem.flat(apply_updates(params, updates))
        after = jax.tree.map(lambda a, b: jnp.asarray(a, jnp.result_type(b)), after, state.after)
        # Nothing is known of what a step should gain: the value alone ends no run.
        predicted = jnp.asarray(jnp.inf, point.value.dtype)
        endless = jnp.full_like(point.x, jnp.inf)
        return StepPlan(x, predicted, endless, OptimizerRun(state.after, after))

    def respond(
        self, problem: SmoothObjective, point: Evaluation, state: OptimizerRun, there: Evaluation
    ) -> Answer:
        """The optimizer's point, if value and gradient are finite there."""
        verdict = jnp.where(there.is_finite(), MOVED, FAILED).astype(jnp.int32)
        return Answer(verdict, there.x, there, state)

    def evaluate(self, problem: SmoothObjective, x: jax.Array, state: OptimizerRun) -> Evaluation:
        """The evaluation that a line search at the end of a chain left, or a new evaluation."""
        if not self._ends_with_search:
            return problem.at(x)
        ((value, slope),) = find_kept(state.after)
        return Evaluation(x, value.astype(x.dtype), problem.flat(slope))

    @property
    def _ends_with_search(self) -> bool:
        members = self.tx.transforms if isinstance(self.tx, Chain) else (self.tx,)
        return isinstance(members[-1], scale_by_zoom_linesearch)

    def evaluations(self, state: OptimizerRun) -> jax.Array:
        """The number of evaluations: those of line searches, and the driver's own."""
        own = jnp.asarray(0 if self._ends_with_search else 1, jnp.int32)
        return sum(_search_steps(state.after), start=own)


def _search_steps(state: Any) -> list[jax.Array]:
    """The counts of evaluations that line searches keep in a state."""
    if not isinstance(state, (tuple, list, dict)):
        return []
    if "num_linesearch_steps" in getattr(state, "_fields", ()):
        info: Any = state
        return [jnp.asarray(info.num_linesearch_steps, jnp.int32)]
    parts = state.values() if isinstance(state, dict) else state
    return [count for part in parts for count in _search_steps(part)]

"""Count the FLOPs of a step by `fnopt.costs`, with periodic operations at their frequency.

`cost` counts the more expensive branch of every `cond`. The branch depends on the step counts of
the optimizer. Therefore the step is traced with concrete step counts, and every `cond` whose
condition follows from the step counts is replaced by its branch.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from benchmarks.training.methods import Method
from benchmarks.training.task import Task
from fnopt.costs import cost

COUNTS = ("count", "averaged")
INLINED = ("jit", "pjit", "custom_jvp_call", "custom_vjp_call")
EIGH = 9  # FLOPs / n^3 of a symmetric eigenvalue problem with vectors (Golub and Van Loan, 8.3)


class _Interpreter:
    """Interpreter of a jaxpr that computes results of concrete inputs and selects branches."""

    def __init__(self) -> None:
        self.eigh = 0.0  # FLOPs of eigenvalue problems, which `cost` can't count

    def run(self, jaxpr: Any, consts: Any, args: Any) -> list[Any]:
        values: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
        values.update(zip(jaxpr.invars, args, strict=True))

        def read(v: Any) -> Any:
            return v.val if isinstance(v, core.Literal) else values[v]

        for eqn in jaxpr.eqns:
            results = self._equation(eqn, [read(v) for v in eqn.invars])
            values.update(zip(eqn.outvars, results, strict=True))
        return [read(v) for v in jaxpr.outvars]

    def _equation(self, eqn: Any, inputs: list[Any]) -> list[Any]:
        concrete = not any(isinstance(v, jax.core.Tracer) for v in inputs)
        if eqn.primitive.name == "cond" and not isinstance(inputs[0], jax.core.Tracer):
            branches = eqn.params["branches"]
            branch = branches[min(max(int(inputs[0]), 0), len(branches) - 1)]
            return self.run(branch.jaxpr, branch.consts, inputs[1:])
        if eqn.primitive.name in INLINED:
            inner = eqn.params.get("jaxpr") or eqn.params["call_jaxpr"]
            return self.run(inner.jaxpr, inner.consts, inputs)
        if eqn.primitive.name == "eigh":
            *batch, n, _ = eqn.invars[0].aval.shape
            self.eigh += float(EIGH * n**3 * np.prod(batch))
        if concrete and all(v.aval.size < 1000 for v in eqn.outvars):
            with jax.ensure_compile_time_eval():
                results = eqn.primitive.bind(*inputs, **eqn.params)
        else:
            results = eqn.primitive.bind(*inputs, **eqn.params)
        return list(results) if eqn.primitive.multiple_results else [results]


def step_flops(task: Task, method: Method, trips: float) -> tuple[float, list[str]]:
    """Count the mean FLOPs per step over a period, and list the uncounted operations.

    Args:
        task: The task.
        method: The method.
        trips: Mean number of iterations of the method's while loops.
    """
    numbers = (method.first[1], method.second[1][0])
    params = jax.eval_shape(task.init, jax.random.key(0))
    item = jax.tree.map(lambda a: jnp.asarray(a[0]), task.draw(np.random.default_rng(0), 1))
    real = jax.jit(task.init)(jax.random.key(0))
    state = jax.jit(lambda p: method.make(task, *numbers).init(p))(real)
    leaves, structure = jax.tree.flatten((params, state, item))

    def step(*leaves: Any) -> Any:
        params, state, item = structure.unflatten(leaves)
        tx = method.make(task, *numbers)
        return jax.tree.leaves(method.step(task, tx, params, state, item))

    traced = jax.make_jaxpr(step)(*leaves)
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path((params, state, item))[0]]
    totals, unknown = [], set()
    for count in range(2 * method.period, 3 * method.period):
        flops, missing = _flops_at_count(traced, paths, leaves, count, trips)
        totals.append(flops)
        unknown |= missing
    return float(np.mean(totals)), sorted(unknown)


def _flops_at_count(
    traced: Any, paths: Any, leaves: Any, count: int, trips: float
) -> tuple[float, set[str]]:
    """Count the FLOPs of the step whose step counts have the value `count`."""
    concrete = {}
    for i, (path, leaf) in enumerate(zip(paths, leaves, strict=True)):
        in_state = getattr(path[0], "idx", None) == 1
        if in_state and leaf.dtype == jnp.int32 and leaf.ndim == 0:
            is_count = getattr(path[-1], "name", "") in COUNTS
            concrete[i] = np.int32(count) if is_count else np.asarray(leaf)
    interpreter = _Interpreter()

    def step(*traced_leaves: Any) -> Any:
        remaining = iter(traced_leaves)
        args = [concrete[i] if i in concrete else next(remaining) for i in range(len(leaves))]
        interpreter.eigh = 0.0
        return interpreter.run(traced.jaxpr, traced.consts, args)

    rest = [leaf for i, leaf in enumerate(leaves) if i not in concrete]
    # `trip_counts` takes integers, so interpolate between the neighboring integers.
    low = int(trips)
    lower = cost(step, trip_counts=low)(*rest)
    upper = cost(step, trip_counts=low + 1)(*rest).flops if trips > low else lower.flops
    total = lower.flops + (trips - low) * (upper - lower.flops)
    total += lower.transcendentals + interpreter.eigh
    return float(total), {u.name for u in lower.unknown} - {"eigh"}

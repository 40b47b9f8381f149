"""FLOPs of a step by `fnopt.costs`, with what happens only every few steps at its true rate.

The counter takes of a condition the branch that costs more. Which branch an optimizer takes
depends on its counts, so the step is traced with counts that are known, and the conditions that
follow from them are decided.
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
EIGH = 9  # n^3 of a symmetric eigenvalue problem with vectors (Golub and Van Loan, 8.3)


class _Decided:
    """A program in which all that follows from known integers is computed at once."""

    def __init__(self) -> None:
        self.eigh = 0.0  # the counter says that it doesn't know them

    def run(self, jaxpr: Any, consts: Any, args: Any) -> list[Any]:
        values: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
        values.update(zip(jaxpr.invars, args, strict=True))

        def read(v: Any) -> Any:
            return v.val if isinstance(v, core.Literal) else values[v]

        for eqn in jaxpr.eqns:
            found = self._equation(eqn, [read(v) for v in eqn.invars])
            values.update(zip(eqn.outvars, found, strict=True))
        return [read(v) for v in jaxpr.outvars]

    def _equation(self, eqn: Any, inputs: list[Any]) -> list[Any]:
        known = not any(isinstance(v, jax.core.Tracer) for v in inputs)
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
        if known and all(v.aval.size < 1000 for v in eqn.outvars):
            with jax.ensure_compile_time_eval():
                found = eqn.primitive.bind(*inputs, **eqn.params)
        else:
            found = eqn.primitive.bind(*inputs, **eqn.params)
        return list(found) if eqn.primitive.multiple_results else [found]


def step_flops(task: Task, method: Method, trips: float) -> tuple[float, list[str]]:
    """FLOPs of a step on average over a period, and what is not counted.

    Args:
        task: What is trained.
        method: With what.
        trips: How many iterations its while loops make on average.
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
    whole, unknown = [], set()
    for count in range(2 * method.period, 3 * method.period):
        flops, missing = _at(traced, paths, leaves, count, trips)
        whole.append(flops)
        unknown |= missing
    return float(np.mean(whole)), sorted(unknown)


def _at(traced: Any, paths: Any, leaves: Any, count: int, trips: float) -> tuple[float, set[str]]:
    """FLOPs of the step with this count."""
    known = {}
    for i, (path, leaf) in enumerate(zip(paths, leaves, strict=True)):
        in_state = getattr(path[0], "idx", None) == 1
        if in_state and leaf.dtype == jnp.int32 and leaf.ndim == 0:
            is_count = getattr(path[-1], "name", "") in COUNTS
            known[i] = np.int32(count) if is_count else np.asarray(leaf)
    decided = _Decided()

    def at(*rest: Any) -> Any:
        left = iter(rest)
        args = [known[i] if i in known else next(left) for i in range(len(leaves))]
        decided.eigh = 0.0
        return decided.run(traced.jaxpr, traced.consts, args)

    rest = [leaf for i, leaf in enumerate(leaves) if i not in known]
    low = int(trips)
    few = cost(at, trip_counts=low)(*rest)
    more = cost(at, trip_counts=low + 1)(*rest).flops if trips > low else few.flops
    total = few.flops + few.transcendentals + (trips - low) * (more - few.flops) + decided.eigh
    return float(total), {u.name for u in few.unknown} - {"eigh"}

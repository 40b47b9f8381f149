"""Whether the Jacobian that a user brings to a batch is that of the model."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fnopt.core import Status, matmul
from fnopt.curves.batched._data import Points, joined
from fnopt.curves.batched._model import jacobian_columns
from fnopt.curves.batched._task import Task
from fnopt.linear import norm
from fnopt.residuals import Derivative, FlatResidual
from fnopt.solvers import Problem, disagrees


def wrong_jacobian(task: Task, x0: jax.Array, shared: Points, own: Points) -> jax.Array | None:
    """Whether it disagrees with a derivative of the first fit's model at its start; None if none.

    A Jacobian that is wrong is so in every fit, and one look costs next to nothing.
    """
    if task.jacobian is None:
        return None
    given = task.jacobian
    points = joined(shared, jax.tree.map(lambda a: a[0], own))

    def at(x: jax.Array) -> jax.Array:
        return jnp.stack(jacobian_columns(given, tuple(x), points), axis=1)

    def r(x: jax.Array) -> jax.Array:
        return task.residual(tuple(x), points)

    def same(a: jax.Array) -> jax.Array:
        return a

    derivative = Derivative(at, same, matmul, lambda J, w: matmul(w, J))
    m, n = points.y.size, x0.shape[1]  # type: ignore[union-attr]
    flat = FlatResidual(r, same, same, same, m, n, derivative)
    return disagrees(Problem(flat), x0[0], norm(at(x0[0]), axis=0))


def doubted(status: jax.Array, wrong: jax.Array | None) -> jax.Array:
    """The status of all fits, if the Jacobian of the first isn't that of its residuals."""
    if wrong is None:
        return status
    failed = jnp.asarray([Status.NONFINITE_START, Status.ILL_POSED], jnp.int32)
    doubtful = wrong & ~jnp.any(status[:, None] == failed, axis=1)
    return jnp.where(doubtful, Status.WRONG_JACOBIAN.array, status)

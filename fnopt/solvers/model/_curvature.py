r"""The curvature that the linear model leaves out, learned from step to step.

It is kept as rows `W` below the Jacobian, with no residual there:

.. math:: A = \begin{pmatrix} J \\ W \end{pmatrix}, \quad b = \begin{pmatrix} r \\ 0
    \end{pmatrix}, \qquad A^T A = J^T J + W^T W, \quad A^T b = J^T r

So what solves the linear model sees :math:`W^T W`, and the gradient is as it was.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from fnopt.core import cond, matmul
from fnopt.linear import divide

ROWS = 3  # how many directions are remembered; more hardly help
_MUCH = 2.0  # times the linear model's own curvature


def no_curvature(k: int, x: jax.Array) -> jax.Array:
    """`k` rows of zeros."""
    return jnp.zeros((k, x.size), x.dtype)


def learned(
    rows: jax.Array, L: jax.Array, change: jax.Array, step: jax.Array, excess: jax.Array
) -> jax.Array:
    r"""The rows after an accepted step: a structured symmetric rank-one update.

    The Hessian of the cost is :math:`J^T J + S`, with :math:`S = \sum_i r_i \nabla^2 r_i`, which
    the linear model leaves out. Where residuals stay large and `S` is positive along a step, the
    model's steps are much too long, and go to and fro across the valley. How `S` acts on the last
    step `s` follows from Jacobians that are at hand:

    .. math:: y = (J_+ - J)^T r_+ \approx S s, \qquad
        W^T W \leftarrow W^T W + \frac{d\, d^T}{s^T d}, \quad d = y - W^T W s.

    `W` is first shrunk to the curvature that there is, :math:`\|W s\|^2 \le s^T y`, so that it
    vanishes together with the residuals. Only positive curvature is kept (the trust region looks
    after the other), and only as long as it is twice the model's own, over the step and
    exactly at its start: otherwise the model converges quickly by itself, and is better left alone.

    Args:
        rows: `W`, of shape `[k, n]`; the oldest row makes room for a new one.
        L: The triangle of the Jacobian where the step starts, :math:`L L^T = J^T J`.
        change: `y`, of shape `[n]`.
        step: `s`, of shape `[n]`.
        excess: :math:`v^T S v / \|J v\|^2` at the start, for the direction that the step takes.

    Returns:
        The rows, of shape `[k, n]`.

    Reference:
        Dennis, Gay and Welsch (1981), An adaptive nonlinear least-squares algorithm; Nocedal
        and Wright (2006), Numerical Optimization, sections 6.2 and 10.3.
    """
    much = jnp.asarray(_MUCH, step.dtype)
    update = functools.partial(_updated, rows, L, change, step, much)
    return cond(excess > much, update, lambda: jnp.zeros_like(rows))


def _updated(
    rows: jax.Array, L: jax.Array, y: jax.Array, step: jax.Array, much: jax.Array
) -> jax.Array:
    zero, one = jnp.zeros((), step.dtype), jnp.ones((), step.dtype)
    curvature, along = matmul(step, y), matmul(rows, step)
    known = jnp.sum(jnp.square(along))
    there = jnp.clip(curvature, zero, known)
    part = jnp.where(known > 0, divide(there, known), one)
    d = y - part * matmul(along, rows)
    rest = curvature - there  # s^T d
    significant = rest > jnp.finfo(step.dtype).eps * jnp.abs(curvature)
    row = d / jnp.sqrt(jnp.where(significant, rest, one))
    rows = jnp.sqrt(part) * rows
    newer = jnp.concatenate([rows[1:], jnp.where(jnp.isfinite(row), row, zero)[None]])
    own = jnp.sum(jnp.square(matmul(step, L)))
    large = curvature > much * own
    return jnp.where(large, jnp.where(significant, newer, rows), zero)

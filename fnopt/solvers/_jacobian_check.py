"""Whether a Jacobian that the user brings is that of the residuals."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fnopt.linear import norm
from fnopt.residuals import pushed
from fnopt.solvers._problem import Problem

_OFF = 0.02  # differences approximate a Jacobian better than that, even in float32
_ROUNDING = 100  # rounding units, of what a product is the sum of
_SEEN = 100  # times the rounding of a column: how large it is to count as much as the others


def disagrees(problem: Problem, x: jax.Array, columns: jax.Array) -> jax.Array | None:
    r"""Whether the user's Jacobian isn't the derivative of the residuals along a direction.

    .. math:: \| J v - \dot r \| > 0.02 \max(\| J v \|, \| \dot r \|)
        + \sum_j (100\, \epsilon\, \|J_j\| + \delta_j) |v_j|, \qquad
        \dot r = \tfrac{d}{dt} r(x + t v)

    What rounding makes of a column is taken as

    .. math:: \delta_j = 100\, \epsilon\, \frac{\|r\| + \sum_k \|J_k x_k\|}{\max(|x_j|, 1)},

    and all params move in the direction, each by as much of the residuals:
    :math:`|v_j| \approx 1 / \max(\|J_j\|, 100\, \delta_j)`. So one whose column was forgotten
    moves by what shows, if it matters. What isn't finite, or has no derivative (a table that is
    looked up), is no evidence.

    Args:
        problem: The problem.
        x: The point.
        columns: The norms of the columns of the user's Jacobian there.

    Returns:
        Whether it does. None if there is none, if the function can't be differentiated, or if the
        Jacobian is one that is gone through in chunks, for the sake of memory.
    """
    flat, given = problem.flat, problem.flat.derivative
    if given is None or given.gram is not None:
        return None
    r = flat.r(x)
    unit = jnp.asarray(_ROUNDING * float(jnp.finfo(x.dtype).eps), x.dtype)
    size = jnp.maximum(jnp.abs(x), jnp.ones_like(x))
    rounding = unit * (norm(r) + jnp.sum(columns * jnp.abs(x))) / size
    v = _uneven(x) / _positive(jnp.maximum(columns, jnp.asarray(_SEEN, x.dtype) * rounding))
    try:
        want = pushed(flat.r, (x,), (v,))[1]
    except Exception:  # a function without a derivative, whatever it says of that
        return None
    got = given.push(given.at(x), v)
    floor = jnp.sum((unit * columns + rounding) * jnp.abs(v))
    much = jnp.asarray(_OFF, x.dtype) * jnp.maximum(norm(want), norm(got)) + floor
    off = norm(want - got)
    return (norm(want) > 0) & jnp.isfinite(off) & (off > much)


def _uneven(x: jax.Array) -> jax.Array:
    """Numbers of either sign between 1 and 2, so that no two params make up for each other."""
    wave = jnp.sin(1 + jnp.arange(x.size, dtype=x.dtype) * jnp.asarray(2.4, x.dtype))
    return wave + jnp.where(wave < 0, -1, 1).astype(x.dtype)


def _positive(a: jax.Array) -> jax.Array:
    return jnp.where(a > 0, a, jnp.ones_like(a))

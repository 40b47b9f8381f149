"""Derivatives by the implicit function theorem where the matrix has no symmetry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fnopt.core import gathered, laid_like, matmul, nonzero
from fnopt.jacobians import forward_from_reverse, value_and_jacobian
from fnopt.residuals._implicit import pushed


def root_tangent(
    fn: Callable[[jax.Array, Any], jax.Array], x: jax.Array, data: Any, change: Any
) -> jax.Array:
    r"""The change of a root with the data.

    .. math:: \dot x = -J^{-1} \frac{\partial F}{\partial d}\, \dot d

    Args:
        fn: `fn(x, data)`, as many equations as `x` has numbers.
        x: The root, of shape `[n]`.
        data: A pytree of arrays.
        change: The change of the data, a tree like it.

    Returns:
        The change of the root, of shape `[n]`; linear in `change`.
    """
    _, moved = pushed(lambda d: fn(x, d), (data,), (change,))
    return -_square_solve(jax.jacfwd(fn)(x, data), moved)


def after_newton(
    fn: Callable[[jax.Array], jax.Array], x: jax.Array, steps: int = 10
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The end of Newton's steps, the first of them and the last.

    Near a root they shrink. Where equations vanish only at infinity, as `exp(x)` and `1 / x`
    do, the equations get small, too, but the steps don't.
    """

    def of(x: jax.Array) -> jax.Array:
        value, J = _linearised(fn, x)
        return -_square_solve(J, value)

    def step(_: Any, at: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        x, last = at
        return x + last, of(x + last)

    first = of(x)
    end, last = lax.fori_loop(0, steps, step, (x, first))
    return end, first, last


def off_flat_places(fn: Callable[[jax.Array], jax.Array], x: jax.Array) -> jax.Array:
    """The start, where a param that moves no equation there is moved a little: a column of zeros.

    No step would ever move it, as that of x in x^2 - 4 at 0. At a root nothing is moved.
    """
    left, J = _linearised(fn, x)
    still = jnp.all(J == 0, axis=0) & jnp.any(left != 0)
    size = jnp.max(jnp.abs(x), initial=0)
    size = jnp.where(x != 0, jnp.abs(x), jnp.where(size > 0, size, jnp.ones_like(size)))
    return jnp.where(laid_like(still, x), x + jnp.finfo(x.dtype).eps ** 0.5 * size, x)


def _linearised(fn: Callable[[jax.Array], jax.Array], x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The equations and their Jacobian, whose columns are for params that aren't divided."""
    return value_and_jacobian(lambda y: fn(laid_like(y, x)), gathered(x), x.size, "forward")


def projected_tangent(
    cost: Callable[[jax.Array, Any], jax.Array],
    projection: Callable[[jax.Array, Any], jax.Array],
    x: jax.Array,
    data: Any,
    change: Any,
    mode: str = "auto",
) -> jax.Array:
    r"""The change of a minimum over a convex set with the data.

    The minimum is where :math:`x = P(x - \lambda g(x, d), d)`, for any :math:`\lambda > 0`. So

    .. math:: \bigl(I - P' (I - \lambda H)\bigr)\, \dot x
              = \Bigl(\frac{\partial P}{\partial d} - \lambda P' \frac{\partial g}{\partial d}\Bigr)
              \dot d

    with the derivative :math:`P'` of the projection there. Directions in which nothing decides
    don't move.

    Args:
        cost: `cost(x, data)`, a scalar.
        projection: `projection(x, data)`, the nearest point of the set.
        x: The minimum, of shape `[n]`.
        data: A pytree of arrays.
        change: The change of the data, a tree like it.
        mode: `'reverse'` where the cost has reverse-mode derivatives only.

    Returns:
        The change of the minimum, of shape `[n]`; linear in `change`.
    """
    gradient = jax.grad(cost)
    if mode == "reverse":
        gradient = forward_from_reverse(gradient)
    H = jax.jacfwd(gradient)(x, data)
    most = lax.stop_gradient(jnp.max(jnp.abs(H), initial=0))
    rate = 1 / nonzero(most)

    def turn(x: jax.Array, data: Any) -> jax.Array:
        return projection(x - rate * gradient(x, data), data)

    _, moved = pushed(lambda d: turn(x, d), (data,), (change,))
    held = jnp.eye(x.size, dtype=x.dtype) - jax.jacfwd(turn)(x, data)
    return _square_solve(held, moved)


def _square_solve(A: jax.Array, b: jax.Array) -> jax.Array:
    """Solves with a square matrix; directions of which it says nothing get 0.

    Args:
        A: The matrix `[n, n]`.
        b: The right side `[n]`.

    Returns:
        The solution `[n]`, linear in `b`, with derivatives with respect to both.
    """
    if not A.size:
        return b
    A, b = gathered(A), gathered(b)
    still = lax.stop_gradient(A)
    # Rows and columns of the same size, so that units don't decide what is taken for zero.
    rows = nonzero(jnp.max(jnp.abs(still), axis=1))
    columns = nonzero(jnp.max(jnp.abs(still / rows[:, None]), axis=0))
    rounding = 10 * A.shape[0] * float(jnp.finfo(A.dtype).eps)
    inverse = jnp.linalg.pinv(still / rows[:, None] / columns, rtol=rounding)
    inverse = lax.stop_gradient(inverse / columns[:, None] / rows)

    def solve(_: Any, v: jax.Array) -> jax.Array:
        return matmul(inverse, v)

    def transposed(_: Any, v: jax.Array) -> jax.Array:
        return matmul(inverse.T, v)

    return lax.custom_linear_solve(lambda v: matmul(A, v), b, solve, transposed)

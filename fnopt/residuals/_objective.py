"""Derivatives of a scalar function of a vector."""

from __future__ import annotations

from collections.abc import Callable

import jax

from fnopt.jacobians import lacks_forward

Objective = Callable[[jax.Array], jax.Array]


def value_and_slope(f: Objective, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The value and the gradient at a point, in one pass.

    Args:
        f: The function, `[n]` to a scalar.
        x: The point.

    Returns:
        The value, and the gradient of shape `[n]`.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.residuals import value_and_slope
        >>> value_and_slope(lambda x: x @ x, jnp.asarray([1.0, 2.0]))[1]
        Array([2., 4.], dtype=float32)
    """
    return jax.value_and_grad(f)(x)


def hessian_product(f: Objective, x: jax.Array) -> Callable[[jax.Array], jax.Array]:
    """The products of the Hessian at a point with vectors; it is never formed.

    Args:
        f: The function, `[n]` to a scalar.
        x: The point.

    Returns:
        A linear function, `[n]` to `[n]`.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.residuals import hessian_product
        >>> hessian_product(lambda x: jnp.sum(x**3), jnp.asarray([1.0, 2.0]))(jnp.ones(2))
        Array([ 6., 12.], dtype=float32)
    """
    gradient = jax.grad(f)
    if lacks_forward(f, x):  # a Hessian is symmetric
        _, pull = jax.vjp(gradient, x)
        return lambda v: pull(v)[0]
    return jax.linearize(gradient, x)[1]

"""Derivatives of a residual function of a vector."""

from __future__ import annotations

from collections.abc import Callable

import jax

from fnopt.core import own
from fnopt.jacobians import value_and_jacobian
from fnopt.residuals._flat import FlatResidual


def linearise(
    flat: FlatResidual, x: jax.Array, mode: str = "auto", chunk_size: int | None = None
) -> tuple[jax.Array, jax.Array]:
    r"""The residual and its Jacobian :math:`J_{ij} = \partial r_i / \partial x_j` at a point.

    A Jacobian that the user brings is used; else it comes from the function.

    Args:
        flat: The residual function.
        x: The point, of shape `[n]`.
        mode: `'auto'`, `'forward'` or `'reverse'`.
        chunk_size: How many tangents or cotangents are pushed at once; see
            :func:`fnopt.jacobians.value_and_jacobian`.

    Returns:
        The residual of shape `[m]` and the Jacobian of shape `[m, n]`.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.residuals import flat_residual, linearise
        >>> x, flat = flat_residual(lambda x: x**2, jnp.asarray([1.0, 2.0]))
        >>> linearise(flat, x)[1]
        Array([[2., 0.],
               [0., 4.]], dtype=float32)
    """
    given = flat.derivative
    if given is not None:
        return flat.r(x), given.matrix(given.at(x))
    return value_and_jacobian(flat.r, own(x), flat.m, mode, chunk_size)


def curvature_along(r: Callable[[jax.Array], jax.Array], x: jax.Array, v: jax.Array) -> jax.Array:
    r"""The second derivative of the residual along a direction.

    .. math:: r''_{vv} = \frac{d^2}{dt^2} r(x + t v) \Big|_{t = 0}

    Args:
        r: A function from `[n]` to `[m]`; it must have a forward-mode derivative.
        x: The point, of shape `[n]`.
        v: The direction, of shape `[n]`.

    Returns:
        A vector of shape `[m]`.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.residuals import curvature_along
        >>> curvature_along(lambda x: x**3, jnp.asarray([2.0]), jnp.asarray([1.0]))
        Array([12.], dtype=float32)
    """
    x, v = own((x, v))

    def slope(y: jax.Array) -> jax.Array:
        return jax.jvp(r, (y,), (v,))[1]

    return jax.jvp(slope, (x,), (v,))[1]

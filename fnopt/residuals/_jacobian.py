"""Derivatives of a residual function of a vector."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from fnopt.core import where

MODES = ("auto", "forward", "reverse")


def jacobian_mode(mode: str, m: int, n: int) -> str:
    """Chooses forward (`n` tangents) or reverse (`m` cotangents): whichever is fewer.

    Args:
        mode: `'auto'`, `'forward'` or `'reverse'`.
        m: How many residuals there are.
        n: How many params there are.

    Returns:
        `'forward'` or `'reverse'`.

    Raises:
        ValueError: If `mode` is something else.

    Example:
        >>> from fnopt.residuals import jacobian_mode
        >>> jacobian_mode("auto", m=100, n=3), jacobian_mode("auto", m=8, n=1000)
        ('forward', 'reverse')
    """
    if mode not in MODES:
        raise ValueError(f"{where()}jacobian = {mode!r}, expected one of {MODES}.")
    if mode == "auto":
        return "forward" if n <= m else "reverse"
    return mode


def linearise(
    r: Callable[[jax.Array], jax.Array], x: jax.Array, m: int, mode: str = "auto"
) -> tuple[jax.Array, jax.Array]:
    r"""The residual and its Jacobian :math:`J_{ij} = \partial r_i / \partial x_j` at a point.

    The function is traced once: forward mode pushes the `n` unit tangents through its linear map,
    reverse mode pulls the `m` unit cotangents back.

    Args:
        r: A function from `[n]` to `[m]`.
        x: The point, of shape `[n]`.
        m: The number of residuals.
        mode: `'auto'`, `'forward'` or `'reverse'`.

    Returns:
        `r(x)` of shape `[m]` and the Jacobian of shape `[m, n]`.

    Raises:
        ValueError: If `mode` is none of the three.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.residuals import linearise
        >>> linearise(lambda x: x**2, jnp.asarray([1.0, 2.0]), m=2)[1]
        Array([[2., 0.],
               [0., 4.]], dtype=float32)
    """
    if jacobian_mode(mode, m, x.size) == "forward":
        value, push = jax.linearize(r, x)
        return value, jax.vmap(push, out_axes=1)(jnp.eye(x.size, dtype=x.dtype))
    value, pull = jax.vjp(r, x)
    return value, jax.vmap(lambda e: pull(e)[0])(jnp.eye(m, dtype=value.dtype))


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

    def slope(y: jax.Array) -> jax.Array:
        return jax.jvp(r, (y,), (v,))[1]

    return jax.jvp(slope, (x,), (v,))[1]

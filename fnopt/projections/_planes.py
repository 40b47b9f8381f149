"""Projections onto lines, planes, half-spaces, and solutions of linear equations."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import check_same_tree
from fnopt.errors import check_number
from fnopt.numerics import real_dtype
from fnopt.projections._trees import (
    check_floating,
    common_dtype,
    divide,
    inner,
    largest_modulus,
    restore_dtypes,
    safe_ratio,
    widen,
)


def _normal(name: str, x: Any, a: Any) -> tuple[Any, Any, jax.Array, jax.Array, Any]:
    """Return `x`, the normal divided by its largest entry, this entry, squared norm, and dtype."""
    check_floating(name, x, allow_complex=True)
    check_floating(name, a, allow_complex=True)
    check_same_tree(a, x, "leaves of a", "leaves of x")
    dtype = common_dtype(x, a)
    x, a = widen(x, dtype), widen(a, dtype)
    top = largest_modulus(a, real_dtype(dtype))
    a = divide(a, top)
    return x, a, top, inner(a, a, dtype), dtype


def projection_vector(x: Any, a: Any) -> Any:
    r"""Project onto the line through zero and a vector.

    .. math:: \frac{a^\top x}{a^\top a}\, a

    Args:
        x: A tree of floating (or complex) arrays, treated as one vector.
        a: A tree of the same structure and shapes. If `a` is zero, the result is zero.

    Returns:
        A tree like `x`.

    Raises:
        TypeError: If a leaf isn't a floating or complex array.
        ValueError: If the structure or a shape of `a` isn't that of `x`.

    Example:
        >>> from fnopt.projections import projection_vector
        >>> projection_vector(jnp.asarray([2.0, 1.0]), jnp.asarray([5.0, 0.0]))
        Array([2., 0.], dtype=float32)
    """
    w, a, _, square, dtype = _normal("projection_vector", x, a)
    factor = safe_ratio(inner(a, w, dtype), square)
    return restore_dtypes(jax.tree.map(lambda leaf: factor * leaf, a), x)


def _move_along(name: str, x: Any, a: Any, b: Any, is_halfspace: bool) -> Any:
    w, a, top, square, dtype = _normal(name, x, a)
    check_number(b, "b", name)
    b = jnp.asarray(b).astype(real_dtype(dtype)) / top
    step = safe_ratio(b - inner(a, w, dtype), square)
    # A point inside the half-space has a positive step, which becomes 0: the point doesn't move.
    step = jnp.minimum(step, 0) if is_halfspace else step
    return restore_dtypes(jax.tree.map(lambda p, q: p + step * q, w, a), x)


def projection_hyperplane(x: Any, a: Any, b: Any) -> Any:
    r"""Project onto the hyperplane :math:`a^\top y = b`.

    .. math:: x + \frac{b - a^\top x}{a^\top a}\, a

    Args:
        x: A tree of floating (or complex) arrays, treated as one vector.
        a: The normal, a tree of the same structure and shapes. If `a` is zero, `x` is returned.
        b: A number.

    Returns:
        A tree like `x`.

    Raises:
        TypeError: If a leaf isn't a floating or complex array.
        ValueError: If the structure or a shape of `a` isn't that of `x`.

    Example:
        >>> from fnopt.projections import projection_hyperplane
        >>> projection_hyperplane(jnp.asarray([2.0, 1.0]), jnp.asarray([1.0, 0.0]), 3.0)
        Array([3., 1.], dtype=float32)
    """
    return _move_along("projection_hyperplane", x, a, b, is_halfspace=False)


def projection_halfspace(x: Any, a: Any, b: Any) -> Any:
    r"""Project onto the half-space :math:`a^\top y \le b`.

    .. math:: x + \frac{\min(b - a^\top x, 0)}{a^\top a}\, a

    Args:
        x: A tree of floating (or complex) arrays, treated as one vector.
        a: The normal, a tree of the same structure and shapes. If `a` is zero, `x` is returned.
        b: A number.

    Returns:
        A tree like `x`; a point in the half-space is unchanged.

    Raises:
        TypeError: If a leaf isn't a floating or complex array.
        ValueError: If the structure or a shape of `a` isn't that of `x`.

    Example:
        >>> from fnopt.projections import projection_halfspace
        >>> projection_halfspace(jnp.asarray([2.0, 1.0]), jnp.asarray([1.0, 0.0]), 1.0)
        Array([1., 1.], dtype=float32)
    """
    return _move_along("projection_halfspace", x, a, b, is_halfspace=True)


def projection_affine_set(x: Any, A: Any, b: Any) -> jax.Array:
    r"""Project onto the solutions of linear equations :math:`A y = b`.

    .. math:: x - A^\top (A A^\top)^{-1} (A x - b)

    Args:
        x: A vector `[n]`.
        A: A matrix `[m, n]` of full row rank.
        b: A vector `[m]`.

    Returns:
        A vector like `x`.

    Raises:
        TypeError: If an argument isn't a real floating array.
        ValueError: If the shapes disagree, or there are more equations than unknowns.

    Example:
        >>> from fnopt.projections import projection_affine_set
        >>> x, A, b = jnp.asarray([1.0, 2.0]), jnp.asarray([[0.0, 2.0]]), jnp.asarray([8.0])
        >>> projection_affine_set(x, A, b)
        Array([1., 4.], dtype=float32)
    """
    check_floating("projection_affine_set", {"x": x, "A": A, "b": b})
    dtype = common_dtype(x, A, b)
    w, m, c = (jnp.asarray(value).astype(dtype) for value in (x, A, b))
    shapes = w.shape, m.shape, c.shape
    if m.ndim != 2 or shapes != (m.shape[1:], m.shape, m.shape[:1]) or m.shape[0] > m.shape[1]:
        raise ValueError(
            f"projection_affine_set: x has shape {w.shape}, A has shape {m.shape}, b has shape "
            f"{c.shape}, expected [n], [m, n] and [m] with m <= n."
        )
    # A QR factorization of A^T: the condition number of A A^T would be the square of A's.
    q, r = jnp.linalg.qr(m.T)
    with jax.default_matmul_precision("highest"):
        target = jax.scipy.linalg.solve_triangular(r.T, c, lower=True)
        return (w + q @ (target - q.T @ w)).astype(jnp.asarray(x).dtype)

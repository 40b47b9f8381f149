"""Steps in the basis of the right singular vectors."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fnopt.linear._singular import SingularFactors, determined


def divide(a: jax.Array, b: jax.Array) -> jax.Array:
    """`a / b` where `b > 0`, and 0 elsewhere."""
    return jnp.where(b > 0, a / jnp.where(b > 0, b, jnp.ones_like(b)), jnp.zeros_like(a))


def damped_solution(factors: SingularFactors, lam: jax.Array) -> jax.Array:
    r"""The damped step in the singular basis.

    .. math:: z = \frac{s\, b}{s^2 + \lambda}, \qquad
        -V z = \arg\min_p \tfrac12 \|A p + r\|^2 + \tfrac{\lambda}{2} \|p\|^2

    Args:
        factors: The factors of `A` and `r`.
        lam: The damping, a scalar >= 0.

    Returns:
        The coefficients `z`, of shape `[k]`; directions that nothing determines get 0.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.linear import damped_solution, singular_factors
        >>> factors = singular_factors(2 * jnp.eye(2), jnp.ones(2))
        >>> jnp.abs(factors.Vt.T @ damped_solution(factors, jnp.float32(1)))
        Array([0.4, 0.4], dtype=float32)
    """
    return divide(factors.s * factors.b, jnp.square(factors.s) + lam)


def gauss_newton_solution(factors: SingularFactors, m: int) -> jax.Array:
    r"""The undamped step of least norm in the singular basis.

    .. math:: z_i = b_i / s_i \text{ where } s_i > \max(m, n)\, \epsilon\, s_1 \text{, else } 0

    Args:
        factors: The factors of `A` and `r`.
        m: The number of rows of `A`.

    Returns:
        The coefficients `z`, of shape `[k]`.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.linear import gauss_newton_solution, singular_factors
        >>> factors = singular_factors(jnp.diag(jnp.asarray([2.0, 0.0])), jnp.ones(2))
        >>> jnp.abs(gauss_newton_solution(factors, 2))
        Array([0.5, 0. ], dtype=float32)
    """
    return jnp.where(
        determined(factors, m), divide(factors.b, factors.s), jnp.zeros_like(factors.b)
    )


def damped_gram_solution(factors: SingularFactors, g: jax.Array, lam: jax.Array) -> jax.Array:
    r"""Solves the damped normal equations for another right-hand side.

    .. math:: (A^T A + \lambda I)\, p = g \quad\text{for } g \text{ in the row space of } A

    Args:
        factors: The factors of `A`.
        g: The right-hand side, of shape `[n]`.
        lam: The damping, a scalar >= 0.

    Returns:
        The solution `p`, of shape `[n]`; directions that nothing determines get 0.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.linear import damped_gram_solution, singular_factors
        >>> factors = singular_factors(2 * jnp.eye(2), jnp.ones(2))
        >>> damped_gram_solution(factors, jnp.ones(2), jnp.float32(1))
        Array([0.2, 0.2], dtype=float32)
    """
    return factors.Vt.T @ divide(factors.Vt @ g, jnp.square(factors.s) + lam)

"""Normalization of updates by their global norm."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fnopt.core import (
    EmptyState,
    Scalar,
    Transformation,
    add_epsilon,
    global_norm,
    hyper,
    map_leaves,
    range_divisor,
)
from fnopt.sharding import sharded_full_like


def divide_by_norm(x: jax.Array, length: jax.Array) -> jax.Array:
    """`x / length` for any length; `x` where that is zero.

    In two divisions: a float32 length beyond 2^126 has a reciprocal that is subnormal, and zero.
    """
    unit = range_divisor(length)
    rest = length / unit
    return x / unit / lax.select(rest > 0, rest, sharded_full_like(rest, 1))


class normalize_by_update_norm(Transformation):
    r"""Divide all updates by their joint norm.

    .. math:: u = \frac{c}{\lVert g \rVert_2 + \epsilon}\, g

    Zero updates stay zero, without an epsilon too.

    Args:
        scale_factor: :math:`c`, the length of the result.
        eps: :math:`\epsilon`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, g = fnopt.normalize_by_update_norm(eps=0.0), {"w": jnp.asarray([3.0, 4.0])}
        >>> tx.update(g, tx.init(g))[0]["w"].round(3)
        Array([0.6, 0.8], dtype=float32)
    """

    scale_factor: Scalar = hyper(default=1.0)
    eps: Scalar = hyper(default=1e-6, ge=0)

    def update(
        self, updates: Any, state: EmptyState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, EmptyState]:
        """The updates times one factor."""
        norm = global_norm(updates)
        length = add_epsilon(norm, jnp.asarray(self.eps, norm.dtype))
        scale_factor = jnp.asarray(self.scale_factor, norm.dtype)

        def scale_leaf(h: Any, g: Any) -> Any:
            # The quotient first: the factor alone overflows for gradients of 1e-40.
            return divide_by_norm(g, h["length"]) * h["factor"]

        numbers = {"length": length, "factor": scale_factor}
        return map_leaves(scale_leaf, updates, hyper=numbers), state

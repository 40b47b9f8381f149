"""Derivatives of many small residual functions at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def linearise_lanes(
    r: Callable[..., jax.Array], x: tuple[jax.Array, ...], data: Any
) -> tuple[list[jax.Array], jax.Array]:
    r"""The residuals of many problems, and the columns of their Jacobians.

    Problems lie along the last axis. That is where vector instructions want them: a model in
    plain arithmetic becomes the same arithmetic on whole rows of problems.

    Args:
        r: The residual of one problem, `r(x, data)`: from a tuple of `n` scalars and the
            problem's data to `[m]`.
        x: The points: `n` arrays of shape `[lanes]`.
        data: A pytree of arrays whose last axis is the lanes.

    Returns:
        `n` columns and the residual, each of shape `[m, lanes]`.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.residuals import linearise_lanes
        >>> columns, r = linearise_lanes(
        ...     lambda x, t: x[0] * t - 1, (jnp.asarray([1.0, 2.0]),), jnp.asarray([[3.0, 4.0]])
        ... )
        >>> print(columns[0], r)
        [[3. 4.]] [[2. 7.]]
    """
    lanes = jax.vmap(r, in_axes=-1, out_axes=-1)

    def along(i: int) -> tuple[jax.Array, jax.Array]:
        # One param at a time: what it doesn't touch drops out when the derivative is written
        # down. The compiler shares the value among the n of them.
        def moved(x_i: jax.Array) -> jax.Array:
            return lanes((*x[:i], x_i, *x[i + 1 :]), data)

        return jax.jvp(moved, (x[i],), (jnp.ones_like(x[i]),))

    pairs = [along(i) for i in range(len(x))]
    return [column for _, column in pairs], pairs[0][0]

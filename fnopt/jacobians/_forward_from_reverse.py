"""Forward-mode derivatives of functions that only have reverse-mode ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero

from fnopt.core import matmul

_ROWS = 64


def forward_from_reverse(fn: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    r"""The function, with a forward-mode derivative that is made of its reverse mode.

    .. math:: (J v)_i = \langle J^T e_i, v \rangle

    A `jax.custom_vjp` has no forward mode. This one takes as many passes as the function has
    outputs, however many tangents there are: as many as the Jacobian in reverse mode.

    Args:
        fn: A function of trees of arrays that returns an array.

    Returns:
        A function of the same arguments.
    """

    @jax.custom_jvp
    def called(*args: Any) -> jax.Array:
        return fn(*args)

    def rule(args: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
        leaves, treedef = jax.tree.flatten(args)
        changes = treedef.flatten_up_to(tangents)
        still = (SymbolicZero, np.ndarray)  # of whole numbers the changes are NumPy's float0
        moving = [i for i, change in enumerate(changes) if not isinstance(change, still)]

        def of(moved: list[Any]) -> jax.Array:
            new = dict(zip(moving, moved, strict=True))
            return fn(*treedef.unflatten([new.get(i, leaf) for i, leaf in enumerate(leaves)]))

        value, pull = jax.vjp(of, [leaves[i] for i in moving])

        def along(i: jax.Array) -> jax.Array:
            one = jnp.zeros(value.size, value.dtype).at[i].set(1)
            (rows,) = pull(one.reshape(value.shape))
            pairs = zip(rows, moving, strict=True)
            parts = [matmul(jnp.ravel(row), jnp.ravel(changes[j])) for row, j in pairs]
            return sum(parts, jnp.zeros((), value.dtype))

        change = jax.lax.map(along, jnp.arange(value.size), batch_size=_ROWS)
        return value, change.reshape(value.shape)

    called.defjvp(rule, symbolic_zeros=True)
    return called

"""Frozen parameters."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fnopt.core import dtype_of, is_array_like, is_inexact
from fnopt.transforms._masked import Selective


class freeze(Selective):
    r"""Freeze the selected parameters, and train the others.

    .. math:: u_\ell = \begin{cases} 0 & m_\ell \\
              \mathrm{inner}(g)_\ell & \text{otherwise} \end{cases}

    Frozen leaves have no state, and their gradients are ignored, so these may be NaN or None. You
    can also freeze integers (a counter inside a model), keys of `jax.random` and functions. Put it
    around the whole optimizer, so that no other transform sees the frozen leaves. Where the
    gradient is None, the update is None.

    Args:
        inner: The optimizer of the other leaves, fnopt's or any (init, update) pair.
        mask: Which leaves are frozen, in any form that `masked` takes.

    Raises:
        TypeError: If `mask` is a bare function or has leaves that are not bools.
        ValueError: If leaves have no label, or the mask fits no leaf of the params.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.freeze(fnopt.adam(0.1), "encoder/*")
        >>> params = {"encoder": {"w": jnp.ones(2)}, "head": {"w": jnp.ones(2)}}
        >>> fnopt.slots(tx.init(params))["mu"]
        {'encoder': {'w': None}, 'head': {'w': Array([0., 0.], dtype=float32)}}
        >>> tx.update(params, tx.init(params), params)[0]["encoder"]
        {'w': Array([0., 0.], dtype=float32)}
    """

    _others_stay = True

    def _select(self, tree: Any) -> Any:
        return jax.tree.map(lambda frozen: not frozen, super()._select(tree))

    def _updates_of_others(self, updates: Any, params: Any) -> Any:
        updates = params if updates is None else updates
        return jax.tree.map(_no_update, updates, updates if params is None else params)


def _no_update(g: Any, p: Any) -> Any:
    """Zeros to add: in the gradient's dtype for floating params, in the param's own for others.

    For a key of `jax.random`, to which nothing can be added, they are what
    `jax.grad(allow_int=True)` says of one: zeros of no bits. For what is no array, None.
    """
    if not is_array_like(p):
        return None
    dtype = dtype_of(g if is_inexact(p) else p)
    if dtype == jax.dtypes.float0 or jnp.issubdtype(dtype, jax.dtypes.prng_key):
        return np.zeros(jnp.shape(p), jax.dtypes.float0)
    return jnp.zeros_like(p, dtype=dtype)

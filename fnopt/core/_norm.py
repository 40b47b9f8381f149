"""The length of a whole tree."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core._dtypes import compute_dtype, real_dtype


def global_norm(tree: Any) -> jax.Array:
    r"""The Euclidean norm over all leaves: :math:`\sqrt{\sum_\ell \sum_i |x_{\ell i}|^2}`.

    Args:
        tree: A tree of floating or complex arrays; `None` leaves are skipped.

    Returns:
        A real scalar in the widest dtype of the leaves, at least float32. Its derivative at zero
        is zero, not NaN.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> fnopt.global_norm({"a": jnp.asarray([3.0]), "b": jnp.asarray(4.0)})
        Array(5., dtype=float32)
    """
    leaves = jax.tree.leaves(tree)
    dtype = real_dtype(compute_dtype(*map(jnp.result_type, leaves)))
    total = jnp.zeros((), dtype)
    for x in leaves:
        wide = jnp.asarray(x).astype(compute_dtype(jnp.result_type(x)))
        total += jnp.sum(jnp.real(wide * jnp.conj(wide))).astype(dtype)
    positive = total > 0
    # sqrt has an infinite slope at zero; the inner select keeps it out of the derivative.
    root = jnp.sqrt(jnp.where(positive, total, jnp.ones((), dtype)))
    # NaN fails `> 0`, but must come out as NaN, so the other branch is `total`, not zero.
    return jnp.where(positive, root, total)

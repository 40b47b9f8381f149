"""The length of a whole tree."""

from __future__ import annotations

from typing import Any

import jax

from fnopt.core._numbers import norm_of_leaves


def global_norm(tree: Any) -> jax.Array:
    r"""The Euclidean norm over all leaves: :math:`\sqrt{\sum_\ell \sum_i |x_{\ell i}|^2}`.

    Args:
        tree: A tree of floating or complex arrays; `None` leaves are skipped.

    Returns:
        A real scalar in the widest dtype of the leaves, at least float32. It is right wherever it
        can be represented, though the squares can't: float32 gradients of 1e20 or 1e-30 have a
        norm. Its derivative at zero is zero, not NaN.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> fnopt.global_norm({"a": jnp.asarray([3.0]), "b": jnp.asarray(4.0)})
        Array(5., dtype=float32)
    """
    return norm_of_leaves(jax.tree.leaves(tree))

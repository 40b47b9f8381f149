"""The length of a whole tree."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core._dtypes import dtype_of, is_array_like, is_inexact
from fnopt.core._leaves import check_inexact
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
    leaves = jax.tree.leaves(tree)
    if not all(map(_has_a_size, leaves)):  # keys, and gradients of whole numbers
        check_inexact(tree, "global_norm")
    return norm_of_leaves(leaves)


def _has_a_size(x: Any) -> bool:
    return is_inexact(x) or (is_array_like(x) and jnp.issubdtype(dtype_of(x), jnp.integer))

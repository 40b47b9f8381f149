"""Check of a sparsity pattern by products of the Jacobian with random vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from fnopt.jacobians._flat import vector_function
from fnopt.jacobians._sparse import sparse_jacobian

_NAME = "check_sparsity"
# Tolerance in machine epsilons. The rounding errors of a sum of n terms add up to about n^(1/2)
# machine epsilons (Higham 2002, section 2.8), and a row may have 1e6 entries.
_SLACK = 1e3


def check_sparsity(
    fn: Callable[..., Any], pattern: Any, *, mode: str = "auto"
) -> Callable[..., None]:
    r"""Check numerically that the Jacobian of a function has no entry outside of a pattern.

    `sparse_jacobian` adds the value of an entry that is missing from the pattern to another entry,
    without a warning. The check multiplies random vectors by the sparse Jacobian and by the exact
    Jacobian, and compares the products. It finds all rows and columns with a missing entry that
    isn't zero at these params.

    Args:
        fn: `fn(params, ...)`, as for `sparse_jacobian`.
        pattern: The possible entries of the Jacobian, as for `sparse_jacobian`.
        mode: As for `sparse_jacobian`.

    Returns:
        A function of the arguments of `fn` that returns `None`. Call it outside of `jax.jit`, with
        params at which no possible entry happens to be zero.

    Raises:
        ValueError: If there are entries outside of the pattern, or the derivative isn't finite. The
            message contains the rows and columns of the entries.
        TypeError: If the arguments are traced.

    Example:
        >>> import numpy as np
        >>> from fnopt.jacobians import check_sparsity
        >>> diagonal = (np.arange(3), np.arange(3))
        >>> check_sparsity(lambda x: x**2, diagonal)(jnp.ones(3))
        >>> check_sparsity(lambda x: x**2 + x[1], diagonal)(jnp.ones(3))
        Traceback (most recent call last):
        ValueError: check_sparsity: the Jacobian is nonzero outside of the pattern in rows...
    """
    jac = sparse_jacobian(fn, pattern, mode=mode)

    def check(*args: Any, **kwargs: Any) -> None:
        if any(isinstance(x, Tracer) for x in jax.tree.leaves((args, kwargs))):
            raise TypeError(
                f"{_NAME}: the arguments are traced, expected concrete arrays. Call the check "
                "outside of jax.jit."
            )
        J = jac(*args, **kwargs)
        flat = vector_function(lambda p: fn(p, *args[1:], **kwargs), args[0], _NAME)
        v, w = _random(0, flat.x.size, flat.x), _random(1, flat.m, flat.x)
        _, product = jax.jvp(flat.fn, (flat.x,), (v,))
        _, pull = jax.vjp(flat.fn, flat.x)
        rows = _differences(J.mv(v), product)
        cols = _differences(J.rmv(w), pull(w)[0])
        if rows.size or cols.size:
            raise ValueError(
                f"{_NAME}: the Jacobian is nonzero outside of the pattern in rows "
                f"{_index_text(rows)} (flattened outputs) and columns {_index_text(cols)} "
                "(flattened params), expected zeros. Add these entries to the pattern, because "
                "sparse_jacobian returns wrong values without them."
            )

    return check


def _random(seed: int, size: int, like: jax.Array) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), (size,), like.dtype)


def _differences(actual: jax.Array, expected: jax.Array) -> np.ndarray:
    """Indices at which two arrays differ by more than rounding error."""
    a, b = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    if not np.all(np.isfinite(b)):
        raise ValueError(
            f"{_NAME}: the derivative is not finite at these params, expected finite derivatives. "
            "Choose other params."
        )
    scale = np.maximum(np.abs(b), np.abs(b).mean())
    return np.flatnonzero(np.abs(a - b) > _SLACK * float(jnp.finfo(actual.dtype).eps) * scale)


def _index_text(indices: np.ndarray) -> str:
    remainder = f", … and {indices.size - 8} more" if indices.size > 8 else ""
    return f"[{', '.join(map(str, indices[:8]))}{remainder}]"

"""Sparsity pattern of a function's Jacobian, derived from its jaxpr."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from fnopt.jacobians._flat import VectorFunction, lacks_forward, vector_function
from fnopt.jacobians.dependence import dependence

_NAME = "sparsity_pattern"
_MOST = 2**26  # entries; this many take half a gigabyte of memory, and weeks to color


def sparsity_pattern(fn: Callable[..., Any]) -> Callable[..., tuple[np.ndarray, np.ndarray]]:
    r"""Find the sparsity pattern of a function's Jacobian, valid for all params.

    .. math:: \{ (i, j) : \partial f_i / \partial x_j \text{ isn't known to be zero} \}

    The derivative of `fn` is traced once, without running it, and interpreted with a set of params
    in place of every number. The pattern contains every entry that can be nonzero. It is exact for
    operations that move elements or combine them at fixed positions (stencils, differences,
    indexing, convolutions, products with the nonzeros of a constant matrix). It may have too many
    entries if positions depend on values (sorting), for loops of unknown length, and for unknown
    operations, whose outputs are assumed to depend on all their inputs.

    The values of index arrays and matrices are used if they are constants of the program: arrays
    that `fn` closes over, and arguments outside of `jax.jit`. Traced arrays, such as the `args` of
    `least_squares`, have unknown values.

    Args:
        fn: `fn(params, ...)` returns an array, or a pytree of arrays.

    Returns:
        A function of the arguments of `fn` that returns `(rows, cols)`, two int32 NumPy arrays,
        also under `jax.jit`: the indices of the concatenated outputs and params of every entry, row
        by row. It is a valid pattern for `sparse_jacobian`. A complex output has rows for its
        real part, then for its imaginary part.

    Raises:
        TypeError: If params or outputs aren't floating.
        ValueError: If the pattern has more than 67 million entries.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> rows, cols = fnopt.sparsity_pattern(lambda x: x[1:] - x[:-1] ** 2)(jnp.ones(4))
        >>> print(rows, cols)
        [0 0 1 1 2 2] [0 1 1 2 2 3]

    Reference:
        Griewank and Walther (2008), Evaluating Derivatives, section 7.1; Hill and Dalle (2025),
        Sparser, Better, Faster, Stronger: Sparsity Detection for Efficient Automatic
        Differentiation, arXiv:2501.17737.
    """

    def pattern_fn(params: Any, *args: Any, **kwargs: Any) -> tuple[np.ndarray, np.ndarray]:
        return found_pattern(vector_function(lambda p: fn(p, *args, **kwargs), params, _NAME))

    return pattern_fn


def found_pattern(flat: VectorFunction, name: str = _NAME) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of the entries of the Jacobian of a vector function."""
    x = jax.ShapeDtypeStruct(flat.x.shape, flat.x.dtype)
    if not lacks_forward(flat.fn, flat.x):
        program = jax.make_jaxpr(lambda x, v: jax.jvp(flat.fn, (x,), (v,))[1])(x, x)
        return _members(program, flat.x.size, flat, name)
    w = jax.ShapeDtypeStruct((flat.m,), flat.x.dtype)
    program = jax.make_jaxpr(lambda x, w: jax.vjp(flat.fn, x)[1](w)[0])(x, w)
    cols, rows = _members(program, flat.m, flat, name)
    order = np.lexsort((cols, rows))
    return rows[order], cols[order]


def _members(
    program: Any, size: int, flat: VectorFunction, name: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of a linear program's outputs, and of the inputs of each output."""
    sets, (ids,) = dependence(program, size)
    if sets.entries(ids) > _MOST:
        raise ValueError(
            f"{name}: the traced program allows {sets.entries(ids)} nonzeros in the Jacobian of "
            f"shape {(flat.m, flat.x.size)}, more than the limit of {_MOST}. Traced index arrays "
            "(arguments under jax.jit, args of least_squares) hide the sparsity. Let the function "
            "close over concrete arrays, or pass the pattern."
        )
    outputs, inputs = sets.members(ids)
    return outputs.astype(np.int32), inputs.astype(np.int32)

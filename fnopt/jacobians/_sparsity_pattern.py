"""Sparsity pattern of a Jacobian, derived from the jaxpr of the derivative."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from fnopt.errors import check_function
from fnopt.jacobians._flat import VectorFunction, lacks_forward, vector_function
from fnopt.jacobians.dependence import dependence

_NAME = "sparsity_pattern"
# Largest number of entries. 2^26 entries take half a gigabyte, and weeks to color.
_MOST_NONZEROS = 2**26


def sparsity_pattern(fn: Callable[..., Any]) -> Callable[..., tuple[np.ndarray, np.ndarray]]:
    r"""Find the sparsity pattern of a function's Jacobian, valid for all params.

    .. math:: \{ (i, j) : \partial f_i / \partial x_j \text{ may be nonzero} \}

    The derivative of `fn` is traced once and not run. For every intermediate value, the set of
    params that the value depends on is computed. The pattern contains every entry that can be
    nonzero. The pattern is exact for operations that move elements or combine elements at fixed
    positions (stencils, differences, indexing, convolutions, products with constant matrices). It
    may have too many entries for sorting and other operations whose positions depend on values, for
    loops of unknown length, and for unknown operations. All outputs of an unknown operation are
    assumed to depend on all its inputs.

    The values of index arrays and matrices are used if they are constants of the program. Constants
    are arrays that `fn` closes over, and arguments outside of `jax.jit`. The values of traced
    arrays, such as the `args` of `least_squares`, are unknown.

    Args:
        fn: `fn(params, ...)` returns an array, or a pytree of arrays.

    Returns:
        A function of the arguments of `fn` that returns the pattern as a pair `(rows, cols)`. The
        two int32 arrays are NumPy arrays, also under `jax.jit`. They contain the index of the
        output and the index of the param of every entry, sorted by row, for concatenated outputs
        and params. A complex output has rows for its real part, then rows for its imaginary part.
        `sparse_jacobian` accepts the pair as its pattern.

    Raises:
        TypeError: If params or outputs aren't floating.
        ValueError: If the pattern has more than :math:`2^{26}` entries.

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
    check_function(fn, "fn", _NAME, f"Pass a function, as in {_NAME}(f).")

    def pattern_fn(params: Any, *args: Any, **kwargs: Any) -> tuple[np.ndarray, np.ndarray]:
        return traced_pattern(vector_function(lambda p: fn(p, *args, **kwargs), params, _NAME))

    return pattern_fn


def traced_pattern(flat: VectorFunction, name: str = _NAME) -> tuple[np.ndarray, np.ndarray]:
    """Trace the derivative of a vector function to find the rows and columns of its entries."""
    x = jax.ShapeDtypeStruct(flat.x.shape, flat.x.dtype)
    if not lacks_forward(flat.fn, flat.x):
        # The derivative is linear in `v`, so fewer operations need a rule than in `fn`.
        program = jax.make_jaxpr(lambda x, v: jax.jvp(flat.fn, (x,), (v,))[1])(x, x)
        return _dependence_pairs(program, flat.x.size, flat, name)
    w = jax.ShapeDtypeStruct((flat.m,), flat.x.dtype)
    program = jax.make_jaxpr(lambda x, w: jax.vjp(flat.fn, x)[1](w)[0])(x, w)
    # The VJP is the product with the transpose, so its outputs are columns.
    cols, rows = _dependence_pairs(program, flat.m, flat, name)
    order = np.lexsort((cols, rows))
    return rows[order], cols[order]


def _dependence_pairs(
    program: Any, size: int, flat: VectorFunction, name: str
) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of an output and an input of a linear program that the output may depend on."""
    sets, (ids,) = dependence(program, size)
    if sets.entries(ids) > _MOST_NONZEROS:
        raise ValueError(
            f"{name}: the traced program allows {sets.entries(ids)} nonzeros in the Jacobian of "
            f"shape {(flat.m, flat.x.size)}, expected at most {_MOST_NONZEROS}. The values of "
            "traced index arrays (arguments under jax.jit, args of least_squares) are unknown. Let "
            "the function close over concrete arrays, or pass the pattern."
        )
    outputs, inputs = sets.members(ids)
    return outputs.astype(np.int32), inputs.astype(np.int32)

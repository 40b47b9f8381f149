"""A user's Jacobian as the derivative of a function of a vector."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fnopt.errors import explain_jax_errors, leaf_text, leaves_with_names, where
from fnopt.jacobians import (
    SparseJacobian,
    SparseJacobianFunction,
    ravel_with_held,
    real_vector,
)
from fnopt.linear import gram as linear_gram
from fnopt.numerics import compute_dtype, is_array_like, is_inexact, matmul
from fnopt.residuals._curved import Parametrisation
from fnopt.residuals._derivative import Compressed, Derivative, Gram, Map, counted
from fnopt.residuals._flat import joined_function
from fnopt.residuals._parameters import are_in_a_row
from fnopt.sharding import concatenate, reshape


def without_operators(jac: Any) -> Any:
    """Convert a `jac` that returns linear operators to a function that returns arrays.

    An operator is an object with a product `mv` or `matvec` of a tree like the params, or a sparse
    array of JAX. SciPy's sparse arrays and linear operators compute outside of JAX, so JAX treats
    them as constants.

    Args:
        jac: The user's function; anything else is returned unchanged, for later checks.

    Example:
        >>> import fnopt, jax.numpy as jnp
        >>> from fnopt.residuals import without_operators
        >>> jac = without_operators(fnopt.jacobian(lambda x: x[:2] ** 2, form="operator"))
        >>> print(jac(jnp.arange(3.0)))
        [[0. 0. 0.]
         [0. 2. 0.]]
    """
    if not callable(jac) or hasattr(jac, "fold") or hasattr(jac, "composed"):
        return jac

    def blocks(params: Any, *args: Any) -> Any:
        with explain_jax_errors("least_squares", "jac", is_another=True):
            J = formed(jac(params, *args))
        product = None if isinstance(J, SparseJacobian) else _product(J)
        return J if product is None else jax.jacfwd(product)(params)

    return blocks


def formed(J: Any) -> Any:
    """Convert SciPy's sparse arrays and linear operators to matrices."""
    if callable(getattr(J, "toarray", None)):
        return J.toarray()
    return J.matmat(np.eye(J.shape[1])) if callable(getattr(J, "matmat", None)) else J


def _product(J: Any) -> Callable[[Any], Any] | None:
    for name in ("mv", "matvec"):
        if callable(getattr(J, name, None)):
            return getattr(J, name)
    return (lambda v: J @ v) if hasattr(J, "todense") else None


def given_derivative(
    jac: Any, residuals: Any, params: Any, args: tuple[Any, ...], dtype: Any
) -> Derivative:
    """A user's Jacobian function as the derivative of a function of a vector.

    Args:
        jac: `jac(params, *args)` returns the same tree as `jax.jacfwd` of the residual function, or
            a :class:`fnopt.jacobians.SparseJacobian`.
        residuals: The residuals, or their shapes and dtypes.
        params: The params.
        args: Further arguments.
        dtype: The dtype of the computation.

    Returns:
        The derivative with respect to the concatenated params.

    Raises:
        TypeError: If `jac` isn't a function, or its result isn't floating.
        ValueError: If its result has another structure or shape.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.residuals import given_derivative
        >>> x = jnp.ones(2)
        >>> given = given_derivative(lambda x: jnp.diag(2 * x), x**2, x, (), jnp.float32)
        >>> given.push(given.at(x), x)
        Array([2., 2.], dtype=float32)
    """
    fn = joined_function(jac, "jac")
    x, unravel = ravel_with_held(params)

    def evaluate(x: jax.Array) -> jax.Array | SparseJacobian:
        J = fn(unravel(x), *args)
        if isinstance(J, SparseJacobian):
            _check_shape(J, residuals, x.size)
            return J.astype(dtype)
        return _laid_out(J, residuals, params, dtype)

    shape = jax.eval_shape(evaluate, x)
    if isinstance(shape, SparseJacobian):
        return _sparse_derivative(evaluate, shape)
    gram = _gram_in_chunks(jac, unravel, residuals, args, dtype)
    return Derivative(evaluate, lambda J: J, matmul, lambda J, w: matmul(w, J), False, gram)


class FreeJacobian(NamedTuple):
    """The sparse Jacobian with respect to the free variables."""

    fn: Callable[..., SparseJacobian]  # a function of the free tree and further arguments


def free_jacobian(jac: SparseJacobianFunction, made: Parametrisation) -> FreeJacobian:
    """Compose a sparse Jacobian with the map from the free variables to the params.

    Args:
        jac: The result of :func:`fnopt.sparse_jacobian`.
        made: The params as a function of the free variables.
    """
    fitted = len(made.free) if made.charts is None else made.charts.leaves

    def of_free(free: Any, *args: Any) -> SparseJacobian:
        inner = jac.composed(lambda heads: made.assemble((*heads, *free[fitted:])))
        return inner(free[:fitted], *args)

    return FreeJacobian(of_free)


def free_derivative(
    jac: FreeJacobian,
    residuals: Any,
    x: jax.Array,
    unravel: Callable[[jax.Array], Any],
    args: tuple[Any, ...],
) -> Derivative:
    """The derivative with respect to the free variables, `[m, free]`.

    Args:
        jac: The sparse Jacobian.
        residuals: The residuals, or their shapes and dtypes.
        x: The vector of the free variables, followed by constant base points on manifolds.
        unravel: Function from this vector to the free tree.
        args: Further arguments.
    """

    def evaluate(x: jax.Array) -> SparseJacobian:
        return jac.fn(unravel(x), *args).astype(x.dtype)

    shape = jax.eval_shape(evaluate, x)
    _check_shape(shape, residuals, shape.shape[1])
    return _sparse_derivative(evaluate, shape)


def _sparse_derivative(evaluate: Callable[[jax.Array], Any], shape: SparseJacobian) -> Derivative:
    entries = Compressed(lambda J: J, shape.sparsity, shape.by_rows)
    kind = type(shape)
    return Derivative(evaluate, kind.matrix, kind.mv, kind.rmv, True, None, entries)


def _gram_in_chunks(
    jac: Any, unravel: Callable[[jax.Array], Any], residuals: Any, args: Any, dtype: Any
) -> Gram | None:
    """Gram matrix of a Jacobian that is computed in chunks."""
    if getattr(jac, "fold", None) is None or jac.chunk_size is None:
        return None
    wide = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, compute_dtype(leaf.dtype)), residuals
    )
    layout = real_vector(wide, dtype)

    def gram(x: jax.Array, d: jax.Array, w: jax.Array, *maps: Map) -> Any:
        def mapped(row: jax.Array) -> jax.Array:
            return functools.reduce(lambda row, f: f(row), maps, row)

        def add(sums: Any, J: jax.Array, parts: tuple[jax.Array, ...]) -> Any:
            (G, g), (d, w) = sums, parts
            J = jax.vmap(mapped)(J.astype(dtype))
            DJ = counted(d[:, None], J)
            return G + linear_gram(DJ), g + matmul(w, jnp.where((w != 0)[:, None], J, 0))

        n = jax.eval_shape(mapped, x).size
        zero = jnp.zeros((n, n), dtype), jnp.zeros(n, dtype)
        along = layout.unflatten(d), layout.unflatten(w)
        return jac.fold(add, zero, unravel(x), args, along)

    return gram


def _check_shape(J: SparseJacobian, residuals: Any, n: int) -> None:
    m = real_vector(residuals, float).size
    if J.shape != (m, n):
        raise ValueError(
            f"{where()}jac returned a sparse Jacobian of shape {J.shape}, expected {(m, n)}: one "
            "row for every residual, one column for every param."
        )


def _laid_out(blocks: Any, residuals: Any, params: Any, dtype: Any) -> jax.Array:
    """Matrix with the concatenated residuals as rows and the concatenated params as columns."""
    pairs, treedef = leaves_with_names(residuals)
    if are_in_a_row(residuals) and hasattr(blocks, "shape"):
        blocks = type(residuals)(blocks)
    branches = _branches(treedef, blocks, "one branch for every leaf of the residuals")
    rows = zip(branches, pairs, strict=True)
    return concatenate([_rows(branch, r, path, params, dtype) for branch, (path, r) in rows])


def _rows(branch: Any, residual: Any, residual_path: str, params: Any, dtype: Any) -> jax.Array:
    """Rows of one leaf of the residuals; for a complex leaf, real rows, then imaginary rows."""
    pairs, treedef = leaves_with_names(params)
    rows = f"{leaf_text(residual_path)} of the residuals"
    numbers = type(params) in (list, tuple)
    if numbers and getattr(branch, "shape", None) == (*residual.shape, len(params)):
        # The Jacobian with respect to a list of numbers may be one matrix.
        branch = type(params)(jnp.moveaxis(branch, -1, 0))
    leaves = _branches(treedef, branch, f"a tree like the params for {rows}")
    complex_rows = jnp.issubdtype(residual.dtype, jnp.complexfloating)
    if complex_rows:
        dtype = compute_dtype(dtype, jnp.complex64)
    J = concatenate(
        [
            _block(
                value,
                residual,
                leaf,
                f"{rows} with respect to {leaf_text(path)} of the params",
                dtype,
            )
            for value, (path, leaf) in zip(leaves, pairs, strict=True)
        ],
        axis=1,
    )
    return concatenate([jnp.real(J), jnp.imag(J)]) if complex_rows else J


def _branches(treedef: Any, tree: Any, expected: str) -> list[Any]:
    try:
        return treedef.flatten_up_to(tree)
    except ValueError as error:
        raise ValueError(
            f"{where()}jac returned a tree that doesn't fit: expected {expected}, as jax.jacfwd "
            f"returns it. ({error})"
        ) from None


def _block(value: Any, residual: Any, param: Any, what: str, dtype: Any) -> jax.Array:
    shape = (*residual.shape, *jnp.shape(param))
    if not is_inexact(param):  # a fixed leaf, whose column is not used
        return jnp.zeros((residual.size, math.prod(jnp.shape(param))), dtype)
    if isinstance(value, (list, tuple)) and all(map(is_array_like, jax.tree.leaves(value))):
        value = jnp.asarray(value)  # nested lists, as NumPy accepts them
    if not hasattr(value, "shape") or not is_inexact(value):
        raise TypeError(
            f"{where()}jac: {what} is {getattr(value, 'dtype', type(value).__name__)}, expected a "
            f"floating array of shape {shape}."
        )
    value = jnp.asarray(value)
    # As in SciPy, axes of length one may be added or missing.
    got, expected = ([size for size in axes if size != 1] for axes in (value.shape, shape))
    if got != expected or value.ndim > max(2, len(shape)):
        raise ValueError(
            f"{where()}jac: {what} has shape {value.shape}, expected {shape}: "
            "(*residual.shape, *param.shape)."
        )
    if jnp.iscomplexobj(value) and not jnp.issubdtype(dtype, jnp.complexfloating):
        raise TypeError(
            f"{where()}jac: {what} is {value.dtype}, expected a real array for a real residual."
        )
    return reshape(value, residual.size, math.prod(jnp.shape(param))).astype(dtype)

"""Conversion of a user's Jacobian to the derivative of the flattened residual function."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fnopt.errors import count_text, explain_jax_errors, leaf_text, leaves_with_names, where
from fnopt.jacobians import (
    SparseJacobian,
    SparseJacobianFunction,
    ravel_with_held,
    real_vector,
)
from fnopt.linear import gram as linear_gram
from fnopt.numerics import compute_dtype, is_array_like, is_inexact, matmul
from fnopt.residuals._curved import Parametrization
from fnopt.residuals._derivative import Compressed, Derivative, Gram, Map, masked_product
from fnopt.residuals._flat import joined_function
from fnopt.residuals._start import is_number_list
from fnopt.sharding import concatenate, reshape


def without_operators(jac: Any) -> Any:
    """Convert a `jac` that returns linear operators to a function that returns arrays.

    A linear operator is a sparse array of JAX or an object with a method `mv` or `matvec`. The
    method multiplies the Jacobian by a tree like the params. SciPy's sparse arrays and linear
    operators are computed outside of JAX, so JAX treats them as constants.

    Args:
        jac: The user's function. The results of :func:`fnopt.per_example_jacobian` and
            :func:`fnopt.sparse_jacobian` are returned unchanged, and so is an object that isn't a
            function.

    Returns:
        A function with the arguments of `jac` that returns arrays or a
        :class:`fnopt.jacobians.SparseJacobian`.

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

    def array_jac(params: Any, *args: Any) -> Any:
        with explain_jax_errors("least_squares", "jac", is_another=True):
            J = formed(jac(params, *args))
        product = None if isinstance(J, SparseJacobian) else _product(J)
        # The product is linear, so its derivative is the same matrix at every point.
        return J if product is None else jax.jacfwd(product)(params)

    return array_jac


def formed(J: Any) -> Any:
    """Convert SciPy's sparse array or linear operator to a matrix, and return others unchanged."""
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
    """Convert a user's Jacobian function to the derivative of the flattened residual function.

    Args:
        jac: `jac(params, *args)` returns the same tree as `jax.jacfwd` of the residual function, or
            a :class:`fnopt.jacobians.SparseJacobian`.
        residuals: The residuals, or their shapes and dtypes.
        params: The params.
        args: Further arguments of `jac`.
        dtype: The dtype of the computation.

    Returns:
        The derivative with respect to the vector of all params.

    Raises:
        TypeError: If `jac` isn't a function, or the Jacobian isn't floating.
        ValueError: If the Jacobian has another structure or shape than the result of `jax.jacfwd`.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.residuals import given_derivative
        >>> x = jnp.ones(2)
        >>> derivative = given_derivative(lambda x: jnp.diag(2 * x), x**2, x, (), jnp.float32)
        >>> derivative.push(derivative.at(x), x)
        Array([2., 2.], dtype=float32)
    """
    fn = joined_function(jac, "jac")
    x, unravel = ravel_with_held(params)

    def evaluate(x: jax.Array) -> jax.Array | SparseJacobian:
        J = fn(unravel(x), *args)
        if isinstance(J, SparseJacobian):
            _check_shape(J, residuals, x.size)
            return J.astype(dtype)
        return _concatenate_blocks(J, residuals, params, dtype)

    shape = jax.eval_shape(evaluate, x)
    if isinstance(shape, SparseJacobian):
        return _sparse_derivative(evaluate, shape)
    gram = _gram_in_chunks(jac, unravel, residuals, args, dtype)
    return Derivative(evaluate, lambda J: J, matmul, lambda J, w: matmul(w, J), False, gram)


class FreeJacobian(NamedTuple):
    """Sparse Jacobian of the residuals with respect to the free variables."""

    fn: Callable[..., SparseJacobian]  # a function of the free tree and further arguments


def free_jacobian(jac: SparseJacobianFunction, parametrization: Parametrization) -> FreeJacobian:
    """Compose a sparse Jacobian with the map from the free variables to the params.

    Args:
        jac: The result of :func:`fnopt.sparse_jacobian`.
        parametrization: The params as a function of the free variables.
    """
    charts = parametrization.charts
    num_fitted = len(parametrization.free) if charts is None else charts.leaves

    def jacobian_fn(free: Any, *args: Any) -> SparseJacobian:
        # The base points of manifolds, which follow the fitted leaves, are constants.
        fitted, bases = free[:num_fitted], free[num_fitted:]
        composed = jac.composed(lambda fitted: parametrization.assemble((*fitted, *bases)))
        return composed(fitted, *args)

    return FreeJacobian(jacobian_fn)


def free_derivative(
    jac: FreeJacobian,
    residuals: Any,
    x: jax.Array,
    unravel: Callable[[jax.Array], Any],
    args: tuple[Any, ...],
) -> Derivative:
    """Convert a sparse Jacobian with respect to the free variables to a derivative.

    Args:
        jac: The sparse Jacobian.
        residuals: The residuals, or their shapes and dtypes.
        x: The vector of the free variables and of the base points on manifolds.
        unravel: Function from this vector to the free tree.
        args: Further arguments of the residual function.
    """

    def evaluate(x: jax.Array) -> SparseJacobian:
        return jac.fn(unravel(x), *args).astype(x.dtype)

    shape = jax.eval_shape(evaluate, x)
    _check_shape(shape, residuals, shape.shape[1])
    return _sparse_derivative(evaluate, shape)


def _sparse_derivative(evaluate: Callable[[jax.Array], Any], shape: SparseJacobian) -> Derivative:
    entries = Compressed(lambda J: J, shape.sparsity, shape.by_rows)
    # Methods of the class, because the functions of a `Derivative` must not close over arrays.
    cls = type(shape)
    return Derivative(evaluate, cls.matrix, cls.mv, cls.rmv, True, None, entries)


def _gram_in_chunks(
    jac: Any, unravel: Callable[[jax.Array], Any], residuals: Any, args: Any, dtype: Any
) -> Gram | None:
    """Make a function that sums the Gram matrix over chunks of rows, or None without chunks."""
    if getattr(jac, "fold", None) is None or jac.chunk_size is None:
        return None
    # `unflatten` casts to the dtype of a leaf, and bfloat16 would round the factors `d` and `w`.
    shapes = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, compute_dtype(leaf.dtype)), residuals
    )
    layout = real_vector(shapes, dtype)

    def gram(x: jax.Array, d: jax.Array, w: jax.Array, *maps: Map) -> Any:
        def map_row(row: jax.Array) -> jax.Array:
            return functools.reduce(lambda row, f: f(row), maps, row)

        def add(sums: Any, J: jax.Array, factors: tuple[jax.Array, ...]) -> Any:
            (G, g), (d, w) = sums, factors
            J = jax.vmap(map_row)(J.astype(dtype))
            DJ = masked_product(d[:, None], J)
            # An excluded row may be NaN, and 0 * NaN is NaN.
            return G + linear_gram(DJ), g + matmul(w, jnp.where((w != 0)[:, None], J, 0))

        n = jax.eval_shape(map_row, x).size
        zero = jnp.zeros((n, n), dtype), jnp.zeros(n, dtype)
        factors = layout.unflatten(d), layout.unflatten(w)
        return jac.fold(add, zero, unravel(x), args, factors)

    return gram


def _check_shape(J: SparseJacobian, residuals: Any, n: int) -> None:
    m = real_vector(residuals, float).size
    if J.shape != (m, n):
        raise ValueError(
            f"{where()}jac returned a sparse Jacobian of shape {J.shape}, expected {(m, n)} for "
            f"{count_text(m, 'residual')} and {count_text(n, 'param')}."
        )


def _concatenate_blocks(blocks: Any, residuals: Any, params: Any, dtype: Any) -> jax.Array:
    """Concatenate the blocks of a Jacobian to one matrix `[m, n]`."""
    pairs, treedef = leaves_with_names(residuals)
    if is_number_list(residuals) and hasattr(blocks, "shape"):
        # The Jacobian of a list of numbers may be one array, with the numbers on the first axis.
        blocks = type(residuals)(blocks)
    branches = _branches(treedef, blocks, "one branch for every leaf of the residuals")
    rows = zip(branches, pairs, strict=True)
    return concatenate([_leaf_rows(branch, r, path, params, dtype) for branch, (path, r) in rows])


def _leaf_rows(
    branch: Any, residual: Any, residual_path: str, params: Any, dtype: Any
) -> jax.Array:
    """Concatenate the Jacobian rows of a residual leaf, with real before imaginary rows."""
    pairs, treedef = leaves_with_names(params)
    rows = f"{leaf_text(residual_path)} of the residuals"
    params_in_list = type(params) in (list, tuple)
    if params_in_list and getattr(branch, "shape", None) == (*residual.shape, len(params)):
        # The Jacobian with respect to a list of numbers may be one array.
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
            f"{where()}jac returned a tree with the wrong structure, expected {expected}, like the "
            f"result of jax.jacfwd. ({error})"
        ) from None


def _block(value: Any, residual: Any, param: Any, what: str, dtype: Any) -> jax.Array:
    shape = (*residual.shape, *jnp.shape(param))
    if not is_inexact(param):  # a fixed leaf, whose columns aren't used
        return jnp.zeros((residual.size, math.prod(jnp.shape(param))), dtype)
    if isinstance(value, (list, tuple)) and all(map(is_array_like, jax.tree.leaves(value))):
        value = jnp.asarray(value)  # nested lists are accepted, as in NumPy
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
            f"{where()}jac: {what} has shape {value.shape}, expected {shape}, the shape of the "
            "residual followed by the shape of the param."
        )
    if jnp.iscomplexobj(value) and not jnp.issubdtype(dtype, jnp.complexfloating):
        raise TypeError(
            f"{where()}jac: {what} is {value.dtype}, expected a real array for a real residual."
        )
    return reshape(value, residual.size, math.prod(jnp.shape(param))).astype(dtype)

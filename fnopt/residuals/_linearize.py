"""Jacobian, Gram matrix, Jacobian products and second derivatives of functions of a vector."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fnopt.jacobians import jacobian_mode, lacks_forward, value_and_jacobian
from fnopt.linear import are_squares_safe, gram, norm
from fnopt.numerics import floor_power_of_two, matmul
from fnopt.residuals._flat import FlatResidual
from fnopt.sharding import pmax_rows, psum_rows, pvary_like, pvary_over_rows, reshard_like, row_axes

Map = Callable[[jax.Array], jax.Array]
_PROBES = 8  # the relative standard error of a column norm is 1 / sqrt(2 * 8), 25 %


def linearize(
    flat: FlatResidual, x: jax.Array, mode: str = "auto", chunk_size: int | None = None
) -> tuple[jax.Array, jax.Array]:
    r"""Evaluate the residuals and their Jacobian :math:`J_{ij} = \partial r_i / \partial x_j`.

    The user's Jacobian is used if there is one. Otherwise, JAX differentiates the function.

    Args:
        flat: The residual function.
        x: The point, of shape `[n]`.
        mode: `'auto'`, `'forward'` or `'reverse'`.
        chunk_size: Number of tangents or cotangents that are propagated at once; see
            :func:`fnopt.jacobians.value_and_jacobian`.

    Returns:
        The residuals of shape `[m]` and the Jacobian of shape `[m, n]`.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.residuals import flat_residual, linearize
        >>> x, flat = flat_residual(lambda x: x**2, jnp.asarray([1.0, 2.0]))
        >>> linearize(flat, x)[1]
        Array([[2., 0.],
               [0., 4.]], dtype=float32)
    """
    derivative = flat.derivative
    if derivative is not None:
        return flat.r(x), derivative.matrix(derivative.at(x))
    return value_and_jacobian(flat.r, pvary_over_rows(x), flat.m, mode, chunk_size)


def curvature_along(r: Callable[[jax.Array], jax.Array], x: jax.Array, v: jax.Array) -> jax.Array:
    r"""Second derivative of the residuals along a direction.

    .. math:: r''_{vv} = \frac{d^2}{dt^2} r(x + t v) \Big|_{t = 0}

    Args:
        r: A function from `[n]` to `[m]` with a forward-mode derivative.
        x: The point, of shape `[n]`.
        v: The direction, of shape `[n]`.

    Returns:
        The second derivative, of shape `[m]`.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.residuals import curvature_along
        >>> curvature_along(lambda x: x**3, jnp.asarray([2.0]), jnp.asarray([1.0]))
        Array([12.], dtype=float32)
    """
    x, v = pvary_over_rows((x, v))

    def slope(y: jax.Array) -> jax.Array:
        return jax.jvp(r, (y,), (v,))[1]

    return jax.jvp(slope, (x,), (v,))[1]


def linearize_gram(
    flat: FlatResidual, x: jax.Array, mode: str = "auto", chunk_size: int | None = None
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    r"""Evaluate the residuals, the scaled Gram matrix of the Jacobian, and the gradient.

    The column scales :math:`u`, powers of two, prevent overflow and underflow of squares. The
    scales are usually 1. They are always 1 if the Gram matrix is summed over chunks of rows. In
    reverse mode with a `chunk_size`, only `chunk_size` rows of the Jacobian are in memory at a
    time. A user's Jacobian with chunks is also summed. Otherwise the whole Jacobian is formed.

    Args:
        flat: The residual function.
        x: The point, of shape `[n]`.
        mode: `'auto'`, `'forward'` or `'reverse'`.
        chunk_size: Number of tangents or cotangents that are propagated at once; see
            :func:`fnopt.jacobians.value_and_jacobian`.

    Returns:
        The residuals `[m]`, the scaled Gram matrix :math:`U^{-1} J^T J\, U^{-1}` of shape `[n, n]`,
        the gradient :math:`J^T r` of shape `[n]`, and the scales :math:`u` of shape `[n]`. Here
        :math:`U = \mathrm{diag}(u)`.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.residuals import flat_residual, linearize_gram
        >>> x, flat = flat_residual(lambda x: x**2, jnp.asarray([1.0, 2.0]))
        >>> _, G, g, _ = linearize_gram(flat, x)
        >>> print(G, g)
        [[ 4.  0.]
         [ 0. 16.]] [ 2. 16.]
    """
    by_rows = jacobian_mode(mode, flat.m, x.size) == "reverse" and flat.derivative is None
    if by_rows and chunk_size is not None and chunk_size < flat.m:
        value, *sums = _gram_by_rows(flat.r, pvary_over_rows(x), flat.m, chunk_size)
        return value, *psum_rows(sums), jnp.ones_like(x)
    if flat.derivative is not None and flat.derivative.gram is not None:
        value = flat.r(x)
        sums = flat.derivative.gram(x, jnp.ones_like(value), value)
        return value, *psum_rows(sums), jnp.ones_like(x)
    value, J = linearize(flat, x, mode, chunk_size)
    scales = _safe_scales(J)
    J = J / scales
    G, g = psum_rows((gram(J), matmul(value, J)))
    return value, G, scales * g, scales


def _safe_scales(J: jax.Array) -> jax.Array:
    """Return column scales, which are 1 unless the sum of squares overflows or underflows."""
    largest = pmax_rows(jnp.max(jnp.abs(J), axis=0, initial=0))
    scales = floor_power_of_two(largest)  # division by a power of two is exact
    return jnp.where(are_squares_safe(largest), jnp.ones_like(scales), scales)


def _gram_by_rows(
    r: Map, x: jax.Array, m: int, chunk_size: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    value, pull = jax.vjp(r, x)

    def add(G: jax.Array, rows: jax.Array) -> tuple[jax.Array, None]:
        # Row indices beyond `m` in the last chunk have zero cotangents, which add nothing.
        units = (rows[:, None] == jnp.arange(m)).astype(value.dtype)
        return G + gram(
            jax.vmap(lambda e: pull(reshard_like(pvary_like(e, value), value))[0])(units)
        ), None

    chunks = -(-m // chunk_size)
    rows = jnp.arange(chunks * chunk_size).reshape(chunks, chunk_size)
    # Inside shard_map, the initial carry of a scan must vary like its result.
    G, _ = lax.scan(add, pvary_like(jnp.zeros((x.size, x.size), x.dtype), value), rows)
    return value, G, pull(value)[0]


def linearize_products(r: Map, x: jax.Array) -> tuple[jax.Array, Map, Map]:
    r"""Evaluate the residuals and linearize them as products with the Jacobian and its transpose.

    Args:
        r: A function from `[n]` to `[m]`.
        x: The point, of shape `[n]`.

    Returns:
        The residuals, and the functions :math:`v \mapsto J v` and :math:`w \mapsto J^T w`.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.residuals import linearize_products
        >>> _, push, pull = linearize_products(lambda x: x**2, jnp.asarray([1.0, 2.0]))
        >>> print(push(jnp.ones(2)), pull(jnp.ones(2)))
        [2. 4.] [2. 4.]
    """
    value, pull = linearize_pull(r, x)
    x = pvary_over_rows(x)
    _, push = jax.linearize(r, x)
    return value, lambda v: push(pvary_like(v, x)), pull


def linearize_pull(r: Map, x: jax.Array) -> tuple[jax.Array, Map]:
    """Evaluate the residuals and the product with the transpose of their Jacobian."""
    value, pull = jax.vjp(r, pvary_over_rows(x))
    return value, lambda w: psum_rows(pull(reshard_like(pvary_like(w, value), value))[0])


def probed_columns(pull: Map, r: jax.Array) -> jax.Array:
    r"""Estimate the norms of the Jacobian's columns from products with random vectors.

    .. math:: E\left[ (J^T w)_j^2 \right] = \|J_j\|^2 \quad\text{for } w \sim N(0, I)

    The estimate from eight vectors has an error of about 25 %, which is sufficient for a scaling.
    The estimate for a column of zeros is exactly 0.

    Args:
        pull: The function :math:`w \mapsto J^T w`.
        r: An array with the shape `[m]` and the dtype of the residuals.

    Returns:
        The estimates, of shape `[n]`.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.residuals import probed_columns
        >>> A = jnp.eye(3)[:, :2] * jnp.asarray([1.0, 0.0])
        >>> estimates = probed_columns(lambda w: w @ A, jnp.zeros(3))
        >>> bool(estimates[0] > 0.3), float(estimates[1])
        (True, 0.0)

    Reference:
        Bekas, Kokiopoulou and Saad (2007), An estimator for the diagonal of a matrix.
    """
    # A constant key gives the same scaling in every call.
    key = jax.random.key(0)
    if row_axes():  # devices with different rows need different probes
        key = jax.random.fold_in(pvary_over_rows(key), lax.axis_index(row_axes()))
    probes = jax.random.normal(key, (_PROBES, r.size), r.dtype)
    root = jnp.sqrt(jnp.asarray(_PROBES, r.dtype))
    return norm(jax.vmap(pull)(probes), axis=0) / root


def linearize_lanes(
    r: Callable[..., jax.Array], x: tuple[jax.Array, ...], data: Any
) -> tuple[list[jax.Array], jax.Array]:
    r"""Evaluate the residuals of many problems, and the columns of their Jacobians.

    The last axis of each array is the batch of problems, so vector instructions process several
    problems at once.

    Args:
        r: `r(x, data)` returns the residuals `[m]` of one problem from a tuple of `n` scalars and
            the data of the problem.
        x: The points: `n` arrays of shape `[problems]`.
        data: A pytree of arrays whose last axis is the batch of problems.

    Returns:
        A list of the `n` columns, and the residuals, each of shape `[m, problems]`.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.residuals import linearize_lanes
        >>> columns, r = linearize_lanes(
        ...     lambda x, t: x[0] * t - 1, (jnp.asarray([1.0, 2.0]),), jnp.asarray([[3.0, 4.0]])
        ... )
        >>> print(columns[0], r)
        [[3. 4.]] [[2. 7.]]
    """
    batched = jax.vmap(r, in_axes=-1, out_axes=-1)

    # With one JVP per param, the trace omits tangents that don't depend on the param. The compiler
    # merges the n evaluations of the residuals.
    pairs = [
        jax.jvp(
            lambda x_i, i=i: batched((*x[:i], x_i, *x[i + 1 :]), data),
            (x_i,),
            (jnp.ones_like(x_i),),
        )
        for i, x_i in enumerate(x)
    ]
    return [column for _, column in pairs], pairs[0][0]


def value_and_slope(f: Map, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Evaluate a scalar function and its gradient in one pass.

    Args:
        f: The function from `[n]` to a scalar.
        x: The point, of shape `[n]`.

    Returns:
        The value, and the gradient of shape `[n]`.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.residuals import value_and_slope
        >>> value_and_slope(lambda x: x @ x, jnp.asarray([1.0, 2.0]))[1]
        Array([2., 4.], dtype=float32)
    """
    return jax.value_and_grad(f)(x)


def hessian_product(f: Map, x: jax.Array) -> Callable[[jax.Array], jax.Array]:
    """Return the function that multiplies the Hessian at a point by a vector.

    The Hessian isn't formed.

    Args:
        f: The function from `[n]` to a scalar.
        x: The point, of shape `[n]`.

    Returns:
        A linear function from `[n]` to `[n]`.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.residuals import hessian_product
        >>> hessian_product(lambda x: jnp.sum(x**3), jnp.asarray([1.0, 2.0]))(jnp.ones(2))
        Array([ 6., 12.], dtype=float32)
    """
    gradient = jax.grad(f)
    if lacks_forward(f, x):
        # The Hessian is symmetric, so the VJP of the gradient is the same product as its JVP.
        _, pull = jax.vjp(gradient, x)
        return lambda v: pull(v)[0]
    return jax.linearize(gradient, x)[1]

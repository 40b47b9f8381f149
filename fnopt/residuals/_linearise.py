"""Values and derivatives of functions of a vector: matrix, Gram matrix, products, curvature."""

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
_PROBES = 8  # number of probes; column norms have an error of 1 / sqrt(2 * 8), 25 %


def linearise(
    flat: FlatResidual, x: jax.Array, mode: str = "auto", chunk_size: int | None = None
) -> tuple[jax.Array, jax.Array]:
    r"""The residual and its Jacobian :math:`J_{ij} = \partial r_i / \partial x_j` at a point.

    A user's Jacobian is used if there is one; otherwise the function is differentiated.

    Args:
        flat: The residual function.
        x: The point, of shape `[n]`.
        mode: `'auto'`, `'forward'` or `'reverse'`.
        chunk_size: Number of tangents or cotangents that are propagated at once; see
            :func:`fnopt.jacobians.value_and_jacobian`.

    Returns:
        The residual of shape `[m]` and the Jacobian of shape `[m, n]`.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.residuals import flat_residual, linearise
        >>> x, flat = flat_residual(lambda x: x**2, jnp.asarray([1.0, 2.0]))
        >>> linearise(flat, x)[1]
        Array([[2., 0.],
               [0., 4.]], dtype=float32)
    """
    given = flat.derivative
    if given is not None:
        return flat.r(x), given.matrix(given.at(x))
    return value_and_jacobian(flat.r, pvary_over_rows(x), flat.m, mode, chunk_size)


def curvature_along(r: Callable[[jax.Array], jax.Array], x: jax.Array, v: jax.Array) -> jax.Array:
    r"""The second derivative of the residual along a direction.

    .. math:: r''_{vv} = \frac{d^2}{dt^2} r(x + t v) \Big|_{t = 0}

    Args:
        r: A function from `[n]` to `[m]`; it must have a forward-mode derivative.
        x: The point, of shape `[n]`.
        v: The direction, of shape `[n]`.

    Returns:
        A vector of shape `[m]`.

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


def linearise_gram(
    flat: FlatResidual, x: jax.Array, mode: str = "auto", chunk_size: int | None = None
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    r"""The residual, :math:`U^{-1} J^T J\, U^{-1}`, :math:`J^T r` and `U` at a point.

    `U` are column scales, powers of two, that prevent overflow and underflow of squares. They are
    almost always 1, and always 1 if the Gram matrix is summed without a Jacobian. In reverse mode
    with a `chunk_size`, only `chunk_size` rows of the Jacobian are in memory at a time. Otherwise,
    and for a user's Jacobian, the whole Jacobian is formed temporarily.

    Args:
        flat: The residual function.
        x: The point, of shape `[n]`.
        mode: `'auto'`, `'forward'` or `'reverse'`.
        chunk_size: Number of derivatives that are computed at once; None for all.

    Returns:
        Arrays of shapes `[m]`, `[n, n]`, `[n]` and `[n]`.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.residuals import flat_residual, linearise_gram
        >>> x, flat = flat_residual(lambda x: x**2, jnp.asarray([1.0, 2.0]))
        >>> _, G, g, _ = linearise_gram(flat, x)
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
    value, J = linearise(flat, x, mode, chunk_size)
    # Squares of the columns must be in range; powers of two scale them exactly.
    unit = _safe_units(J)
    J = J / unit
    G, g = psum_rows((gram(J), matmul(value, J)))
    return value, G, unit * g, unit


def _safe_units(J: jax.Array) -> jax.Array:
    """Return column scales; 1 if the sum of squares neither overflows nor underflows."""
    largest = pmax_rows(jnp.max(jnp.abs(J), axis=0, initial=0))
    unit = floor_power_of_two(largest)
    return jnp.where(are_squares_safe(largest), jnp.ones_like(unit), unit)


def _gram_by_rows(
    r: Map, x: jax.Array, m: int, chunk_size: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    value, pull = jax.vjp(r, x)

    def add(G: jax.Array, rows: jax.Array) -> tuple[jax.Array, None]:
        # Rows past the last one have no unit vector, so they are zero and add nothing.
        units = (rows[:, None] == jnp.arange(m)).astype(value.dtype)
        return G + gram(
            jax.vmap(lambda e: pull(reshard_like(pvary_like(e, value), value))[0])(units)
        ), None

    chunks = -(-m // chunk_size)
    rows = jnp.arange(chunks * chunk_size).reshape(chunks, chunk_size)
    # Inside shard_map, the initial carry of a scan must vary like its result.
    G, _ = lax.scan(add, pvary_like(jnp.zeros((x.size, x.size), x.dtype), value), rows)
    return value, G, pull(value)[0]


def linearise_products(r: Map, x: jax.Array) -> tuple[jax.Array, Map, Map]:
    r"""The residual at a point, and the products with its Jacobian and the transpose.

    Args:
        r: A function from `[n]` to `[m]`.
        x: The point, of shape `[n]`.

    Returns:
        The residual, :math:`v \mapsto J v` and :math:`w \mapsto J^T w`.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.residuals import linearise_products
        >>> _, push, pull = linearise_products(lambda x: x**2, jnp.asarray([1.0, 2.0]))
        >>> print(push(jnp.ones(2)), pull(jnp.ones(2)))
        [2. 4.] [2. 4.]
    """
    value, pull = linearise_pull(r, x)
    x = pvary_over_rows(x)
    _, push = jax.linearize(r, x)
    return value, lambda v: push(pvary_like(v, x)), pull


def linearise_pull(r: Map, x: jax.Array) -> tuple[jax.Array, Map]:
    """The residual at a point, and the product with the transpose of its Jacobian."""
    value, pull = jax.vjp(r, pvary_over_rows(x))
    return value, lambda w: psum_rows(pull(reshard_like(pvary_like(w, value), value))[0])


def probed_columns(pull: Map, r: jax.Array) -> jax.Array:
    r"""Estimate the norms of the Jacobian's columns from a few products.

    .. math:: E\left[ (J^T w)_j^2 \right] = \|J_j\|^2 \quad\text{for } w \sim N(0, I)

    Eight fixed probes are accurate to about 25 %, which is sufficient for a scaling. The estimate
    for a column of zeros is exactly 0.

    Args:
        pull: :math:`w \mapsto J^T w`.
        r: An array with the shape `[m]` and the dtype of the residual.

    Returns:
        A vector of shape `[n]`.

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


def linearise_lanes(
    r: Callable[..., jax.Array], x: tuple[jax.Array, ...], data: Any
) -> tuple[list[jax.Array], jax.Array]:
    r"""The residuals of many problems, and the columns of their Jacobians.

    The last axis of each array is the batch of problems, so vector instructions process several
    problems at once.

    Args:
        r: The residual of one problem, `r(x, data)`, of shape `[m]`: a function of a tuple of `n`
            scalars and the problem's data.
        x: The points: `n` arrays of shape `[lanes]`.
        data: A pytree of arrays whose last axis is the batch of problems.

    Returns:
        `n` columns and the residual, each of shape `[m, lanes]`.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.residuals import linearise_lanes
        >>> columns, r = linearise_lanes(
        ...     lambda x, t: x[0] * t - 1, (jnp.asarray([1.0, 2.0]),), jnp.asarray([[3.0, 4.0]])
        ... )
        >>> print(columns[0], r)
        [[3. 4.]] [[2. 7.]]
    """
    lanes = jax.vmap(r, in_axes=-1, out_axes=-1)

    # One tangent per param: the trace omits operations that don't depend on the param. The compiler
    # shares the value among all n tangents.
    pairs = [
        jax.jvp(
            lambda x_i, i=i: lanes((*x[:i], x_i, *x[i + 1 :]), data), (x_i,), (jnp.ones_like(x_i),)
        )
        for i, x_i in enumerate(x)
    ]
    return [column for _, column in pairs], pairs[0][0]


def value_and_slope(f: Map, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The value and the gradient at a point, in one pass.

    Args:
        f: The function, `[n]` to a scalar.
        x: The point.

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
    """The products of the Hessian at a point with vectors, without forming the Hessian.

    Args:
        f: The function, `[n]` to a scalar.
        x: The point.

    Returns:
        A linear function, `[n]` to `[n]`.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.residuals import hessian_product
        >>> hessian_product(lambda x: jnp.sum(x**3), jnp.asarray([1.0, 2.0]))(jnp.ones(2))
        Array([ 6., 12.], dtype=float32)
    """
    gradient = jax.grad(f)
    if lacks_forward(f, x):  # a Hessian is symmetric
        _, pull = jax.vjp(gradient, x)
        return lambda v: pull(v)[0]
    return jax.linearize(gradient, x)[1]

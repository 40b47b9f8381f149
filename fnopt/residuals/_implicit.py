"""Derivatives of solutions by the implicit function theorem, and Newton steps to a root."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fnopt.jacobians import forward_from_reverse, value_and_jacobian
from fnopt.numerics import matmul, nonzero
from fnopt.sharding import replicate, reshard_like

_MATRIX = 1000  # params up to which the Hessian is formed: its eigenvalues take one second


def pushed(
    fn: Callable[..., Any], primals: Any, tangents: Any, mode: str = "auto"
) -> tuple[Any, Any]:
    """Compute value and tangent of a function by `jax.jvp`, or in reverse mode.

    Args:
        fn: A function of several arguments.
        primals: The arguments.
        tangents: Their tangents.
        mode: `'reverse'` if the function has no forward-mode derivative.

    Returns:
        The value and its tangent.

    Example:
        >>> from fnopt.residuals import pushed
        >>> pushed(lambda x: x * x, (3.0,), (1.0,))[1]
        Array(6., dtype=float32, weak_type=True)
    """
    if mode != "reverse":
        return jax.jvp(fn, tuple(primals), tuple(tangents))
    treedef = jax.tree.structure(jax.eval_shape(fn, *primals))

    def push_output(i: int) -> tuple[jax.Array, jax.Array]:
        # In two passes, so that unused results aren't computed.
        output = forward_from_reverse(lambda *args: jax.tree.leaves(fn(*args))[i])
        return jax.jvp(output, tuple(primals), tuple(tangents))

    pairs = [push_output(i) for i in range(treedef.num_leaves)]
    return treedef.unflatten([a for a, _ in pairs]), treedef.unflatten([b for _, b in pairs])


def minimum_tangent(
    cost: Callable[[jax.Array, Any], jax.Array],
    x: jax.Array,
    data: Any,
    change: Any,
    fixed: tuple[jax.Array, jax.Array] | None = None,
    mode: str = "auto",
    total: Callable[[Any], Any] | None = None,
) -> jax.Array:
    r"""Tangent of a minimum with respect to the data, by the implicit function theorem.

    At a minimum :math:`g(x, d) = \nabla_x f(x, d) = 0`, so

    .. math:: \dot x = -H^{-1} \frac{\partial g}{\partial d}\, \dot d,
        \qquad H = \nabla_x^2 f(x, d),

    with the exact second derivatives of the cost. The tangent is zero along flat directions. With
    more than a thousand params the Hessian is never formed; conjugate gradients use its products.

    Args:
        cost: `cost(x, data)`, a scalar.
        x: The minimum, of shape `[n]`.
        data: A pytree of floating arrays.
        change: The tangent of the data, a tree like the data.
        fixed: A mask `[n]` of params that follow a bound, and their tangents; or None.
        mode: `'forward'` if the cost has no reverse-mode derivative, `'reverse'` if it has no
            forward-mode derivative.
        total: Function from a sum over the rows of this device to the sum over all devices, if
            `cost` is a sum over this device.

    Returns:
        The tangent of the minimum, of shape `[n]`; linear in `change`.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.residuals import minimum_tangent
        >>> cost = lambda x, d: 0.5 * jnp.sum((2 * x - d) ** 2)
        >>> minimum_tangent(cost, jnp.ones(1), jnp.asarray([2.0]), jnp.ones(1))
        Array([0.5], dtype=float32)

    Reference:
        Gould et al. (2016), On differentiating parameterized argmin and argmax problems,
        arXiv:1607.05447.
    """
    gradient = _gradient(cost, mode)
    _, moved = jax.jvp(lambda d: gradient(x, d), (data,), (change,))
    H, times = None, lambda v: pushed(lambda x: gradient(x, data), (x,), (v,))[1]
    if x.size <= _MATRIX or mode != "auto":
        H = jax.jacfwd(gradient)(x, data)
        if total is not None:
            H, moved = total(H), total(moved)  # two sums, because only one is linear in the change
        times = functools.partial(matmul, H)
    if fixed is None:
        return -_hessian_solve(times, H, moved)
    mask, shift = fixed
    none = jnp.zeros_like(moved)
    shift = jnp.where(mask, shift, none)

    def times_free(v: jax.Array) -> jax.Array:
        return jnp.where(mask, v, times(jnp.where(mask, none, v)))

    block = (
        None if H is None else jnp.where(mask | mask[:, None], jnp.diag(mask.astype(x.dtype)), H)
    )
    return shift - _hessian_solve(times_free, block, jnp.where(mask, none, moved + times(shift)))


def _gradient(cost: Callable[..., jax.Array], mode: str) -> Callable[..., jax.Array]:
    gradient = jax.jacfwd(cost) if mode == "forward" else jax.grad(cost)
    return forward_from_reverse(gradient) if mode == "reverse" else gradient


def _hessian_solve(times: Any, H: jax.Array | None, b: jax.Array) -> jax.Array:
    """Solve a linear system with a Hessian, by conjugate gradients if it isn't formed."""
    if H is None:
        tol = 10 * float(jnp.finfo(b.dtype).eps)
        # In exact arithmetic n iterations are enough; with a singular Hessian they don't end.
        cg = functools.partial(jax.scipy.sparse.linalg.cg, tol=tol, maxiter=2 * b.size)
        return lax.custom_linear_solve(times, b, lambda A, b: cg(A, b)[0], symmetric=True)
    # A unit diagonal makes the test for flat directions independent of the scale of the params.
    unit = nonzero(jnp.sqrt(jnp.abs(jnp.diagonal(lax.stop_gradient(H)))))
    return _pseudo_solve(H, b, unit, unit, H.shape[0], hermitian=True)


def root_tangent(
    fn: Callable[[jax.Array, Any], jax.Array], x: jax.Array, data: Any, change: Any
) -> jax.Array:
    r"""Tangent of a root with respect to the data.

    .. math:: \dot x = -J^{-1} \frac{\partial F}{\partial d}\, \dot d

    Args:
        fn: `fn(x, data)`, with as many equations as `x` has numbers.
        x: The root, of shape `[n]`.
        data: A pytree of arrays.
        change: The tangent of the data, a tree like the data.

    Returns:
        The tangent of the root, of shape `[n]`; linear in `change`.
    """
    _, moved = pushed(lambda d: fn(x, d), (data,), (change,))
    return -_square_solve(jax.jacfwd(fn)(x, data), moved)


def after_newton(
    fn: Callable[[jax.Array], jax.Array], x: jax.Array, steps: int = 10
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Take some Newton steps; return the final point, the first step and the last step.

    Near a root the steps shrink. For equations that vanish only at infinity, such as `exp(x)` and
    `1 / x`, the residuals become small as well, but the steps don't.
    """

    def newton_step(x: jax.Array) -> jax.Array:
        value, J = _linearised(fn, x)
        return -_square_solve(J, value)

    def advance(_: Any, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        x, step = state
        return x + step, newton_step(x + step)

    first = newton_step(x)
    end, last = lax.fori_loop(0, steps, advance, (x, first))
    return end, first, last


def off_flat_places(fn: Callable[[jax.Array], jax.Array], x: jax.Array) -> jax.Array:
    """Perturb the params whose Jacobian column is zero, except at a root.

    A step can't change such a param, for example x in x^2 - 4 at 0.
    """
    left, J = _linearised(fn, x)
    still = jnp.all(J == 0, axis=0) & jnp.any(left != 0)
    size = jnp.where(x != 0, jnp.abs(x), nonzero(jnp.max(jnp.abs(x), initial=0)))
    return jnp.where(reshard_like(still, x), x + jnp.finfo(x.dtype).eps ** 0.5 * size, x)


def _linearised(fn: Callable[[jax.Array], jax.Array], x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The equations and their Jacobian with respect to unsharded params."""
    return value_and_jacobian(lambda y: fn(reshard_like(y, x)), replicate(x), x.size, "forward")


def projected_tangent(
    cost: Callable[[jax.Array, Any], jax.Array],
    projection: Callable[[jax.Array, Any], jax.Array],
    x: jax.Array,
    data: Any,
    change: Any,
    mode: str = "auto",
) -> jax.Array:
    r"""Tangent of a minimum over a convex set with respect to the data.

    The minimum satisfies :math:`x = P(x - \lambda g(x, d), d)` for any :math:`\lambda > 0`. So

    .. math:: \bigl(I - P' (I - \lambda H)\bigr)\, \dot x
              = \Bigl(\frac{\partial P}{\partial d} - \lambda P' \frac{\partial g}{\partial d}\Bigr)
              \dot d

    with the derivative :math:`P'` of the projection at this point. The tangent is zero along
    undetermined directions.

    Args:
        cost: `cost(x, data)`, a scalar.
        projection: `projection(x, data)`, the nearest point of the set.
        x: The minimum, of shape `[n]`.
        data: A pytree of arrays.
        change: The tangent of the data, a tree like the data.
        mode: `'reverse'` if the cost has reverse-mode derivatives only.

    Returns:
        The tangent of the minimum, of shape `[n]`; linear in `change`.
    """
    gradient = _gradient(cost, mode)
    H = jax.jacfwd(gradient)(x, data)
    # The fixed point doesn't depend on the step size, so no derivative goes through the rate.
    most = lax.stop_gradient(jnp.max(jnp.abs(H), initial=0))
    rate = 1 / nonzero(most)

    def step(x: jax.Array, data: Any) -> jax.Array:
        return projection(x - rate * gradient(x, data), data)

    _, moved = pushed(lambda d: step(x, d), (data,), (change,))
    return _square_solve(jnp.eye(x.size, dtype=x.dtype) - jax.jacfwd(step)(x, data), moved)


def _square_solve(A: jax.Array, b: jax.Array) -> jax.Array:
    """Solve a linear system with a badly scaled square matrix."""
    if not A.size:
        return b
    A, b = replicate(A), replicate(b)
    # The scaling cancels in the solution, so it needs no derivative.
    size = jnp.abs(lax.stop_gradient(A))
    rows = nonzero(jnp.max(size, axis=1))
    columns = nonzero(jnp.max(size / rows[:, None], axis=0))
    return _pseudo_solve(A, b, rows, columns, 10 * A.shape[0])


def _pseudo_solve(
    A: jax.Array,
    b: jax.Array,
    rows: jax.Array,
    columns: jax.Array,
    rounding: int,
    hermitian: bool = False,
) -> jax.Array:
    """Solve a square linear system; directions of tiny singular values are zero in the solution.

    Args:
        A: The matrix `[n, n]`.
        b: The right side `[n]`.
        rows: The scale of every row, so that the rank doesn't depend on units.
        columns: The scale of every column.
        rounding: Multiple of the machine epsilon, relative to the largest singular value, below
            which a singular value is treated as zero.
        hermitian: Whether the matrix is symmetric.

    Returns:
        The solution `[n]`, linear in `b`, with derivatives with respect to both.
    """
    rtol = rounding * float(jnp.finfo(A.dtype).eps)
    # `custom_linear_solve` differentiates the system; the pseudo-inverse itself needs no
    # derivative.
    scaled = lax.stop_gradient(A) / rows[:, None] / columns
    inverse = jnp.linalg.pinv(scaled, rtol=rtol, hermitian=hermitian)
    inverse = lax.stop_gradient(inverse / columns[:, None] / rows)
    return lax.custom_linear_solve(
        functools.partial(matmul, A),
        b,
        lambda _, v: matmul(inverse, v),
        lambda _, v: matmul(inverse.T, v),
    )

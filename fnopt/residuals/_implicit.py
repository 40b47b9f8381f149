"""Derivatives of minima and roots by the implicit function theorem, and Newton steps."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fnopt.jacobians import forward_from_reverse, value_and_jacobian
from fnopt.linear import is_determined, norm, singular_triangle, triangle
from fnopt.numerics import matmul, nonzero
from fnopt.sharding import replicate, reshard_like

# Largest number of params for which the Hessian is formed. Its eigenvalues take 0.2 s for 1,000
# params and 1.4 s for 2,000 on a CPU core.
_LARGEST_FORMED = 1000


def pushed(
    fn: Callable[..., Any], primals: Any, tangents: Any, mode: str = "auto"
) -> tuple[Any, Any]:
    """Compute the value and the tangent of a function, in forward mode or in reverse mode.

    Args:
        fn: A function of several arguments.
        primals: The arguments.
        tangents: The tangents of the arguments.
        mode: `'reverse'` if the function has no forward-mode derivative; otherwise `jax.jvp` is
            used.

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
        # One output per call, so that XLA can remove the passes of unused outputs.
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
    jacobian: Callable[[], jax.Array] | None = None,
) -> jax.Array:
    r"""Tangent of a minimum with respect to the data, by the implicit function theorem.

    At a minimum :math:`g(x, d) = \nabla_x f(x, d) = 0`, so

    .. math:: \dot x = -H^{-1} \frac{\partial g}{\partial d}\, \dot d,
        \qquad H = \nabla_x^2 f(x, d),

    with the exact second derivatives of the cost. The tangent is zero along flat directions. With
    more than a thousand params, conjugate gradients solve the system from Hessian-vector products.

    Args:
        cost: `cost(x, data)`, a scalar.
        x: The minimum, of shape `[n]`.
        data: A pytree of floating arrays.
        change: The tangent of the data, a tree like the data.
        fixed: A mask `[n]` of params on a bound, and their tangents, which are the tangents of the
            bounds; None without bounds.
        mode: `'forward'` if the cost has no reverse-mode derivative, `'reverse'` if it has no
            forward-mode derivative. The Hessian is then always formed.
        total: Function that sums over devices, if `cost` is the part of one device.
        jacobian: For sums of squares, a function that returns the Jacobian `J` of the residuals, of
            shape `[m, n]`, or its triangular factor. The Hessian is then formed in coordinates in
            which :math:`J^T J` is the identity, because forming :math:`J^T J` itself loses half of
            the digits of `J`. The function is called only if the Hessian is formed.

    Returns:
        The tangent of the minimum, of shape `[n]`, which is linear in `change`.

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
    # Under shard_map, arrays of zeros vary over the same devices as the arrays that they belong to.
    origin, none = jnp.zeros_like(x), jnp.zeros(x.shape, x.dtype)
    mask, shift = (none != 0, none) if fixed is None else fixed
    shift = jnp.where(mask, shift, none)
    unshifted = jnp.zeros_like(shift)
    is_formed = x.size <= _LARGEST_FORMED or mode != "auto"
    basis = None
    if is_formed and jacobian is not None:
        # The tangent doesn't depend on the basis, so no derivative goes through it.
        basis = _whitening_basis(lax.stop_gradient(jnp.where(mask, 0, jacobian())))

    def step(z: jax.Array) -> jax.Array:
        return jnp.where(mask, 0, z if basis is None else matmul(basis, z))

    # Params on a bound move with the bound, so their shift is treated as data.
    gradient = _gradient_fn(lambda z, data: cost(x + step(z) + data[1], data[0]), mode)
    _, gradient_change = jax.jvp(
        lambda data: gradient(origin, data), ((data, unshifted),), ((change, shift),)
    )

    def free_gradient(z: jax.Array) -> jax.Array:
        return gradient(z, (data, unshifted))

    H, product = None, lambda v: pushed(free_gradient, (origin,), (v,))[1]
    if is_formed:
        H = jax.jacfwd(free_gradient)(origin)
        if total is not None:
            # Two sums, because only the second sum must be linear in `change`.
            H, gradient_change = total(H), total(gradient_change)
        product = functools.partial(matmul, H)
    smallest = 0 if basis is None else 1
    return shift - step(_hessian_solve(product, H, gradient_change, smallest))


def _whitening_basis(J: jax.Array) -> jax.Array:
    r"""Return a basis `T` with :math:`T^T J^T J T = I`, from the singular values of `J`.

    .. math:: J D^{-1} = \sum_i s_i u_i v_i^T, \qquad t_i = D^{-1} v_i / s_i

    with the column norms `D`. Directions that `J` doesn't determine are divided by the largest
    singular value instead.
    """
    norms = nonzero(norm(J))
    s, Vt, _ = singular_triangle(triangle(J / norms, jnp.zeros_like(J[:, 0])))
    determined = is_determined(s, max(J.shape))
    return Vt.T / nonzero(jnp.where(determined, s, s[0])) / norms[:, None]


def _gradient_fn(cost: Callable[..., jax.Array], mode: str) -> Callable[..., jax.Array]:
    gradient = jax.jacfwd(cost) if mode == "forward" else jax.grad(cost)
    return forward_from_reverse(gradient) if mode == "reverse" else gradient


def _hessian_solve(product: Any, H: jax.Array | None, b: jax.Array, smallest: int) -> jax.Array:
    """Solve `H x = b`, or by conjugate gradients if only the product with `H` is available.

    Diagonal entries above `smallest` are scaled to 1.
    """
    if H is None:
        # The recursively updated residual becomes smaller than machine epsilon (Greenbaum 1997).
        tol = float(jnp.finfo(b.dtype).eps)
        # n iterations are enough in exact arithmetic. With a singular Hessian, the iteration might
        # never reach the tolerance.
        cg = functools.partial(jax.scipy.sparse.linalg.cg, tol=tol, maxiter=2 * b.size)
        return lax.custom_linear_solve(product, b, lambda A, b: cg(A, b)[0], symmetric=True)
    # Scaling to a unit diagonal makes the numerical rank independent of the scales of the params.
    # In a whitened basis, a diagonal entry below 1 is the small curvature of a flat direction.
    scale = nonzero(jnp.maximum(jnp.sqrt(jnp.abs(jnp.diagonal(lax.stop_gradient(H)))), smallest))
    return _pseudo_solve(H, b, scale, scale, H.shape[0], hermitian=True)


def root_tangent(
    fn: Callable[[jax.Array, Any], jax.Array], x: jax.Array, data: Any, change: Any
) -> jax.Array:
    r"""Tangent of a root with respect to the data, by the implicit function theorem.

    .. math:: \dot x = -J^{-1} \frac{\partial F}{\partial d}\, \dot d

    Args:
        fn: The function :math:`F(x, d)`, with outputs of shape `[n]`.
        x: The root, of shape `[n]`.
        data: A pytree of arrays.
        change: The tangent of the data, a tree like the data.

    Returns:
        The tangent of the root, of shape `[n]`, which is linear in `change`.
    """
    _, output_change = pushed(lambda d: fn(x, d), (data,), (change,))
    return -_square_solve(jax.jacfwd(fn)(x, data), output_change)


def newton_steps(
    fn: Callable[[jax.Array], jax.Array], x: jax.Array, steps: int = 10
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Take Newton steps.

    The result is the final point, the first step, and the step at the final point. Near a root, the
    steps shrink. For functions without a root that approach zero at infinity, such as `exp(x)` and
    `1 / x`, the residuals shrink but the steps don't.
    """

    def newton_step(x: jax.Array) -> jax.Array:
        value, J = _linearized(fn, x)
        return -_square_solve(J, value)

    def advance(_: Any, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        x, step = state
        return x + step, newton_step(x + step)

    first_step = newton_step(x)
    end, last_step = lax.fori_loop(0, steps, advance, (x, first_step))
    return end, first_step, last_step


def perturb_zero_columns(fn: Callable[[jax.Array], jax.Array], x: jax.Array) -> jax.Array:
    """Perturb the params whose Jacobian column is zero, except at a root.

    A Newton step can't change such a param, for example `x` at 0 in `x^2 - 4 = 0`.
    """
    value, J = _linearized(fn, x)
    is_stationary = jnp.all(J == 0, axis=0) & jnp.any(value != 0)
    size = jnp.where(x != 0, jnp.abs(x), nonzero(jnp.max(jnp.abs(x), initial=0)))
    return jnp.where(reshard_like(is_stationary, x), x + jnp.finfo(x.dtype).eps ** 0.5 * size, x)


def _linearized(fn: Callable[[jax.Array], jax.Array], x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Evaluate the equations and their Jacobian with respect to replicated params."""
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

    The minimum satisfies :math:`x = P(x - \lambda g(x, d), d)` for any :math:`\lambda > 0`, where
    :math:`P` is the projection and :math:`g` the gradient. So

    .. math:: \bigl(I - P' (I - \lambda H)\bigr)\, \dot x
              = \Bigl(\frac{\partial P}{\partial d} - \lambda P' \frac{\partial g}{\partial d}\Bigr)
              \dot d

    with the Hessian :math:`H` and the derivative :math:`P'` of the projection at
    :math:`x - \lambda g`. The tangent is zero along undetermined directions.

    Args:
        cost: `cost(x, data)`, a scalar.
        projection: `projection(x, data)`, the point of the set nearest to `x`.
        x: The minimum, of shape `[n]`.
        data: A pytree of arrays.
        change: The tangent of the data, a tree like the data.
        mode: `'reverse'` if the cost has no forward-mode derivative.

    Returns:
        The tangent of the minimum, of shape `[n]`, which is linear in `change`.
    """
    gradient = _gradient_fn(cost, mode)
    H = jax.jacfwd(gradient)(x, data)
    # The fixed point doesn't depend on the step size, so the step size needs no derivative.
    step_size = 1 / nonzero(lax.stop_gradient(jnp.max(jnp.abs(H), initial=0)))

    def step(x: jax.Array, data: Any) -> jax.Array:
        return projection(x - step_size * gradient(x, data), data)

    _, step_change = pushed(lambda d: step(x, d), (data,), (change,))
    return _square_solve(jnp.eye(x.size, dtype=x.dtype) - jax.jacfwd(step)(x, data), step_change)


def _square_solve(A: jax.Array, b: jax.Array) -> jax.Array:
    """Solve a linear system after equilibration of the rows and columns of the matrix."""
    if not A.size:
        return b
    A, b = replicate(A), replicate(b)
    # The scales cancel in the solution, so they need no derivative.
    magnitude = jnp.abs(lax.stop_gradient(A))
    rows = nonzero(jnp.max(magnitude, axis=1))
    columns = nonzero(jnp.max(magnitude / rows[:, None], axis=0))
    # 10 n machine epsilons is the default of `jnp.linalg.pinv`.
    return _pseudo_solve(A, b, rows, columns, 10 * A.shape[0])


def _pseudo_solve(
    A: jax.Array,
    b: jax.Array,
    rows: jax.Array,
    columns: jax.Array,
    rounding: int,
    hermitian: bool = False,
) -> jax.Array:
    """Solve a square linear system with the pseudo-inverse of the scaled matrix.

    Args:
        A: The matrix `[n, n]`.
        b: The right-hand side `[n]`.
        rows: The scale of every row. With scales, the numerical rank doesn't depend on units.
        columns: The scale of every column.
        rounding: Threshold for the singular values, in machine epsilons times the largest singular
            value. Smaller singular values are treated as zero.
        hermitian: Whether the matrix is symmetric.

    Returns:
        The solution `[n]`, linear in `b`, and differentiable with respect to `A` and `b`.
    """
    rtol = rounding * float(jnp.finfo(A.dtype).eps)
    # `custom_linear_solve` differentiates the system `A x = b`, so the pseudo-inverse needs no
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

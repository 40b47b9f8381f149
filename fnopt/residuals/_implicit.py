"""The derivative of a minimum by the implicit function theorem."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fnopt.core import matmul
from fnopt.jacobians import forward_from_reverse
from fnopt.linear import divide


def pushed(
    fn: Callable[..., Any], primals: Any, tangents: Any, mode: str = "auto"
) -> tuple[Any, Any]:
    """The value of a function and its change: `jax.jvp`.

    Args:
        fn: A function of several arguments.
        primals: The arguments.
        tangents: Their changes.
        mode: `'reverse'` where the function has no forward-mode derivative.

    Returns:
        The value and its change.

    Example:
        >>> from fnopt.residuals import pushed
        >>> pushed(lambda x: x * x, (3.0,), (1.0,))[1]
        Array(6., dtype=float32, weak_type=True)
    """
    if mode != "reverse":
        return jax.jvp(fn, tuple(primals), tuple(tangents))
    treedef = jax.tree.structure(jax.eval_shape(fn, *primals))

    def leaf(i: int) -> tuple[jax.Array, jax.Array]:
        # Apart, so that what isn't asked for isn't computed.
        of = forward_from_reverse(lambda *args: jax.tree.leaves(fn(*args))[i])
        return jax.jvp(of, tuple(primals), tuple(tangents))

    pairs = [leaf(i) for i in range(treedef.num_leaves)]
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
    r"""The change of a minimum with the data, by the implicit function theorem.

    At a minimum :math:`g(x, d) = \nabla_x f(x, d) = 0`, so

    .. math:: \dot x = -H^{-1} \frac{\partial g}{\partial d}\, \dot d,
        \qquad H = \nabla_x^2 f(x, d),

    with the exact second derivatives of the cost. Directions in which it is flat don't move. With
    more than a thousand params the Hessian is never formed: its products are enough for conjugate
    gradients.

    Args:
        cost: `cost(x, data)`, a scalar.
        x: The minimum, of shape `[n]`.
        data: A pytree of floating arrays.
        change: The change of the data, a tree like it.
        fixed: A mask of `[n]` of params that follow a bound, and how far they move; or None.
        mode: `'forward'` where the cost has no reverse-mode derivative, `'reverse'` where it has
            that only.
        total: From a sum over the rows of this device to that over all, where `cost` is only the
            former.

    Returns:
        The change of the minimum, of shape `[n]`; linear in `change`.

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
    derivative = jax.jacfwd if mode == "forward" else jax.grad
    gradient = derivative(cost)
    if mode == "reverse":
        gradient = forward_from_reverse(gradient)
    _, moved = jax.jvp(lambda d: gradient(x, d), (data,), (change,))
    if x.size > _MATRIX and mode == "auto":
        return _by_products(lambda v: gradient(v, data), x, moved, fixed)
    H = jax.jacfwd(gradient)(x, data)
    if total is not None:
        H, moved = total(H), total(moved)  # apart: only one of them is linear in the change
    if fixed is None:
        return -_solve(H, moved)
    held, shift = fixed
    free = (~held).astype(x.dtype)
    shift = jnp.where(held, shift, jnp.zeros_like(shift))
    rhs = free * (moved + matmul(H, shift))
    block = H * free * free[:, None] + jnp.diag(1 - free)
    return shift - free * _solve(block, rhs)


# Up to so many params the Hessian is formed and its eigenvalues are taken: one second.
_MATRIX = 1000


def _by_products(
    gradient: Callable[[jax.Array], jax.Array],
    x: jax.Array,
    moved: jax.Array,
    fixed: tuple[jax.Array, jax.Array] | None,
) -> jax.Array:
    """The same by conjugate gradients, with products of the Hessian: no matrix is formed."""

    def times(v: jax.Array) -> jax.Array:
        return pushed(gradient, (x,), (v,))[1]

    none = jnp.zeros_like(x)
    held, shift = (jnp.zeros(x.shape, bool), none) if fixed is None else fixed
    shift = jnp.where(held, shift, none)
    rhs = jnp.where(held, none, moved if fixed is None else moved + times(shift))

    def of_the_free(v: jax.Array) -> jax.Array:
        return jnp.where(held, v, times(jnp.where(held, none, v)))

    def solve(matvec: Callable[[jax.Array], jax.Array], b: jax.Array) -> jax.Array:
        tol = 10 * float(jnp.finfo(b.dtype).eps)
        return jax.scipy.sparse.linalg.cg(matvec, b, tol=tol, maxiter=_PRODUCTS)[0]

    return shift - lax.custom_linear_solve(of_the_free, rhs, solve=solve, symmetric=True)


_PRODUCTS = 2000


def _solve(H: jax.Array, b: jax.Array) -> jax.Array:
    """Solves with a symmetric matrix; flat directions get 0."""
    inverse = lax.stop_gradient(_pseudo_inverse(lax.stop_gradient(H)))
    return lax.custom_linear_solve(
        lambda v: matmul(H, v), b, solve=lambda _, v: matmul(inverse, v), symmetric=True
    )


def _pseudo_inverse(H: jax.Array) -> jax.Array:
    n = H.shape[0]
    # With a diagonal of ones, what counts as a flat direction does not depend on units of params.
    scale = jnp.sqrt(jnp.abs(jnp.diagonal(H)))
    scale = jnp.where(scale > 0, scale, jnp.ones_like(scale))
    w, V = jnp.linalg.eigh(H / scale / scale[:, None])
    size = jnp.abs(w)
    noise = jnp.asarray(n * jnp.finfo(w.dtype).eps, w.dtype) * jnp.max(size, initial=0)
    inverse = jnp.where(size > noise, jnp.sign(w) * divide(jnp.ones_like(w), size), 0)
    root = V / scale[:, None]
    return matmul(root * inverse, root.T)

r"""Saddles: directions along which the cost bends down where it is level.

The linear model knows no negative curvature: at a saddle it has nothing to offer, as at a minimum.
Symmetric starts (two equal terms of a sum) slide along a ridge to one. What tells the two apart is
the Hessian :math:`H = J^T J + S`, with :math:`S = \sum_i r_i \nabla^2 r_i`, relative to the linear
model's own curvature. A few products with it are enough, and one where residuals hardly bend.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fnopt.core import cond, matmul, varying_like, while_loop
from fnopt.linear import SingularFactors, divide, norm
from fnopt.solvers.convergence._noise import Noise
from fnopt.solvers.model._linearization import Linearization
from fnopt.solvers.model._scaling import memoryless_scale

_MOST = 8  # products with the Hessian; so many params are seen whole
_QUIET = 0.1  # of the linear model's curvature: what residuals bend by that can't outweigh it
_MU = 1e-3  # of the steepest direction's curvature, that the others count as having at least
_NEAR, _FAR = 0.01, 0.1  # of the sizes of params: for a difference, for a step
_SHIFT = 0.01  # of the residuals: a param is as large as what moves them by so much, at least
_CLEARLY = 4.0  # times the rounding
_SHARE = 0.1  # of the gain that is promised, which is enough
_DEEP = 0.1  # of M: negative curvature that is more is none of a slope that is left
_LEVEL = 1e-4  # of the cost, by which it changes along a valley whose floor is level


class Descent(NamedTuple):
    """A step along which the cost bends down."""

    step: jax.Array  # [n], zeros if there is none
    gain: jax.Array  # the least reduction of the cost that makes it worth going there
    is_deep: jax.Array  # whether the cost bends down by more than a slope that is left makes of it
    is_level: jax.Array  # whether the cost doesn't bend along the valley that was given
    products: jax.Array  # int32, Jacobians that were evaluated to find it


class _Basis(NamedTuple):
    r"""Coordinates in which the linear model's curvature is that of a sphere, nearly.

    .. math:: p = B^T u, \qquad B = M^{-1/2} V^T D^{-1}, \qquad
        D^{-1} J^T J D^{-1} = V \Sigma^2 V^T, \qquad M = \Sigma^2 + \mu
    """

    B: jax.Array  # [n, n], a direction a row
    less: jax.Array  # [n], mu / M: what M has more than the linear model's curvature

    def step(self, u: jax.Array) -> jax.Array:
        """The params' step of coordinates `u`."""
        return jnp.sum(u[:, None] * self.B, axis=0)

    def coordinates(self, p: jax.Array, scale: jax.Array) -> jax.Array:
        """The coordinates of a step of the params."""
        size = divide(jnp.ones_like(self.less), jnp.sum(jnp.square(scale * self.B), axis=1))  # M
        return size * jnp.sum(self.B * jnp.square(scale) * p, axis=1)

    def slopes(self, g: jax.Array) -> jax.Array:
        """The derivatives by the coordinates, from those by the params."""
        return jnp.sum(self.B * g, axis=1)


class _Krylov(NamedTuple):
    """Directions, and the products of those so far."""

    U: jax.Array  # [k, n], orthonormal rows
    W: jax.Array  # [k, n], zeros for those to come
    count: jax.Array  # int32
    unclear: jax.Array  # bool, whether more of them may show something


def no_descent(point: Linearization) -> Descent:
    """The step that goes nowhere."""
    zero = jnp.zeros_like(point.cost)
    no = jnp.zeros((), bool)
    return Descent(jnp.zeros_like(point.x), zero, no, no, jnp.zeros((), jnp.int32))


def descent(
    point: Linearization,
    factors: SingularFactors,
    valley: jax.Array | None,
    gradient_at: Callable[[jax.Array], jax.Array],
    eps: jax.Array,
    noise: Noise,
) -> Descent:
    r"""A step along the direction of the most negative curvature, if that is visible.

    .. math:: H_M = I + M^{-1/2} V^T D^{-1} (S - \mu D^2) D^{-1} V M^{-1/2}

    has as many negative eigenvalues as the Hessian, and those of directions that the Jacobian
    doesn't see are far below all others: Lanczos' method finds them first. Its products are
    differences, :math:`S p \approx (J(x + t p) - J(x))^T r / t`, which need no derivative that
    the fit doesn't take anyway. Where the first of them, of a random direction, is small, so is
    `S` in all, and there is no saddle.

    Args:
        point: The point.
        factors: The singular values of its Jacobian, in units of the columns.
        valley: A step along a valley of the linear model, of shape `[n]`, zeros if there is none;
            or None.
        gradient_at: :math:`y \mapsto J(y)^T r`, with the residuals of the point.
        eps: The rounding unit.
        noise: The rounding at the point.

    Returns:
        The step, downhill; zeros if no curvature is negative beyond rounding, or if what could
        be gained along it is rounding.
    """
    scale = memoryless_scale(point.columns)
    basis, sizes = _basis(factors, scale), _sizes(point, scale)
    along = None if valley is None else basis.coordinates(valley, scale)
    found = _products(point, gradient_at, basis, sizes, along)
    nowhere = jnp.zeros_like(point.x), jnp.zeros_like(point.cost), jnp.zeros((), bool)
    step, gain, is_deep = cond(
        found.unclear,
        lambda: _downhill(point, basis, scale, sizes, found, eps, noise),
        lambda: nowhere,
    )
    is_level = _is_level(point, found, along, noise)
    return Descent(step, gain, is_deep, is_level, found.count)


def _is_level(point: Linearization, found: _Krylov, u: jax.Array | None, noise: Noise) -> jax.Array:
    """Whether the cost doesn't bend along a valley by more than a little, or than rounding may.

    False where not all of the Hessian is seen.
    """
    if u is None or point.x.size > _MOST:
        return jnp.zeros((), bool)
    bend = matmul(u, u + matmul(matmul(found.U, u), found.W))
    blur = noise.residual * jnp.sqrt(2 * point.cost) / jnp.asarray(_NEAR, bend.dtype)
    least = jnp.asarray(2 * _LEVEL, bend.dtype) * point.cost
    level = bend <= least + jnp.asarray(_CLEARLY, bend.dtype) * blur
    return level & found.unclear & jnp.any(u != 0)


def _downhill(
    point: Linearization,
    basis: _Basis,
    scale: jax.Array,
    sizes: jax.Array,
    found: _Krylov,
    eps: jax.Array,
    noise: Noise,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    r"""The step along all directions that bend down, the least gain, and whether they are deep.

    Along one alone what the others need is left to steps of the linear model, which sees nothing
    there: at the start of :math:`(x^2 - 1, y^2 - 4)` from zero both have to move. Each counts by
    its own size.
    """
    T = matmul(found.U, found.W.T)
    values, vectors = jnp.linalg.eigh((T + T.T) / 2)
    steps = jax.vmap(basis.step)(matmul(vectors.T, found.U))
    steps = jnp.where(matmul(steps, point.gradient)[:, None] > 0, -steps, steps)
    factors = jax.vmap(_own_size_factor, (0, None))(steps, sizes)
    steps, curvatures = factors[:, None] * steps, jnp.square(factors) * (1 + values)
    near, clearly = jnp.asarray(_NEAR, eps.dtype), jnp.asarray(_CLEARLY, eps.dtype)
    blurs = eps * jnp.sqrt(2 * point.cost) * norm(scale * steps, axis=1) / near
    bends = curvatures < -clearly * blurs
    p = jnp.sum(jnp.where(bends[:, None], steps, jnp.zeros_like(steps)), axis=0)
    curvature = jnp.sum(jnp.where(bends, curvatures, jnp.zeros_like(curvatures)))
    is_deep = jnp.any(bends & (1 + values < -jnp.asarray(_DEEP, p.dtype)))
    t = jnp.asarray(_FAR, p.dtype) * _own_size_factor(p, sizes)
    # As far as can be seen of the cost: a slope that changes shows what is far below its rounding.
    t = jnp.maximum(t, jnp.sqrt(divide(4 * clearly * noise.cost, -curvature)))
    # Further than to where nothing would be left of the cost no parabola goes.
    t = jnp.minimum(t, jnp.sqrt(divide(point.cost, -curvature)))
    gain = jnp.square(t) * jnp.abs(curvature) / 2
    step = jnp.where(gain > clearly * noise.cost, t * p, jnp.zeros_like(p))
    return step, jnp.asarray(_SHARE, p.dtype) * gain, is_deep


def _basis(factors: SingularFactors, scale: jax.Array) -> _Basis:
    top = jnp.square(factors.s[0])
    mu = jnp.asarray(_MU, top.dtype) * jnp.where(top > 0, top, jnp.ones_like(top))
    size = jnp.square(factors.s) + mu
    return _Basis(factors.Vt / (jnp.sqrt(size)[:, None] * scale), mu / size)


def _directions(n: int) -> np.ndarray:
    """Where to look: a random direction first; all of them where products for that are enough."""
    normal = np.random.default_rng(0).standard_normal((n if n <= _MOST else 1, n))
    return np.linalg.qr(normal.T)[0].T


def _turned(U: jax.Array, valley: jax.Array | None) -> jax.Array:
    """Orthonormal rows of which the last is along a valley, if there is one: a reflection.

    A valley bends so little that errors of the products across it would hide that.
    """
    if valley is None:
        return U
    along = jnp.where(jnp.any(valley != 0), divide(valley, norm(valley)), U[-1])
    across = U[-1] - along
    factor = divide(jnp.asarray(2, across.dtype), jnp.sum(jnp.square(across)))
    return U - factor * matmul(U, across)[:, None] * across


def _products(
    point: Linearization,
    gradient_at: Callable[[jax.Array], jax.Array],
    basis: _Basis,
    sizes: jax.Array,
    valley: jax.Array | None,
) -> _Krylov:
    """The products of :math:`H_M - I`; of many params with Lanczos' directions, kept orthogonal."""
    n, dtype = point.x.size, point.x.dtype
    most = min(n, _MOST)
    quiet = jnp.asarray(_QUIET / n**0.5, dtype)

    def product(u: jax.Array) -> jax.Array:
        p = basis.step(u)
        t = jnp.asarray(_NEAR, dtype) * _own_size_factor(p, sizes)
        change = divide(basis.slopes(gradient_at(point.x + t * p) - point.gradient), t)
        bent = jnp.where(jnp.isfinite(change), change, jnp.zeros_like(change))
        return bent - basis.less * u

    def orthogonal(U: jax.Array, w: jax.Array) -> jax.Array:
        before = norm(w)
        for _ in range(2):  # once leaves what rounding makes of it
            w = w - matmul(matmul(U, w), U)
        # What is hardly there is rounding, and no other direction: it would be counted twice.
        least = jnp.asarray(float(jnp.finfo(dtype).eps) ** 0.5, dtype) * before
        return jnp.where(norm(w) > least, divide(w, norm(w)), jnp.zeros_like(w))

    def step(at: _Krylov) -> _Krylov:
        w = product(at.U[at.count])
        count, U = at.count + jnp.ones((), jnp.int32), at.U
        if n > most:
            U = U.at[count].set(orthogonal(U, w), mode="drop")
        loud = norm(w) > quiet
        return _Krylov(U, at.W.at[at.count].set(w), count, (at.count > 0) | loud)

    known = jnp.asarray(_directions(n), dtype)
    none = jnp.zeros((most, n), dtype)
    U = _turned(known, valley) if n <= most else none.at[0].set(known[0])
    begun = _Krylov(U, none, jnp.zeros((), jnp.int32), jnp.ones((), bool))
    return while_loop(lambda at: (at.count < most) & at.unclear, step, varying_like(begun, point.x))


def _sizes(point: Linearization, scale: jax.Array) -> jax.Array:
    """How large every param is, of shape `[n]`; one near zero by what moves the residuals."""
    least = jnp.asarray(_SHIFT, scale.dtype) * jnp.sqrt(2 * point.cost) / scale
    return jnp.maximum(jnp.abs(point.x), least)


def _own_size_factor(p: jax.Array, sizes: jax.Array) -> jax.Array:
    """The factor at which a step changes some param by its own size, and none by more."""
    most = jnp.max(divide(jnp.abs(p), sizes), initial=0)
    return divide(jnp.ones_like(most), most)

r"""The test of a claim of convergence along the full step of the linear model.

A step is refused for many reasons: its radius has collapsed, the valley bends across it, or gains
drown in rounding. That no step is accepted is therefore no proof of a minimum, as long as the
linear model, undamped, would still lower the cost by a visible part. Nor is that a proof of the
contrary: where the Jacobian is nearly singular, the curvature of the residuals may be what keeps
the cost up. One more evaluation, a part of the way along that step, tells the two apart.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import matmul, row_total
from fnopt.linear import SingularFactors, divide, norm
from fnopt.solvers.model._linearization import Linearization
from fnopt.solvers.model._scaling import memoryless_scale

SHARE = 1e-4  # of the cost, which a claim may leave to the second-order model
_ABOVE = 3.0  # times the rounding of the residuals, that the model's reduction has to be
_SEEN = 32.0  # rounding units, of directions that the data determine
_OWN = 0.1  # of the size of a param, by which it changes at most
_BLURRED = 4.0  # rounding units, by which a step of the singular values is off
_ACROSS = 10.0  # times as steep as along the full step: the walls of its valley


class Probe(NamedTuple):
    """A part of the full step, and what the linear model says of it."""

    step: jax.Array  # [n], p
    slope: jax.Array  # g^T p
    moved: jax.Array  # [m], J p
    floor: jax.Array  # [m], the residuals on the floor of the valley along p
    blur: jax.Array  # the rounding of these


class Steps(NamedTuple):
    """The steps of a linear model by their damping, in scaled variables."""

    damped: Callable[[jax.Array], tuple[jax.Array, jax.Array]]  # lam -> p, ||J p||
    scale: jax.Array  # [n]
    push: Callable[[jax.Array], jax.Array]  # of `[n]`, not scaled: v -> J v

    def full(self) -> tuple[jax.Array, jax.Array]:
        r"""The step that nothing but rounding damps, and the length :math:`\|J p\|`."""
        eps = float(jnp.finfo(self.scale.dtype).eps)
        return self.damped(jnp.square(jnp.asarray(_SEEN * eps, self.scale.dtype)))


def factored_steps(point: Linearization, factors: SingularFactors) -> Steps:
    """The steps by the singular values of the triangle of a Jacobian, in units of its columns."""
    scale = memoryless_scale(point.columns)
    return Steps(functools.partial(_damped, factors), scale, lambda v: matmul(point.J, v))


def is_hopeful(point: Linearization, length: jax.Array, noise: jax.Array) -> jax.Array:
    r"""Whether the undamped linear model would lower the cost by a visible part.

    .. math:: \tfrac12 \|P r\|^2 > 10^{-4} f, \qquad \|P r\| > 3 \rho

    with the projection `P` on the range of the Jacobian, and the rounding :math:`\rho` of the
    residuals, if every param has an effect.

    Args:
        point: The point.
        length: The length of the projection :math:`P r`.
        noise: :math:`\rho`.
    """
    share = jnp.asarray((2 * SHARE) ** 0.5, length.dtype) * jnp.sqrt(point.cost)
    much = (length > share) & (length > jnp.asarray(_ABOVE, length.dtype) * noise)
    return much & jnp.all(point.columns > 0)


def probe(point: Linearization, steps: Steps, noise: jax.Array) -> Probe:
    r"""The part of the full step that moves the residuals clearly, and not further.

    .. math:: t = \min\Bigl(\sqrt{\rho / \|J p\|},\ 0.1 \min_j |x_j / p_j|\Bigr)

    weighs the rounding of a second difference against its error by higher derivatives, which
    have their say wherever a param changes by factors.

    Args:
        point: The point.
        steps: The steps of the linear model there.
        noise: :math:`\rho`, the rounding of the residuals.
    """
    dtype = point.x.dtype
    full, length = steps.full()
    t = jnp.sqrt(jnp.minimum(divide(noise, length), jnp.ones((), dtype)))
    own = own_share(full / steps.scale, point.x, _OWN)
    t = jnp.where(own > 0, jnp.minimum(t, own), t)
    # As it will be taken: what rounding makes of it is known, and nothing that has to be allowed.
    step = (point.x + t * full / steps.scale) - point.x
    across = jnp.square(jnp.asarray(_ACROSS, dtype) * divide(length, norm(full)))
    down, _ = steps.damped(across)
    moved, bottom = steps.push(step), steps.push(down / steps.scale)
    blur = jnp.asarray(_BLURRED * float(jnp.finfo(dtype).eps), dtype) * norm(down)
    return Probe(step, matmul(point.gradient, step), moved, point.r + bottom, blur)


def _damped(factors: SingularFactors, lam: jax.Array) -> tuple[jax.Array, jax.Array]:
    r"""The damped step of the linear model, and the length :math:`\|J p\|`."""
    y = divide(factors.s * factors.b, jnp.square(factors.s) + lam)
    return -matmul(y, factors.Vt), norm(factors.s * y)


def no_probe(point: Linearization) -> Probe:
    """The probe that goes nowhere."""
    nothing = jnp.zeros_like(point.r)
    none = jnp.zeros_like(point.cost)
    return Probe(jnp.zeros_like(point.x), none, nothing, nothing, none)


def is_refuted(
    point: Linearization, taken: Probe, r: jax.Array, noise: jax.Array, strict: bool = False
) -> jax.Array:
    r"""Whether the second-order model predicts a visible reduction of the cost.

    .. math:: C = \|J p\|^2 + 2\, \bar r^T (r_+ - r - J p), \qquad
        \frac{(g^T p)^2}{2\, C} > 10^{-4} f

    The difference shows how the residuals bend along p. Where they bend in directions in which they
    are steep, another step can follow them, so only those residuals count that are left on the
    floor of the valley, :math:`\bar r`. Where they change by more than the model says, rounding (or
    a Jacobian that is wrong) does, and nothing is refuted. Where all the curvature that is seen may
    be rounding (of the residuals, or of those on the floor), nothing is known that keeps the cost
    up, and a slope is enough that is visible over the step, :math:`-g^T p > 10^{-4} f`.

    Args:
        point: The point.
        taken: The part of the full step, `p` above.
        r: The residuals at its end, :math:`r_+`.
        noise: :math:`\rho`, the rounding of the residuals.
        strict: Whether a claim only stands where curvature is seen that keeps the cost up: where
            the search was made with steps that are cut short, and better ones are left.
    """
    half = jnp.asarray(0.5, r.dtype)
    moved, floor = taken.moved, taken.floor
    rest = (r - point.r) - moved
    products = jnp.stack([moved * moved, floor * rest, floor * floor, rest * rest])
    norms, bent, steep, off = row_total(jnp.sum(products, axis=1))
    curvature = norms + 2 * bent
    # Not by the square of the slope, which may underflow.
    gain = half * taken.slope * divide(taken.slope, jnp.maximum(curvature, half * norms))
    known = jnp.isfinite(gain) & (curvature > -half * norms)
    share = jnp.asarray(SHARE, r.dtype) * point.cost
    if strict:
        return ~(known & (gain <= share))
    unknown = 2 * (jnp.sqrt(steep) * noise + taken.blur * jnp.sqrt(off))
    hidden = jnp.abs(curvature) <= unknown
    return (known & (gain > share)) | (hidden & (-taken.slope > share))


def own_share(step: jax.Array, x: jax.Array, share: float) -> jax.Array:
    """The factor at which a step changes no param by more than a share of its own size.

    A param that is zero has no size, and doesn't count; 0 if none does.
    """
    most = jnp.max(divide(jnp.abs(step), jnp.abs(x)), initial=0)
    return divide(jnp.asarray(share, x.dtype), most)

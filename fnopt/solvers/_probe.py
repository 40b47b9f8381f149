r"""The test of a claim of convergence along the full step of the linear model.

A step is refused for many reasons: its radius has collapsed, the valley bends across it, or gains
drown in rounding. That no step is accepted is therefore no proof of a minimum, as long as the
linear model, undamped, would still lower the cost by a visible part. Nor is that a proof of the
contrary: where the Jacobian is nearly singular, the curvature of the residuals may be what keeps
the cost up. One more evaluation, a part of the way along that step, tells the two apart.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import matmul
from fnopt.linear import System, divide, norm
from fnopt.solvers._linearization import Linearization

SHARE = 1e-4  # of the cost, which a claim may leave to the second-order model
_ABOVE = 3.0  # times the rounding of the residuals, that the model's reduction has to be
_SEEN = 32.0  # rounding units, of directions that the data determine
_ACROSS = 10.0  # times as steep as along the full step: the walls of its valley


class Probe(NamedTuple):
    """A part of the full step, and what the linear model says of it."""

    step: jax.Array  # [n], p
    slope: jax.Array  # g^T p
    moved: jax.Array  # [m], J p
    floor: jax.Array  # [m], the residuals on the floor of the valley along p


def is_hopeful(point: Linearization, noise: jax.Array) -> jax.Array:
    r"""Whether the undamped linear model would lower the cost by a visible part.

    .. math:: \tfrac12 \|P r\|^2 > 10^{-4} f, \qquad \|P r\| > 3 \rho

    with the projection `P` on the range of the Jacobian, and the rounding :math:`\rho` of the
    residuals. A triangle shows it, if every param has an effect; other factors don't.
    """
    if point.triangle is None:
        return jnp.zeros((), bool)
    length = norm(point.triangle.c)
    share = jnp.asarray((2 * SHARE) ** 0.5, length.dtype) * jnp.sqrt(point.cost)
    much = (length > share) & (length > jnp.asarray(_ABOVE, length.dtype) * noise)
    return much & jnp.all(point.columns > 0)


def probe(point: Linearization, system: System, noise: jax.Array) -> Probe:
    r"""The part of the full step that moves the residuals clearly, and not further.

    .. math:: t = \sqrt{\rho / \|J p\|}

    weighs the rounding of a second difference against its error by higher derivatives.

    Args:
        point: The point, with a Jacobian.
        system: The linear model, in units of the Jacobian's columns.
        noise: :math:`\rho`, the rounding of the residuals.
    """
    dtype = point.x.dtype
    seen = jnp.asarray(_SEEN * float(jnp.finfo(dtype).eps), dtype)
    full = system.damped(jnp.square(seen))
    length = jnp.sqrt(full.model_norm)
    t = jnp.sqrt(jnp.minimum(divide(noise, length), jnp.ones((), dtype)))
    # As it will be taken: what rounding makes of it is known, and nothing that has to be allowed.
    step = (point.x + t * divide(full.p, point.columns)) - point.x
    across = jnp.square(jnp.asarray(_ACROSS, dtype) * divide(length, norm(full.p)))
    down = divide(system.damped(across).p, point.columns)
    floor = point.r + matmul(point.J, down)
    return Probe(step, matmul(point.gradient, step), matmul(point.J, step), floor)


def no_probe(point: Linearization) -> Probe:
    """The probe that goes nowhere."""
    nothing = jnp.zeros_like(point.r)
    return Probe(jnp.zeros_like(point.x), jnp.zeros_like(point.cost), nothing, nothing)


def is_refuted(point: Linearization, taken: Probe, r: jax.Array) -> jax.Array:
    r"""Whether the second-order model predicts a visible reduction of the cost.

    .. math:: C = \|J p\|^2 + 2\, \bar r^T (r_+ - r - J p), \qquad
        \frac{(g^T p)^2}{2\, C} > 10^{-4} f

    The difference shows how the residuals bend along p. Where they bend in directions in which they
    are steep, another step can follow them, so only those residuals count that are left on the
    floor of the valley, :math:`\bar r`. Where they change by more than the model says, rounding (or
    a Jacobian that is wrong) does, and nothing is refuted.

    Args:
        point: The point.
        taken: The part of the full step, `p` above.
        r: The residuals at its end, :math:`r_+`.
    """
    half = jnp.asarray(0.5, r.dtype)
    norms = jnp.sum(jnp.square(taken.moved))
    curvature = norms + 2 * jnp.sum(taken.floor * ((r - point.r) - taken.moved))
    gain = divide(half * jnp.square(taken.slope), jnp.maximum(curvature, half * norms))
    known = jnp.isfinite(gain) & (curvature > -half * norms)
    return known & (gain > jnp.asarray(SHARE, r.dtype) * point.cost)

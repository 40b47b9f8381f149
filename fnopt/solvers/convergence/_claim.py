"""A claim of convergence, from the step that raises it to the test that settles it.

A claim is only a status at first. It is examined outside of the loop of steps (in a batch, what
the examination costs would be paid in every step), and where a doubt is left one evaluation is
made where it can be settled instead of where the model would go.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fnopt.core import Status, cond
from fnopt.linear import Triangle, norm, singular_triangle
from fnopt.solvers.convergence._evidence import rises
from fnopt.solvers.convergence._noise import Noise
from fnopt.solvers.convergence._places import least_gain
from fnopt.solvers.convergence._probe import (
    Probe,
    Steps,
    factored_steps,
    is_hopeful,
    is_refuted,
    no_probe,
    probe,
)
from fnopt.solvers.convergence._saddle import Descent, descent, no_descent
from fnopt.solvers.model._linearization import Linearization
from fnopt.solvers.model._scaling import memoryless_scale


class CurvatureProducts(NamedTuple):
    """Gradients that show the curvature that the linear model leaves out."""

    gradient_at: Callable[[jax.Array], jax.Array]  # y -> J(y)^T r, with the residuals of the point
    eps: jax.Array  # the rounding unit
    is_plain: bool  # whether the cost is that of the linear model's residuals: they have no losses


class Doubt(NamedTuple):
    """What is left to doubt of a claim, and where it is tested."""

    exists: jax.Array
    aside: jax.Array  # [n], where the claim is tested
    is_beyond: jax.Array  # whether that is where a param without effect goes
    gain: jax.Array  # of the cost, by which the test refutes it
    is_place: jax.Array  # whether that is one where params without effect may have one
    taken: Probe | None  # a part of the full step; None where the model isn't that of the cost
    is_saddle: jax.Array  # whether the cost bends down, and the linear model is hopeful besides
    drifts: jax.Array  # whether params came along a valley whose floor is level to rounding
    products: jax.Array  # int32, Jacobians that were evaluated to find it

    def least(self, noise: Noise) -> jax.Array:
        """The least reduction of the cost that refutes the claim by itself."""
        return jnp.maximum(self.gain, noise.cost)

    def is_refuted(
        self, point: Linearization, r: jax.Array, noise: Noise, strict: bool
    ) -> jax.Array:
        """Whether residuals `r` at the end of the test show a slope that steps could follow."""
        if self.taken is None:
            return self.is_saddle
        went = jnp.any(self.taken.step != 0)
        return self.is_saddle | (went & is_refuted(point, self.taken, r, noise.residual, strict))

    def verdict(
        self, claimed: jax.Array, refuted: jax.Array, actual: jax.Array, cost: jax.Array
    ) -> jax.Array:
        """The status after a test that has found no better point.

        Args:
            claimed: The status that was claimed.
            refuted: Whether the test shows that it was wrong.
            actual: By how much the cost is lower at the end of the test.
            cost: The cost.
        """
        left = jnp.where(self.drifts, Status.NO_EFFECT.array, claimed)
        stalled = jnp.where(refuted, Status.STALLED.array, left)
        outward = jnp.where(rises(actual, cost), claimed, Status.NO_EFFECT.array)
        return jnp.where(self.is_beyond, outward, stalled)


def no_doubt(point: Linearization, fully: bool) -> Doubt:
    """No doubt of any claim.

    Args:
        point: The point.
        fully: Whether claims are tested along directions of the linear model.
    """
    no, taken = jnp.zeros((), bool), no_probe(point) if fully else None
    none = jnp.zeros((), jnp.int32)
    return Doubt(no, point.x, no, jnp.zeros_like(point.cost), no, taken, no, no, none)


def doubt(
    point: Linearization,
    valley: jax.Array | None,
    beyond: jax.Array,
    place: jax.Array,
    away: jax.Array,
    products: CurvatureProducts | None,
    steps: Steps | None,
    noise: Noise,
) -> Doubt:
    """The doubt of a claim.

    Args:
        point: The point.
        valley: The step along which params came where the residuals are level, or None.
        beyond: Whether params have lost their effect on their way.
        place: Whether params that never had an effect may have one elsewhere; it goes first.
        away: The point with these further out, or there.
        products: What shows curvature; None where claims are not tested along that.
        steps: The linear model's own, where no triangle has them; None where claims are not
            tested along them.
        noise: The rounding there.
    """
    gone, beyond = beyond | place, beyond & ~place
    gain = lax.select(place, least_gain(point.cost), jnp.zeros_like(point.cost))
    none, no = jnp.zeros((), jnp.int32), jnp.zeros((), bool)
    if products is None and steps is None:
        return Doubt(gone, away, beyond, gain, place, None, no, no, none)

    def aside() -> tuple[Probe | None, Descent, jax.Array]:
        if products is not None:
            return _aside(point, valley, products, noise)
        assert steps is not None
        _, length = steps.full()
        hopeful = is_hopeful(point, length, noise.residual)
        return _probe_if(hopeful, point, steps, noise), no_descent(point), no

    probed = products is None or products.is_plain
    nothing = (no_probe(point) if probed else None, no_descent(point), no)
    taken, down, is_saddle = cond(gone, lambda: nothing, aside)
    step = down.step if taken is None else taken.step + down.step
    aside_x = jnp.where(gone, away, point.x + step)
    exists = gone | jnp.any(step != 0)
    gain = gain + down.gain
    level = down.is_level & ~gone
    return Doubt(exists, aside_x, beyond, gain, place, taken, is_saddle, level, down.products)


def _probe_if(needed: jax.Array, point: Linearization, steps: Steps, noise: Noise) -> Probe:
    """The part of the full step that is taken where that is needed."""
    return cond(needed, lambda: probe(point, steps, noise.residual), lambda: no_probe(point))


def _aside(
    point: Linearization, valley: jax.Array | None, products: CurvatureProducts, noise: Noise
) -> tuple[Probe | None, Descent, jax.Array]:
    r"""A step along which the cost bends down, else a part of the full step where that is hopeful.

    Where it bends down clearly and the full step is hopeful as well, the point is no minimum,
    whatever one evaluation shows. A part of the full step by itself says nothing of that: it
    changes no param by more than a tenth, so none that is zero but for rounding, as at the saddle
    that :math:`\cos(w t)` makes of `w = 0`.
    """
    assert point.triangle is not None
    L, c = point.triangle
    factors = singular_triangle(Triangle(L / memoryless_scale(point.columns)[:, None], c))
    down = cond(
        point.cost <= noise.cost,
        lambda: no_descent(point),
        lambda: descent(point, factors, valley, products.gradient_at, products.eps, noise),
    )
    hopeful = is_hopeful(point, norm(c), noise.residual)
    is_saddle = down.is_deep & jnp.any(down.step != 0)
    taken = None
    if products.is_plain:
        steps = factored_steps(point, factors)
        taken = _probe_if(hopeful & ~is_saddle, point, steps, noise)
    # Where little bends down it may be rounding, and the full step tells more.
    none = no_descent(point)._replace(is_level=down.is_level, products=down.products)
    shallow = hopeful & ~is_saddle
    down = Descent(*(lax.select(shallow, a, b) for a, b in zip(none, down, strict=True)))
    return taken, down, hopeful & is_saddle

"""A claim of convergence, from the step that raises it to the one that tests it.

A claim is only a status at first. It is examined outside of the loop of steps (in a batch, what
the examination costs would be paid in every step), and where a doubt is left the next step goes
where it can be settled instead of where the model would go.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fnopt.core import Status, is_converged
from fnopt.linear import System
from fnopt.solvers._evidence import Noise, rises
from fnopt.solvers._linearization import Linearization
from fnopt.solvers._probe import SHARE, Probe, is_hopeful, is_refuted, no_probe, probe
from fnopt.solvers._restart import MOST_RESTARTS
from fnopt.solvers._saddle import bend, no_bend, saddle_direction

_NOTHING = 3  # power of the rounding unit: no start is so far off that this is left of its cost


class Claim(NamedTuple):
    """A claim and its test; a status of `RUNNING` where nothing is claimed."""

    status: jax.Array
    is_raised: jax.Array  # and not examined yet
    aside: jax.Array  # [n], where it is tested
    is_beyond: jax.Array  # whether that is where a param without effect goes
    share: jax.Array  # of the cost, which the test has to gain to refute it
    zero: jax.Array  # the cost that is nothing against that of the start
    taken: Probe | None  # a part of the full step; None where the model isn't that of the cost
    concave: jax.Array | None  # [n], the last step, if the cost bends down along it, else zeros

    @property
    def is_tested(self) -> jax.Array:
        """Whether the next step is the test."""
        return self.status != Status.RUNNING.value

    def least(self, point: Linearization, noise: Noise) -> jax.Array:
        """The least reduction of the cost that refutes the claim by itself."""
        return jnp.maximum(self.share * point.cost, noise.cost)

    def followed(
        self,
        before: Linearization,
        after: Linearization,
        step: jax.Array,
        accepted: jax.Array,
        noise: Noise,
    ) -> Claim:
        """The claim with what a step has shown of the curvature along it."""
        if self.concave is None:
            return self
        known, latest = bend(before, after, step, noise.residual)
        latest = jnp.where(self.is_tested, no_bend(step), latest)
        seen = accepted & (known | self.is_tested)
        return self._replace(concave=jnp.where(seen, latest, self.concave))

    def raised(self, status: jax.Array, can: jax.Array) -> Claim:
        """The claim that a status makes, if it makes one."""
        raised = can & is_converged(status)
        return self._replace(
            status=lax.select(raised, status, Status.RUNNING.array), is_raised=raised
        )

    def examined(
        self,
        point: Linearization,
        beyond: jax.Array,
        away: jax.Array,
        system: Callable[[], System],
        noise: Noise,
        status: jax.Array,
    ) -> tuple[Claim, jax.Array]:
        """The claim with its test; or the status, where there is no doubt.

        Args:
            point: The point.
            beyond: Whether params have lost their effect on their way.
            away: The point with these further out.
            system: The linear model, in units of the columns.
            noise: The rounding there.
            status: The status, `RUNNING` unless something else has ended the search.
        """
        doubt, aside, taken, share = beyond, away, self.taken, jnp.zeros_like(self.share)
        if self.concave is not None:
            seen = self.concave
            nothing = (no_probe(point), jnp.zeros_like(point.x))
            taken, saddle = lax.cond(
                self.is_raised & ~beyond,
                lambda: _aside(point, seen, system, noise),
                lambda: nothing,
            )
            bends = jnp.any(saddle != 0)
            doubt = beyond | bends | jnp.any(taken.step != 0)
            aside = jnp.where(beyond, away, point.x + taken.step + saddle)
            share = jnp.where(bends, jnp.asarray(SHARE, share.dtype), share)
        doubt &= point.cost > self.zero
        ends = self.is_raised & ~doubt & (status == Status.RUNNING.value)
        kept = lax.select(ends, Status.RUNNING.array, self.status)
        claim = Claim(
            kept, jnp.zeros((), bool), aside, beyond, share, self.zero, taken, self.concave
        )
        return claim, lax.select(ends, self.status, status)


def no_claim(point: Linearization, fully: bool) -> Claim:
    """No claim yet.

    Args:
        point: The start.
        fully: Whether claims are tested along directions of the linear model.
    """
    none, share = jnp.zeros((), bool), jnp.zeros_like(point.cost)
    eps = float(jnp.finfo(point.cost.dtype).eps)
    zero = jnp.asarray(eps**_NOTHING, point.cost.dtype) * point.cost
    taken = no_probe(point) if fully else None
    seen = no_bend(point.x) if fully else None
    return Claim(Status.RUNNING.array, none, point.x, none, share, zero, taken, seen)


def _aside(
    point: Linearization, seen: jax.Array, system: Callable[[], System], noise: Noise
) -> tuple[Probe, jax.Array]:
    """A part of the full step where that is hopeful, else one along which the cost may fall."""
    hopeful = is_hopeful(point, noise.residual)
    taken = lax.cond(
        hopeful, lambda: probe(point, system(), noise.residual), lambda: no_probe(point)
    )
    saddle = saddle_direction(point, seen)
    return taken, jnp.where(hopeful, jnp.zeros_like(saddle), saddle)


def tested(
    claim: Claim,
    point: Linearization,
    r: jax.Array,
    actual: jax.Array,
    accepted: jax.Array,
    noise: Noise,
    search: Any,
    reopened: Callable[[], Any],
) -> tuple[jax.Array, Any]:
    """The status after the test of a claim; a search that claimed too early starts again.

    Args:
        claim: The claim.
        point: Where it was made.
        r: The residuals where it was tested.
        actual: By how much the cost is lower there.
        accepted: Whether the search goes on from there.
        noise: The rounding at the point.
        search: The search.
        reopened: Begins it again.
    """
    refuted = jnp.zeros((), bool)
    if claim.taken is not None:
        refuted = is_refuted(point, claim.taken, r, noise.residual)
    early = claim.is_tested & ~claim.is_beyond & (accepted | refuted)
    again = early & (search.restarts < MOST_RESTARTS)
    stalled = jnp.where(refuted, Status.STALLED.array, claim.status)
    outward = jnp.where(rises(actual, point.cost), claim.status, Status.NO_EFFECT.array)
    status = jnp.where(claim.is_beyond, outward, stalled)
    status = lax.select(again | accepted, Status.RUNNING.array, status)
    return status, lax.cond(again, reopened, lambda: search)

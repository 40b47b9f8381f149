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
from fnopt.solvers._probe import Probe, is_hopeful, is_refuted, no_probe, probe
from fnopt.solvers._restart import MOST_RESTARTS
from fnopt.solvers._saddle import Descent, descent, no_descent

_NOTHING = 3  # power of the rounding unit: no start is so far off that this is left of its cost


class Tests(NamedTuple):
    """What claims are tested by."""

    system: Callable[[], System]  # the linear model, in units of the columns
    pulled: Callable[[jax.Array], jax.Array]  # y -> J(y)^T r, with the residuals of the point
    eps: jax.Array  # the rounding unit


class Claim(NamedTuple):
    """A claim and its test; a status of `RUNNING` where nothing is claimed."""

    status: jax.Array
    is_raised: jax.Array  # and not examined yet
    aside: jax.Array  # [n], where it is tested
    is_beyond: jax.Array  # whether that is where a param without effect goes
    gain: jax.Array  # of the cost, by which the test refutes it
    zero: jax.Array  # the cost that is nothing against that of the start
    taken: Probe | None  # a part of the full step; None where the model isn't that of the cost

    @property
    def is_tested(self) -> jax.Array:
        """Whether the next step is the test."""
        return self.status != Status.RUNNING.value

    def least(self, noise: Noise) -> jax.Array:
        """The least reduction of the cost that refutes the claim by itself."""
        return jnp.maximum(self.gain, noise.cost)

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
        tests: Tests,
        noise: Noise,
        status: jax.Array,
    ) -> tuple[Claim, jax.Array, jax.Array]:
        """The claim with its test; or the status, where there is no doubt.

        Args:
            point: The point.
            beyond: Whether params have lost their effect on their way.
            away: The point with these further out.
            tests: What the model shows there.
            noise: The rounding there.
            status: The status, `RUNNING` unless something else has ended the search.

        Returns:
            The claim, the status, and how many Jacobians were evaluated for it.
        """
        doubt, aside, taken = beyond, away, self.taken
        gain, products = jnp.zeros_like(self.gain), jnp.zeros((), jnp.int32)
        if self.taken is not None:
            nothing = (no_probe(point), no_descent(point))
            taken, down = lax.cond(
                self.is_raised & ~beyond & (point.cost > self.zero),
                lambda: _aside(point, tests, noise),
                lambda: nothing,
            )
            step = taken.step + down.step
            doubt = beyond | jnp.any(step != 0)
            aside = jnp.where(beyond, away, point.x + step)
            gain, products = down.gain, down.products
        doubt &= point.cost > self.zero
        ends = self.is_raised & ~doubt & (status == Status.RUNNING.value)
        kept = lax.select(ends, Status.RUNNING.array, self.status)
        claim = Claim(kept, jnp.zeros((), bool), aside, beyond, gain, self.zero, taken)
        return claim, lax.select(ends, self.status, status), products


def no_claim(point: Linearization, fully: bool) -> Claim:
    """No claim yet.

    Args:
        point: The start.
        fully: Whether claims are tested along directions of the linear model.
    """
    none, gain = jnp.zeros((), bool), jnp.zeros_like(point.cost)
    eps = float(jnp.finfo(point.cost.dtype).eps)
    zero = jnp.asarray(eps**_NOTHING, point.cost.dtype) * point.cost
    taken = no_probe(point) if fully else None
    return Claim(Status.RUNNING.array, none, point.x, none, gain, zero, taken)


def _aside(point: Linearization, tests: Tests, noise: Noise) -> tuple[Probe, Descent]:
    """A part of the full step where that is hopeful, else one along which the cost bends down."""
    hopeful = is_hopeful(point, noise.residual)
    taken = lax.cond(
        hopeful, lambda: probe(point, tests.system(), noise.residual), lambda: no_probe(point)
    )
    flat = hopeful | (point.cost <= noise.cost)
    down = lax.cond(
        flat,
        lambda: no_descent(point),
        lambda: descent(point, tests.pulled, tests.eps, noise),
    )
    return taken, down


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

"""What a search has gained so far, and what is nothing of a value beside that."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.solvers.smooth._method import Evaluation
from fnopt.solvers.smooth._tolerances import StoppingTolerances

# How much of the user's 1 a value has, or loses, if that 1 means something; and which part of what
# was lost stands for it if it doesn't.
_ORDINARY = 1e-6, 1e17
_OF_FALL = 1e-10, 1e-4
_BLURRED = 10.0  # rounding units of the value: a gradient that can't be told from none
_ROUNDED = 100.0  # squares of the rounding unit, which a sum of squares has left
VANISHED = 2e-7  # of that 1: a value that is nothing itself


class SearchProgress(NamedTuple):
    """What convergence is judged by, besides the last two points."""

    first: jax.Array  # the value at the start
    steepest: jax.Array  # [n], the largest of each entry of the gradient so far
    recent: jax.Array  # the largest fall of the value, halved with every step since
    flat_steps: jax.Array  # int32, steps in a row that gained and promised nothing
    tested: jax.Array  # the value where the method last began anew; infinite before

    def after(self, moved: jax.Array, fall: jax.Array, here: Evaluation) -> SearchProgress:
        """The progress with a step more."""
        recent = jnp.maximum(fall, self.recent / 2)
        steepest = jnp.maximum(self.steepest, jnp.abs(here.gradient))
        return self._replace(
            steepest=jnp.where(moved, steepest, self.steepest),
            recent=jnp.where(moved, recent, self.recent),
        )

    def is_ordinary(self, value: jax.Array, worth: jax.Array) -> jax.Array:
        """Whether the user's 1 has to do with this problem."""
        size = jnp.abs(value) * worth
        most = jnp.maximum((self.first - value) * worth, size)
        return (most > _ORDINARY[0]) & (size < _ORDINARY[1])

    def one(self, value: jax.Array, worth: jax.Array, over: Any = False) -> jax.Array:
        """What is called 1 of the value: the user's 1, where that has to do with this problem.

        Else the value itself, or what the last steps gained, within parts of the whole fall; and
        all of these where nothing more can be gained.
        """
        fall, size = self.first - value, jnp.abs(value)
        most, own = jnp.maximum(fall, size), self.is_ordinary(value, worth)
        lately = jnp.maximum(size, self.recent)
        part = jnp.clip(lately, _OF_FALL[0] * fall, _OF_FALL[1] * fall)
        return jnp.where(own, 1 / worth, jnp.where(over, most, part))


class Sizes(NamedTuple):
    """What counts of a value, and what is nothing."""

    value: jax.Array  # its magnitude
    one: jax.Array  # what is called 1
    share: jax.Array  # that, in the user's unit: 1, if `gtol` was given
    lately: jax.Array  # what the last steps gained of that
    fine: jax.Array  # the tolerance
    vanished: jax.Array  # whether the value is nothing itself
    surely: jax.Array  # that, and not only beside a fall from far away


def sizes_of(
    point: Evaluation, progress: SearchProgress, tol: StoppingTolerances, over: Any = False
) -> Sizes:
    r"""The tolerance of a value, and what it is made of.

    .. math:: \epsilon_f \max(|f|, \min(o, \delta))

    with 2.2e-9 for :math:`\epsilon_f` of the second if nothing was given; :math:`o` is the user's 1
    or what stands for it, :math:`\delta` what the last steps gained: at least a thousandth of
    :math:`o`; all that was gained, where the value itself has become nothing.
    """
    value = jnp.abs(point.value)
    one = progress.one(point.value, tol.worth)
    most = jnp.maximum(progress.first - point.value, value)
    lately, in_all = (jnp.minimum(one, a) for a in (progress.recent, progress.first - point.value))
    # While steps gain, nothing beside the user's 1 may still be all that is there.
    vanished = value <= VANISHED * jnp.where(over, one, jnp.minimum(one, most))
    matters = jnp.where(vanished, in_all, jnp.maximum(lately, 1e-3 * one))
    fine = jnp.maximum(tol.ftol * value, tol.least * matters)
    share = jnp.ones_like(value)
    eps = float(jnp.finfo(value.dtype).eps)
    if not tol.given:
        blur = jnp.asarray(_BLURRED * eps, value.dtype) / tol.gtol * value
        share = jnp.maximum(progress.one(point.value, tol.worth, over), blur) * tol.worth
    rounded = over & (value <= jnp.asarray(_ROUNDED * eps**2, value.dtype) * most)
    surely = rounded | (vanished & progress.is_ordinary(point.value, tol.worth))
    return Sizes(value, one, share, lately, fine, vanished, surely)

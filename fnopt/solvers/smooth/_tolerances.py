"""The tolerances of `minimize`, and the units that they are meant in."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class StoppingTolerances(NamedTuple):
    """Numbers to stop at, and the units that the iteration works in."""

    ftol: jax.Array  # of the value
    least: jax.Array  # of a value of 1, where the value itself is smaller
    unseen: jax.Array  # the part of a value that rounding hides
    xtol: jax.Array
    gtol: jax.Array
    given: bool  # whether gtol is the user's own number, and the last word
    strict: jax.Array  # the part of the largest gradient that may be rounding
    unit: jax.Array  # what a gradient of 1 is to the user; by entry, if gtol was given
    worth: jax.Array  # what a value of 1 is to the user
    reach: Any = 1  # how many of its own units are the common one, of every param

    def felt(self, pull: jax.Array, x: jax.Array) -> jax.Array:
        """The gradient by the size of every param, where that has grown beyond its unit."""
        return pull if self.given else pull * jnp.clip(jnp.abs(x), 1, self.reach)


def tolerances(
    dtype: Any,
    eps: float,
    ftol: Any,
    xtol: Any,
    gtol: Any,
    unit: jax.Array,
    worth: jax.Array,
    reach: Any = 1,
) -> StoppingTolerances:
    """The tolerances as arrays, with the defaults filled in."""

    def number(x: Any, default: float) -> jax.Array:
        return jnp.asarray(default if x is None else x, dtype)

    return StoppingTolerances(
        number(ftol, max(2.2e-9, 16 * eps)),
        number(ftol, 2.2e-9),
        number(ftol, 16 * eps),
        number(xtol, 4 * eps),
        number(gtol, max(1e-5, eps**0.5)),
        gtol is not None,
        jnp.minimum(0.1 * number(gtol, 1), jnp.asarray(max(1e-12, 80 * eps), dtype)),
        unit,
        worth,
        reach,
    )

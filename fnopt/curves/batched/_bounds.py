"""Steps of many problems that stay within bounds."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import while_loop
from fnopt.curves.batched._lanes import Params
from fnopt.linear import NormalEquations, Rows, scaled, unrolled_cholesky, unrolled_solve

_PASSES = 5  # how often a step is taken again with more params on their bounds

Masks = tuple[jax.Array, ...]
"""One bool array of shape `[lanes]` for each parameter."""


class LaneBox(NamedTuple):
    """The bounds of many problems."""

    lower: Params
    upper: Params

    def nearest(self, x: Params) -> Params:
        """The points of the boxes nearest to `x`."""
        sides = zip(x, self.lower, self.upper, strict=True)
        return tuple(jnp.clip(x, low, high) for x, low, high in sides)

    def held(self, x: Params, g: Params) -> Masks:
        """Which params sit on a bound that the cost pushes them against."""
        sides = zip(x, g, self.lower, self.upper, strict=True)
        return tuple(
            ((x <= low) & (g >= 0)) | ((x >= high) & (g <= 0)) for x, g, low, high in sides
        )


def faced(sums: NormalEquations, x: Params, box: LaneBox | None) -> NormalEquations:
    """The sums without the params that are held on a bound: their gradient is zero."""
    if box is None:
        return sums
    g = tuple(
        jnp.where(held, jnp.zeros_like(g), g)
        for held, g in zip(box.held(x, sums.g), sums.g, strict=True)
    )
    return sums._replace(g=g)


def predicted_reduction(sums: NormalEquations, p: Params) -> jax.Array:
    r"""The reduction that the linear model predicts for steps: :math:`-2 p^T g - p^T A p`."""
    zero = jnp.zeros_like(sums.square)
    slope = sum((p_i * g_i for p_i, g_i in zip(p, sums.g, strict=True)), zero)
    curvature = sum((p_i * b_i for p_i, b_i in zip(p, _times(sums.A, p), strict=True)), zero)
    return -2 * slope - curvature


def _times(A: Rows, p: Params) -> Params:
    n = len(p)
    zero = jnp.zeros_like(p[0])
    return tuple(sum((A[max(i, j)][min(i, j)] * p[j] for j in range(n)), zero) for i in range(n))


class _LanesCut(NamedTuple):
    """Steps for which more and more params are put on their bounds."""

    moved: Masks  # which are
    end: Params  # where the step ends, in the box
    best: Params  # the best such end so far
    predicted: jax.Array  # what the linear model says of it
    more: jax.Array  # bool[lanes], whether the last step left the box
    passes: jax.Array  # int32


def bounded(x: Params, sums: NormalEquations, lam: jax.Array, s: Params, box: LaneBox) -> Params:
    r"""The approximate minimum of the damped linear model within bounds.

    Params on a bound that the cost pushes them against are held. Those that a step takes out of
    the box are put on their bounds and the step is taken again for the rest, a few times; the best
    of these ends, by the linear model, stands. So does :func:`fnopt.least_squares`.

    Args:
        x: The params, in the box.
        sums: The sums there.
        lam: The damping.
        s: :math:`D^{-1}`.
        box: The bounds.
    """
    held = box.held(x, sums.g)
    zero = jnp.zeros_like(lam)
    S_A_S = scaled(sums.A, s)

    def cut(moved: Masks, goal: Params, passes: jax.Array) -> _LanesCut:
        end = box.nearest(goal)
        out = tuple(e != g for e, g in zip(end, goal, strict=True))
        gain = predicted_reduction(sums, tuple(e - x_i for e, x_i in zip(end, x, strict=True)))
        more = sum((o.astype(jnp.int32) for o in out[1:]), out[0].astype(jnp.int32)) > 0
        both = tuple(m | o for m, o in zip(moved, out, strict=True))
        return _LanesCut(both, end, end, gain, more, passes)

    def step(moved: Masks, end: Params) -> Params:
        """The step of the params that aren't put anywhere."""
        free = [(~(h | m)).astype(zero.dtype) for h, m in zip(held, moved, strict=True)]
        shift = tuple(jnp.where(m, e - x_i, zero) for m, e, x_i in zip(moved, end, x, strict=True))
        slopes = zip(sums.g, _times(sums.A, shift), strict=True)
        g = [f * (g_i + b) for f, (g_i, b) in zip(free, slopes, strict=True)]
        A = tuple(
            tuple(
                free[i] * a * free[j] + (1 - free[i] if i == j else zero) for j, a in enumerate(row)
            )
            for i, row in enumerate(S_A_S)
        )
        z = unrolled_solve(unrolled_cholesky(A, lam), [a * b for a, b in zip(s, g, strict=True)])
        parts = zip(x, shift, free, s, z, strict=True)
        return tuple(x_i + shift_i - f * s_i * z_i for x_i, shift_i, f, s_i, z_i in parts)

    def again(at: _LanesCut) -> _LanesCut:
        new = cut(at.moved, step(at.moved, at.end), at.passes + jnp.ones((), jnp.int32))
        better = at.more & (new.predicted > at.predicted)
        best = tuple(jnp.where(better, e, b) for e, b in zip(new.end, at.best, strict=True))
        gain = jnp.where(better, new.predicted, at.predicted)
        return new._replace(best=best, predicted=gain, more=at.more & new.more)

    nowhere = tuple(jnp.zeros(lam.shape, bool) for _ in x)
    first = cut(nowhere, step(nowhere, x), jnp.zeros((), jnp.int32))
    return while_loop(lambda at: jnp.any(at.more) & (at.passes < _PASSES), again, first).best


def lanes_of(box: Any) -> LaneBox | None:
    """Bounds of shape `[n, lanes]` param by param."""
    return None if box is None else LaneBox(*(tuple(side) for side in box))

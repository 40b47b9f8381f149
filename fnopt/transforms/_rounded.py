"""Stochastic rounding of updates into params of few digits."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import (
    dtype_of,
    is_inexact,
    is_narrow,
    is_none,
    safe_increment,
    static,
    stochastic_round_leaves,
    zero_count,
)
from fnopt.transforms._keys import key_words, step_key
from fnopt.transforms._wrapper import Wrapper


class RoundedWrapper(Wrapper):
    r"""A wrapper that says which number of the params' dtype a step ends at.

    The update is the way to that number, :math:`q - \theta` in float32, so that `apply_updates`,
    which adds in float32, lands on it exactly. A bfloat16 update could not say it: between
    :math:`\theta` and :math:`q` half as large lie numbers that are finer than the digits of
    the difference (from 1 to 0.001 bfloat16 has no way). Only where `q` is :math:`2^{16}` times
    smaller than the param does float32 run out of digits too; the step then ends within
    :math:`2^{-24}` of the old param.
    """

    needs_params = True
    wide_updates = True


def rows(updates: Any, *trees: Any) -> tuple[list[tuple[Any, ...]], Any]:
    """The leaves of `updates` with those of other trees, which may have `None` there."""
    leaves, treedef = jax.tree.flatten(updates, is_leaf=is_none)
    columns = [treedef.flatten_up_to(tree) for tree in trees]
    return list(zip(leaves, *columns, strict=True)), treedef


def is_rounded(p: Any, u: Any) -> bool:
    """Whether a leaf is one of few digits that gets a floating update."""
    return is_inexact(u) and is_narrow(dtype_of(p))


class StochasticRoundingState(NamedTuple):
    """The number of updates made, which the random numbers come from, and the inner state."""

    count: jax.Array
    inner_state: Any


class stochastic_rounding(RoundedWrapper):
    r"""Round parameters of 16 and 8 bits at random, so that their mean is exact.

    .. math:: \theta' = \mathrm{sr}(\theta + u), \qquad E[\theta'] = \theta + u

    The sum is rounded to one of its two neighbours at random, to the nearer one more often. It
    needs no memory. Rounding to the nearest loses every step that is smaller than half of a param's
    last digit: 1 - 1000 x 1e-3 is 1 in bfloat16. Params of 32 bits and more are left to
    `apply_updates`. `kahan` and `master_copy` have no noise, and cost memory.

    Put it around the whole optimizer: what comes after it in a chain would move the params off the
    numbers that were chosen. The updates of narrow params are float32 here (see
    `Transformation.wide_updates`), and are to be added in float32, as `apply_updates` does.

    Args:
        inner: The optimizer, fnopt's or any (init, update) pair.
        key: A whole number or a key of `jax.random`, a constant of the compiled step. The random
            numbers of a step come from the key and the number of the step, so a restored run
            continues unchanged.

    Raises:
        TypeError: If the key is neither.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.stochastic_rounding(fnopt.sgd(1e-3), key=3)
        >>> params = {"w": jnp.ones(10_000, jnp.bfloat16)}  # its digits are 0.004 wide below 1
        >>> updates, _ = tx.update(params, tx.init(params), params)
        >>> params = fnopt.apply_updates(params, updates)
        >>> print(f"{params['w'].astype(jnp.float32).mean():.4f}")
        0.9990

    Reference:
        Zamirai et al., 2020, arXiv:2010.06192; Gupta et al., 2015, arXiv:1502.02551.
    """

    key: Any = static(default=0, convert=key_words)

    def init(self, params: Any) -> StochasticRoundingState:
        """A zero count, and the inner state."""
        return StochasticRoundingState(zero_count(), self.inner.init(params))

    def update(
        self, updates: Any, state: StochasticRoundingState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, StochasticRoundingState]:
        """The way to the numbers that were drawn."""
        new, inner_state = self.inner.update(updates, state.inner_state, params, **extra_args)
        pairs, treedef = rows(new, params)
        leaves = [u for u, _ in pairs]
        narrow = [i for i, (u, p) in enumerate(pairs) if is_rounded(p, u)]
        before = [jnp.asarray(pairs[i][1]) for i in narrow]
        wide = [p.astype(jnp.float32) for p in before]
        wanted = [w + leaves[i].astype(jnp.float32) for w, i in zip(wide, narrow, strict=True)]
        key = step_key(self.key, state.count)
        ends = stochastic_round_leaves(wanted, [p.dtype for p in before], key)
        for i, end, w in zip(narrow, ends, wide, strict=True):
            leaves[i] = end - w
        state = StochasticRoundingState(safe_increment(state.count), inner_state)
        return treedef.unflatten(leaves), state

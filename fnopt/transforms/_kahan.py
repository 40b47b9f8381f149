"""Compensated summation (Kahan's) of updates into params of few digits."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import Slot, compute_dtype, dtype_of, is_inexact, round_to_nearest
from fnopt.transforms._rounded import RoundedWrapper, is_rounded, rows


class KahanState(NamedTuple):
    """The rounding error of the params so far, and the inner state."""

    compensation: Slot
    inner_state: Any


class kahan(RoundedWrapper):
    r"""Compensated summation of parameters: add the rounding error to the next step (Kahan).

    .. math:: y = u + c, \qquad \theta' = \mathrm{round}(\theta + y), \qquad
              c' = (\theta + y) - \theta'

    The compensation :math:`c` is one more array in the dtype of the params. With it, bfloat16
    params have 16 digits instead of 8, in 4 bytes a param. A float32 copy (`master_copy`) takes 6.
    It also works for 32-bit params, and makes their sums as accurate as with twice the digits. For
    8-bit params it is a float16 array: two float8 numbers have too few digits between them for a
    small step.

    Put it around the whole optimizer: what comes after it in a chain would move the params off the
    numbers that it reckons with. The updates of narrow params are float32 here (see
    `Transformation.wide_updates`), and are to be added in float32, as `apply_updates` does.

    Args:
        inner: The optimizer, fnopt's or any (init, update) pair.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.kahan(fnopt.sgd(1e-3))
        >>> params = {"w": jnp.ones(1, jnp.bfloat16)}
        >>> state = tx.init(params)
        >>> for _ in range(2):  # each too small for a digit of bfloat16
        ...     updates, state = tx.update({"w": jnp.ones(1)}, state, params)
        ...     params = fnopt.apply_updates(params, updates)
        >>> params["w"], state.compensation["w"]
        (Array([0.996094], dtype=bfloat16), Array([0.00190735], dtype=bfloat16))

    Reference:
        Zamirai et al., 2020, arXiv:2010.06192; Kahan, 1965.
    """

    def init(self, params: Any) -> KahanState:
        """Rounding errors of zero, and the inner state."""
        zeros = jax.tree.map(_no_loss, params)
        return KahanState(zeros, self.inner.init(params))

    def update(
        self, updates: Any, state: KahanState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, KahanState]:
        """The step to the nearest numbers, and the rounding errors that are left."""
        new, inner_state = self.inner.update(updates, state.inner_state, params, **extra_args)
        triples, treedef = rows(new, params, state.compensation)
        pairs = [_compensate_leaf(*triple) for triple in triples]
        new, lost = (treedef.unflatten([pair[i] for pair in pairs]) for i in (0, 1))
        return new, KahanState(lost, inner_state)


def _no_loss(p: Any) -> Any:
    if not is_inexact(p):
        return None
    dtype = dtype_of(p)
    return jnp.zeros_like(p, jnp.float16 if jnp.finfo(dtype).bits < 16 else dtype)


def _compensate_leaf(u: Any, p: Any, c: Any) -> tuple[Any, Any]:
    if c is None or not is_inexact(u):
        return u, c
    dtype = jnp.float32 if is_rounded(p, u) else compute_dtype(dtype_of(p))
    wide, y = jnp.asarray(p).astype(dtype), u.astype(dtype) + c.astype(dtype)
    total = wide + y
    if is_rounded(p, u):
        end = round_to_nearest(total, p.dtype)
        y, lost = end - wide, total - end
    else:  # what float32 itself rounds off (Knuth's two-sum, whichever is larger)
        back = total - wide
        lost = (wide - (total - back)) + (y - back)
    lost = jnp.where(jnp.isfinite(lost), lost, jnp.zeros_like(lost))
    return y, lost.astype(c.dtype)

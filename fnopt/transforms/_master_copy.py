"""Master copies: wide params behind narrow ones that the model computes with."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import (
    Slot,
    as_dtype,
    compute_dtype,
    dtype_of,
    is_inexact,
    is_narrow,
    round_to_nearest,
    static,
)
from fnopt.transforms._find import read_slot
from fnopt.transforms._rounded import RoundedWrapper, rows


class MasterCopyState(NamedTuple):
    """The wide params, `None` where the params are as wide themselves, and the inner state."""

    master: Slot
    inner_state: Any


class master_copy(RoundedWrapper):
    r"""Update a float32 copy of the parameters, of which the model's are the rounding.

    .. math:: m' = m + \mathrm{inner}(g, m), \qquad \theta' = \mathrm{round}(m')

    The inner optimizer works on the wide params `m` only. Its slots, its weight decay and its steps
    are those of a float32 run. Only the gradient is taken at the rounded params. After every step
    the params are exactly the rounding of the wide ones. `m` begins as a copy of the params; read
    it with `master_params`, for evaluation or to go on in float32. Leaves of this width have no
    copy and are updated directly.

    Put it around the whole optimizer: what comes after it in a chain would move the params off the
    copy. The updates of narrow params are float32 here (see `Transformation.wide_updates`), and are
    to be added in float32, as `apply_updates` does. If you set the params yourself, make a new
    state: the next step starts from the copy, not from the params.

    Args:
        inner: The optimizer, fnopt's or any (init, update) pair.
        dtype: The dtype of the copy.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.master_copy(fnopt.sgd(1e-3))
        >>> params = {"w": jnp.ones(1, jnp.bfloat16)}
        >>> state = tx.init(params)
        >>> for _ in range(2):  # each too small for a digit of bfloat16
        ...     updates, state = tx.update({"w": jnp.ones(1)}, state, params)
        ...     params = fnopt.apply_updates(params, updates)
        >>> print(params["w"], f"{fnopt.master_params(state, params)['w'][0]:.4f}")
        [0.996094] 0.9980

    Reference:
        Micikevicius et al., 2017, arXiv:1710.03740.
    """

    dtype: Any = static(default=jnp.dtype(jnp.float32), convert=as_dtype)

    def init(self, params: Any) -> MasterCopyState:
        """Wide copies, and the inner state for them."""
        copy = lambda p: jnp.array(p, self.dtype, copy=True) if self._copies(p) else None  # noqa: E731
        master = jax.tree.map(copy, params)
        return MasterCopyState(master, self.inner.init(_wide(params, master)))

    def _copies(self, p: Any) -> bool:
        real = is_inexact(p) and jnp.issubdtype(dtype_of(p), jnp.floating)
        return real and jnp.finfo(dtype_of(p)).bits < jnp.finfo(self.dtype).bits

    def update(
        self, updates: Any, state: MasterCopyState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, MasterCopyState]:
        """The way to the roundings of the wide params after their step."""
        master = _wide(params, state.master)
        new, inner_state = self.inner.update(updates, state.inner_state, master, **extra_args)
        triples, treedef = rows(new, params, state.master)
        pairs = [_follow_leaf(*triple) for triple in triples]
        new, master = (treedef.unflatten([pair[i] for pair in pairs]) for i in (0, 1))
        return new, MasterCopyState(master, inner_state)


def _wide(params: Any, master: Any) -> Any:
    pairs, treedef = rows(params, master)
    return treedef.unflatten([p if m is None else m for p, m in pairs])


def _follow_leaf(u: Any, p: Any, m: Any) -> tuple[Any, Any]:
    if m is None or not is_inexact(u):
        return u, m
    dtype = compute_dtype(m.dtype)
    m = (m.astype(dtype) + u.astype(dtype)).astype(m.dtype)
    if is_narrow(p.dtype):
        end = round_to_nearest(m.astype(jnp.float32), p.dtype).astype(dtype)
    else:
        end = jax.lax.reduce_precision(m, 8, 23)  # float32 behind which is float64
    return end.astype(dtype) - jnp.asarray(p).astype(dtype), m


def master_params(state: Any, params: Any) -> Any:
    """Parameters at the precision that `master_copy` keeps; other parameters as they are.

    Args:
        state: The state of `master_copy`, or of a chain or wrapper with one inside.
        params: The params.

    Returns:
        A tree like `params`.

    Raises:
        ValueError: If there is no such state in it, or more than one for a leaf.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, params = fnopt.master_copy(fnopt.sgd(0.1)), {"w": jnp.ones(1, jnp.bfloat16)}
        >>> fnopt.master_params(tx.init(params), params)
        {'w': Array([1.], dtype=float32)}
    """
    return read_slot(
        params,
        state,
        MasterCopyState,
        "master",
        lambda kept, p, master: master,
        "master_params",
        "master_copy",
    )

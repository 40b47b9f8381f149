"""Transforms for selected leaves, and frozen parameters."""

from __future__ import annotations

import functools
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fnopt.core import dtype_of, is_array_like, is_inexact, static, translate_extra_args
from fnopt.transforms._chain import Wrapper
from fnopt.transforms._select import as_mask, select_mask


class MaskedState(NamedTuple):
    """The state of the inner transform, which knows of the leaves that it works on only."""

    inner_state: Any


def only(chosen: Any, tree: Any) -> Any:
    """The leaves where the tree `chosen` is True; `None`, an empty tree, in place of the others."""
    return jax.tree.map(lambda c, x: x if c else None, chosen, tree)


def merge_masked(chosen: Any, tree: Any, other: Any) -> Any:
    """The leaves of `tree` where the tree `chosen` is True, those of `other` elsewhere."""
    return jax.tree.map(lambda c, x, y: x if c else y, chosen, tree, other)


class Selective(Wrapper):
    """A wrapper whose inner transform works on some leaves, and sees `None` in place of others.

    Functions of the params among the extra arguments (`value_fn`, `obj_fn` ...) become functions of
    these leaves.
    """

    _others_stay: ClassVar[bool] = False  # or get updates, for which they need gradients

    mask: Any = static(convert=as_mask)

    def _select(self, tree: Any) -> Any:
        """A tree of bools: which leaves the inner transform works on."""
        return select_mask(self.mask, tree)

    def _updates_of_others(self, updates: Any, params: Any) -> Any:
        """The updates of the leaves that the inner transform doesn't work on, as a tree."""
        raise NotImplementedError

    def left_out(self, params: Any) -> Any:
        """Mask of the leaves that stay as they are: the inner transform's, and frozen ones."""
        chosen = self._select(params)
        others = jax.tree.map(lambda _: self._others_stay, chosen)
        return merge_masked(chosen, self.inner.left_out(only(chosen, params)), others)

    def init(self, params: Any) -> MaskedState:
        """The inner state, for the leaves that the inner transform works on."""
        return MaskedState(self.inner.init(only(self._select(params), params)))

    def update(
        self, updates: Any, state: MaskedState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, MaskedState]:
        """The inner updates where the inner transform works, and the others' own."""
        # The params decide if they are given: `init` saw their dtypes; gradients may have others.
        chosen = self._select(updates if params is None else params)
        inward = functools.partial(only, chosen)
        inner_params = None if params is None else inward(params)
        if params is not None:
            extra_args = translate_extra_args(
                extra_args, inward, lambda p: merge_masked(chosen, p, params)
            )
        inner_updates = None if updates is None else inward(updates)  # LM takes no gradient
        inside, inner_state = self.inner.update(
            inner_updates, state.inner_state, inner_params, **extra_args
        )
        return merge_masked(chosen, inside, self._updates_of_others(updates, params)), MaskedState(
            inner_state
        )


class masked(Selective):
    r"""Apply a transform to the selected leaves; the others pass through unchanged.

    .. math:: u_\ell = \begin{cases} \mathrm{inner}(g)_\ell & m_\ell \\
              g_\ell & \text{otherwise} \end{cases}

    The inner transform sees `None` in place of the other leaves, and keeps no state for them.
    Leaves that are not selected come out as *gradients*. Use `masked` for a part of a chain, and
    `freeze` for params that should stay as they are.

    Args:
        inner: The transform for the selected leaves, fnopt's or any (init, update) pair.
        mask: Which leaves: a tree of bools with the structure of the params or a prefix of it, a
            pattern on the leaf path (`'*/bias'`), `by_pattern` or `by_path`.

    Raises:
        TypeError: If `mask` is a bare function or has leaves that are not bools.
        ValueError: If leaves have no label, or the mask fits no leaf of the params.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.masked(fnopt.clip(1.0), "*/bias")
        >>> grads = {"kernel": 3 * jnp.ones(2), "bias": 3 * jnp.ones(2)}
        >>> tx.update(grads, tx.init(grads))[0]
        {'bias': Array([1., 1.], dtype=float32), 'kernel': Array([3., 3.], dtype=float32)}
    """

    def _updates_of_others(self, updates: Any, params: Any) -> Any:
        return jax.tree.map(lambda _: None, params) if updates is None else updates


class freeze(Selective):
    r"""Freeze the selected parameters, and train the others.

    .. math:: u_\ell = \begin{cases} 0 & m_\ell \\
              \mathrm{inner}(g)_\ell & \text{otherwise} \end{cases}

    Frozen leaves have no state, and their gradients are ignored, so these may be NaN or None. You
    can also freeze integers (a counter inside a model), keys of `jax.random` and functions. Put it
    around the whole optimizer, so that no other transform sees the frozen leaves. Where the
    gradient is None, the update is None.

    Args:
        inner: The optimizer of the other leaves, fnopt's or any (init, update) pair.
        mask: Which leaves are frozen, in any form that `masked` takes.

    Raises:
        TypeError: If `mask` is a bare function or has leaves that are not bools.
        ValueError: If leaves have no label, or the mask fits no leaf of the params.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.freeze(fnopt.adam(0.1), "encoder/*")
        >>> params = {"encoder": {"w": jnp.ones(2)}, "head": {"w": jnp.ones(2)}}
        >>> fnopt.slots(tx.init(params))["mu"]
        {'encoder': {'w': None}, 'head': {'w': Array([0., 0.], dtype=float32)}}
        >>> tx.update(params, tx.init(params), params)[0]["encoder"]
        {'w': Array([0., 0.], dtype=float32)}
    """

    _others_stay = True

    def _select(self, tree: Any) -> Any:
        return jax.tree.map(lambda frozen: not frozen, super()._select(tree))

    def _updates_of_others(self, updates: Any, params: Any) -> Any:
        updates = params if updates is None else updates
        return jax.tree.map(_no_update, updates, updates if params is None else params)


def _no_update(g: Any, p: Any) -> Any:
    """Zeros to add: in the gradient's dtype for floating params, in the param's own for others.

    For a key of `jax.random`, to which nothing can be added, they are what
    `jax.grad(allow_int=True)` says of one: zeros of no bits. For what is no array, None.
    """
    if not is_array_like(p):
        return None
    dtype = dtype_of(g if is_inexact(p) else p)
    if dtype == jax.dtypes.float0 or jnp.issubdtype(dtype, jax.dtypes.prng_key):
        return np.zeros(jnp.shape(p), jax.dtypes.float0)
    return jnp.zeros_like(p, dtype=dtype)

"""Updates of low-precision parameters: stochastic rounding, compensated sums, master copies."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import Slot, is_none, static
from fnopt.numerics import (
    as_dtype,
    compute_dtype,
    dtype_of,
    is_inexact,
    is_narrow,
    round_to_nearest,
    safe_increment,
    stochastic_round_leaves,
)
from fnopt.transforms._chain import Wrapper, read_slot
from fnopt.transforms._gradient_noise import key_words, step_key


class RoundedWrapper(Wrapper):
    r"""Base class of wrappers that round the new params to the params' dtype.

    If :math:`q` is the rounded new param, the update is :math:`q - \theta` in float32, and
    `apply_updates`, which adds in float32, computes :math:`q` exactly. A bfloat16 update doesn't
    have enough digits: if :math:`q` is less than half of :math:`\theta`, the difference may not be
    a bfloat16 number (no bfloat16 update changes 1 to 0.001). If :math:`q` is :math:`2^{16}` times
    smaller than :math:`\theta`, float32 doesn't have enough digits either. The error is then at
    most :math:`2^{-24}` of the old param.
    """

    needs_params = True
    wide_updates = True


def _zip_leaves(updates: Any, *trees: Any) -> tuple[list[tuple[Any, ...]], Any]:
    """Zip the leaves of trees, which may be None; also return the treedef."""
    leaves, treedef = jax.tree.flatten(updates, is_leaf=is_none)
    columns = [treedef.flatten_up_to(tree) for tree in trees]
    return list(zip(leaves, *columns, strict=True)), treedef


def _is_rounded(p: Any, u: Any) -> bool:
    """Whether a leaf has a narrow dtype and a floating update."""
    return is_inexact(u) and is_narrow(dtype_of(p))


class StochasticRoundingState(NamedTuple):
    """Number of previous updates, which seeds the random numbers, and the inner state."""

    count: jax.Array
    inner_state: Any


class stochastic_rounding(RoundedWrapper):
    r"""Round parameters of 16 and 8 bits stochastically, without bias.

    .. math:: \theta' = \mathrm{sr}(\theta + u), \qquad E[\theta'] = \theta + u

    The sum is rounded at random to one of its two neighbors, more often to the nearer neighbor.
    Stochastic rounding needs no memory. Rounding to nearest discards every step smaller than half
    the spacing of the numbers near a param: in bfloat16, 1 remains 1 after 1,000 steps of -1e-3.
    Params of 32 bits and more aren't rounded. `kahan` and `master_copy` have no noise, but need
    memory.

    Put `stochastic_rounding` around the whole optimizer, because a later transform in a chain would
    change the rounded params. The updates of narrow params are float32 (see
    `Transformation.wide_updates`), and must be added in float32, as `apply_updates` does.

    Args:
        inner: The optimizer, a `Transformation` or any (init, update) pair.
        key: An integer or a key of `jax.random`, a constant of the compiled step. The key and the
            step number determine the random numbers of a step, so a restored run continues with
            the same numbers.

    Raises:
        TypeError: If `key` is neither an integer nor a key of `jax.random`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.stochastic_rounding(fnopt.sgd(1e-3), key=3)
        >>> params = {"w": jnp.ones(10_000, jnp.bfloat16)}  # the spacing below 1 is 0.004
        >>> updates, _ = tx.update(params, tx.init(params), params)
        >>> params = fnopt.apply_updates(params, updates)
        >>> print(f"{params['w'].astype(jnp.float32).mean():.4f}")
        0.9990

    Reference:
        Zamirai et al., 2020, arXiv:2010.06192; Gupta et al., 2015, arXiv:1502.02551.
    """

    State = StochasticRoundingState

    key: Any = static(default=0, convert=key_words)

    def update(
        self, updates: Any, state: StochasticRoundingState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, StochasticRoundingState]:
        """Return the updates to the stochastically rounded params."""
        step, inner_state = self.inner.update(updates, state.inner_state, params, **extra_args)
        pairs, treedef = _zip_leaves(step, params)
        leaves = [u for u, _ in pairs]
        indices = [i for i, (u, p) in enumerate(pairs) if _is_rounded(p, u)]
        narrow_params = [jnp.asarray(pairs[i][1]) for i in indices]
        # float32 represents every number of 16 and 8 bits exactly.
        wide_params = [p.astype(jnp.float32) for p in narrow_params]
        sums = [
            p + leaves[i].astype(jnp.float32) for p, i in zip(wide_params, indices, strict=True)
        ]
        key = step_key(self.key, state.count)
        new_params = stochastic_round_leaves(sums, [p.dtype for p in narrow_params], key)
        for i, new_p, p in zip(indices, new_params, wide_params, strict=True):
            leaves[i] = new_p - p
        state = StochasticRoundingState(safe_increment(state.count), inner_state)
        return treedef.unflatten(leaves), state


class KahanState(NamedTuple):
    """Accumulated rounding error of the params, and the inner state."""

    compensation: Slot
    inner_state: Any


class kahan(RoundedWrapper):
    r"""Add each rounding error of the parameters to the next step (Kahan's compensated summation).

    .. math:: y = u + c, \qquad \theta' = \mathrm{round}(\theta + y), \qquad
              c' = (\theta + y) - \theta'

    The compensation :math:`c` is a slot in the dtype of the params. With the compensation, bfloat16
    params have 16 binary digits instead of 8, in 4 bytes per param. With a float32 copy
    (`master_copy`), a param takes 6 bytes. `kahan` also works for 32-bit params: updates are
    accumulated as accurately as in 64 bits. For 8-bit params the compensation is a float16 array,
    because two float8 numbers have too few digits for a small step.

    Put `kahan` around the whole optimizer, because a later transform in a chain would change the
    rounded params. The updates of narrow params are float32 (see `Transformation.wide_updates`),
    and must be added in float32, as `apply_updates` does.

    Args:
        inner: The optimizer, a `Transformation` or any (init, update) pair.

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
        """Return rounding errors of zero, and the inner state."""
        zeros = jax.tree.map(_zero_error, params)
        return KahanState(zeros, self.inner.init(params))

    def update(
        self, updates: Any, state: KahanState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, KahanState]:
        """Return the updates to the rounded params, and the rounding errors."""
        step, inner_state = self.inner.update(updates, state.inner_state, params, **extra_args)
        triples, treedef = _zip_leaves(step, params, state.compensation)
        pairs = [_compensate_leaf(*triple) for triple in triples]
        step, compensation = (treedef.unflatten([pair[i] for pair in pairs]) for i in (0, 1))
        return step, KahanState(compensation, inner_state)


def _zero_error(p: Any) -> Any:
    if not is_inexact(p):
        return None
    dtype = dtype_of(p)
    # An 8-bit float has too few digits for the rounding error of an 8-bit float.
    return jnp.zeros_like(p, jnp.float16 if jnp.finfo(dtype).bits < 16 else dtype)


def _compensate_leaf(u: Any, p: Any, c: Any) -> tuple[Any, Any]:
    if c is None or not is_inexact(u):
        return u, c
    dtype = jnp.float32 if _is_rounded(p, u) else compute_dtype(dtype_of(p))
    wide_p, y = jnp.asarray(p).astype(dtype), u.astype(dtype) + c.astype(dtype)
    total = wide_p + y
    if _is_rounded(p, u):
        new_p = round_to_nearest(total, p.dtype)
        y, error = new_p - wide_p, total - new_p
    else:
        # Knuth's two-sum computes the rounding error of the sum exactly. Kahan's shorter formula
        # would require that the param is larger than the step.
        rounded_y = total - wide_p
        error = (wide_p - (total - rounded_y)) + (y - rounded_y)
    # If a param overflows, the error is NaN, which would stay in the slot.
    error = jnp.where(jnp.isfinite(error), error, jnp.zeros_like(error))
    return y, error.astype(c.dtype)


class MasterCopyState(NamedTuple):
    """Wide copies, or None for params that are already as wide, and the inner state."""

    master: Slot
    inner_state: Any


class master_copy(RoundedWrapper):
    r"""Update a float32 copy of the parameters, and round the copy to the model's parameters.

    .. math:: m' = m + \mathrm{inner}(g, m), \qquad \theta' = \mathrm{round}(m')

    The inner optimizer receives only the wide params :math:`m`. Its slots, weight decay and steps
    are as in a float32 run; only the gradient is evaluated at the rounded params. After every step,
    the params are exactly the rounded wide params. :math:`m` is initialized as a copy of the
    params. `master_params` returns :math:`m`, for evaluation or to continue in float32. Leaves that
    are already as wide have no copy and are updated directly.

    Put `master_copy` around the whole optimizer, because a later transform in a chain would change
    the params but not the copy. The updates of narrow params are float32 (see
    `Transformation.wide_updates`), and must be added in float32, as `apply_updates` does. If you
    set the params yourself, initialize a new state: the next step starts from the copy, not from
    the params.

    Args:
        inner: The optimizer, a `Transformation` or any (init, update) pair.
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
        """Return wide copies, and the inner state for them."""

        def copy_leaf(p: Any) -> Any:
            return jnp.array(p, self.dtype, copy=True) if self._needs_copy(p) else None

        master = jax.tree.map(copy_leaf, params)
        return MasterCopyState(master, self.inner.init(_wide_params(params, master)))

    def _needs_copy(self, p: Any) -> bool:
        is_real = is_inexact(p) and jnp.issubdtype(dtype_of(p), jnp.floating)
        return is_real and jnp.finfo(dtype_of(p)).bits < jnp.finfo(self.dtype).bits

    def update(
        self, updates: Any, state: MasterCopyState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, MasterCopyState]:
        """Return the updates to the rounded wide params."""
        master = _wide_params(params, state.master)
        step, inner_state = self.inner.update(updates, state.inner_state, master, **extra_args)
        triples, treedef = _zip_leaves(step, params, state.master)
        pairs = [_update_master(*triple) for triple in triples]
        step, master = (treedef.unflatten([pair[i] for pair in pairs]) for i in (0, 1))
        return step, MasterCopyState(master, inner_state)


def _wide_params(params: Any, master: Any) -> Any:
    """Replace the params that have a copy by the copy."""
    pairs, treedef = _zip_leaves(params, master)
    return treedef.unflatten([p if m is None else m for p, m in pairs])


def _update_master(u: Any, p: Any, m: Any) -> tuple[Any, Any]:
    if m is None or not is_inexact(u):
        return u, m
    dtype = compute_dtype(m.dtype)
    m = (m.astype(dtype) + u.astype(dtype)).astype(m.dtype)
    if is_narrow(p.dtype):
        new_p = round_to_nearest(m.astype(jnp.float32), p.dtype).astype(dtype)
    else:
        # A float64 copy is rounded to float32 params. XLA may remove a pair of casts, but not a
        # `reduce_precision`.
        new_p = jax.lax.reduce_precision(m, 8, 23)
    return new_p.astype(dtype) - jnp.asarray(p).astype(dtype), m


def master_params(state: Any, params: Any) -> Any:
    """Return the wide params of `master_copy`, and params without a copy unchanged.

    Args:
        state: The state of `master_copy`, or of an optimizer that contains it.
        params: The params.

    Returns:
        A tree like `params`.

    Raises:
        ValueError: If `state` contains no state of `master_copy`, or more than one for a leaf.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, params = fnopt.master_copy(fnopt.sgd(0.1)), {"w": jnp.ones(1, jnp.bfloat16)}
        >>> fnopt.master_params(tx.init(params), params)
        {'w': Array([1.], dtype=float32)}
    """
    read = lambda state, p, master: master  # noqa: E731
    who, maker = "master_params", "master_copy"
    return read_slot(params, state, MasterCopyState, "master", read, who, maker)

"""Flags of dead, vanishing, exploding and non-finite layers, with hysteresis."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from fnopt.core import Scalar, Value, hyper, static
from fnopt.errors import show_report, where
from fnopt.monitor._groups import biases_of, weights_of
from fnopt.monitor._health import Health


class Flag(enum.IntEnum):
    """Kind of a health warning; `health_flags` defines the conditions.

    Attributes:
        FINE: No warning.
        DEAD: The gradient is negligible relative to the gradients of most layers.
        EXPLODING: The gradient norm is far above its usual value.
        NONFINITE: The gradient contains NaN or infinities.
        VANISHING: The gradient is negligible relative to the largest gradient of a layer.
        HALF_DEAD: At least half of the gradient's elements are zero.

    Example:
        >>> from fnopt.monitor import Flag
        >>> Flag(1).name
        'DEAD'
    """

    FINE = 0
    DEAD = 1
    EXPLODING = 2
    NONFINITE = 3
    VANISHING = 4
    HALF_DEAD = 5


class FlagState(NamedTuple):
    """State of `health_flags`: flags of every group, their streaks and running means."""

    dead: jax.Array
    dead_streak: jax.Array
    exploding: jax.Array
    exploding_streak: jax.Array
    nonfinite: jax.Array
    nonfinite_streak: jax.Array
    usual: jax.Array
    vanishing: jax.Array
    vanishing_streak: jax.Array
    half_dead: jax.Array
    half_dead_streak: jax.Array

    @property
    def code(self) -> jax.Array:
        """The worst flag of every group, as an int32 array of `Flag` values."""
        kinds = [
            (self.nonfinite, Flag.NONFINITE),
            (self.exploding, Flag.EXPLODING),
            (self.dead, Flag.DEAD),
            (self.vanishing, Flag.VANISHING),
            (self.half_dead, Flag.HALF_DEAD),
        ]
        code = jnp.full(self.dead.shape, Flag.FINE.value, jnp.int32)
        for flag, kind in reversed(kinds):
            code = jnp.where(flag, jnp.asarray(kind.value, jnp.int32), code)
        return code


_ONLY_WITH_ZEROS = "half-dead layers are only flagged if 'zeros' is among the statistics"


class FlagReport(NamedTuple):
    """The names of the groups with a flag; empty (and false) without flags."""

    dead: tuple[str, ...]
    exploding: tuple[str, ...]
    nonfinite: tuple[str, ...]
    vanishing: tuple[str, ...] = ()
    half_dead: tuple[str, ...] = ()

    @classmethod
    def from_flags(cls, names: tuple[str, ...], flags: Iterable[Any]) -> FlagReport:
        """The names whose flags are set, for every kind of flag."""
        return cls(
            *(
                tuple(n for n, up in zip(names, np.asarray(flag), strict=True) if up)
                for flag in flags
            )
        )

    def __bool__(self) -> bool:
        return any(tuple(self))

    _repr_pretty_ = show_report

    def __str__(self) -> str:
        found = self._asdict().items()
        parts = [f"{kind.replace('_', ' ')}: {', '.join(names)}" for kind, names in found if names]
        return "; ".join(parts) or f"no layer is flagged ({_ONLY_WITH_ZEROS})"


class health_flags(Value):
    r"""Detect dead, vanishing and exploding layers from successive `Health` values.

    A group is *dead* if the root mean square :math:`r_\ell` of its gradient is negligible relative
    to the median group. It is *exploding* if its norm :math:`n_\ell` is far above its usual norm
    :math:`\bar n_\ell`, or above an absolute limit:

    .. math::
        r_\ell \le d \cdot \operatorname{median}_k r_k, \qquad
        n_\ell > e\, \bar n_\ell \ \text{ or } \ n_\ell > c

    A group is *vanishing* if its gradient is negligible relative to the largest group,
    :math:`r_\ell \le v \max_k r_k`, as in the first of many saturating layers. A group is *half
    dead* if at least half of its elements are exactly zero, as after units that are never active;
    this flag needs `zeros` among the statistics. With a batch of one example, half of all rectified
    units are inactive: increase `zeros` for such batches.

    A bias is dead or vanishing only if the weights of its layer are dead or vanishing. Biases of
    attention keys and biases before a normalization always have a zero gradient. Weights are
    flagged as half dead only if their bias is half dead. A matrix without a bias is never flagged
    as half dead, because its zero rows may be unused embedding rows or constant zero inputs.

    :math:`\bar n_\ell` is an exponential geometric mean over the observations that were neither
    zero nor flagged. It never decreases, so fluctuations of a converging fit don't raise a flag,
    and it is at least a tenth of the median group's value. Both tests, except for the absolute
    limit, are independent of the scale of the loss.

    A flag is raised after `patience` consecutive observations of its condition. It is cleared after
    as many consecutive observations that are beyond the threshold by the factor `release`. The flag
    for infinite or NaN elements is raised at once.

    `health_flags` is a pair of pure functions: `init(groups)` and `update(health, state)`.

    Args:
        dead: :math:`d`, fraction of the median root mean square.
        exploding: :math:`e`, multiple of the group's usual norm.
        limit: :math:`c`, the absolute limit of the norm.
        release: The factor by which an observation must be beyond the threshold to count as
            recovered.
        decay: Decay of the usual norm for each observation.
        vanishing: :math:`v`, fraction of the largest root mean square.
        zeros: Fraction of zeros above which a group is half dead.
        patience: The number of consecutive observations that raise or clear a flag.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.monitor import health, health_flags
        >>> watch = health_flags(patience=2)
        >>> state = watch.init(3)
        >>> for _ in range(2):
        ...     h = health({"a": jnp.ones(4), "b": jnp.zeros(4), "c": jnp.ones(4)})
        ...     state = watch.update(h, state)
        >>> print(watch.report(h.names, state))
        dead: b; vanishing: b
    """

    dead: Scalar = hyper(default=1e-6, ge=0)
    exploding: Scalar = hyper(default=1e3, gt=1, infinite=True)
    limit: Scalar = hyper(default=1e6, gt=0, infinite=True)
    release: Scalar = hyper(default=10.0, ge=1)
    decay: Scalar = hyper(default=0.99, ge=0, lt=1)
    vanishing: Scalar = hyper(default=1e-7, ge=0)
    zeros: Scalar = hyper(default=0.5, gt=0, le=1)
    patience: int = static(default=3, least=1)

    def init(self, groups: int, dtype: Any = None) -> FlagState:
        """Return the initial state, without flags.

        Args:
            groups: The number of groups, `len(health.names)`.
            dtype: The dtype of the statistics; float32 by default.

        Returns:
            The initial state.
        """
        flag = (bool, jnp.int32)  # a flag and its streak
        dtypes = (*flag, *flag, *flag, dtype or jnp.float32, *flag, *flag)
        return FlagState(*(jnp.zeros(groups, each) for each in dtypes))

    def update(self, health: Health, state: FlagState) -> FlagState:
        """Update the flags by one observation; pure, for use inside a jitted step.

        Args:
            health: The result of `health`, with the norm among the statistics.
            state: The state after the previous observation.

        Returns:
            The next state.

        Raises:
            ValueError: If the norm was not measured, or for another number of groups.
        """
        _check(health, state)
        norm = health.norm.astype(state.usual.dtype)
        h = jax.tree.map(lambda x: jnp.asarray(x, norm.dtype), self)
        shapes = health.shapes or (None,) * len(health.names)
        weights = weights_of(health.names, shapes)
        present = jnp.asarray([n > 0 for n in health.sizes], bool)
        rms = _rms_with_weights(norm, health.sizes, weights)
        bad = ~jnp.isfinite(norm) if health.nonfinite is None else health.nonfinite > 0
        half = half_dead(h, health, biases_of(weights, shapes)) & present & (norm > 0)
        exploding, calm = is_exploding(h, norm, state.usual)
        wishes = {
            "dead": is_dead(h, rms, present),
            "exploding": (exploding, calm),
            "nonfinite": (bad, ~bad),
            "vanishing": is_vanishing(h, rms, present),
            "half_dead": (half, ~half),
        }
        usual = next_usual(h, norm, state.usual, exploding)
        return FlagState(usual=usual, **_update_flags(state, wishes, self.patience))

    def report(self, names: tuple[str, ...], state: FlagState) -> FlagReport:
        """Return the names of the groups whose flags are raised.

        Args:
            names: The names of the groups, `health.names`.
            state: A state with concrete values (outside `jax.jit`).

        Returns:
            A `FlagReport`; print it, or test whether it is true.
        """
        flags = state.dead, state.exploding, state.nonfinite, state.vanishing, state.half_dead
        return FlagReport.from_flags(names, flags)


def _check(health: Health, state: FlagState) -> None:
    if health.norm is None:
        raise ValueError(
            f"{where()}health_flags needs the norm: health(..., stats=('norm', ...)), "
            f"it got {health.stats}."
        )
    if health.norm.shape != state.usual.shape:
        raise ValueError(
            f"{where()}health_flags: the state is for groups of shape {state.usual.shape}, the "
            f"health has {health.norm.shape}: call init({len(health.names)}), and jax.vmap over "
            "further axes."
        )


def _rms_with_weights(
    norm: jax.Array, sizes: tuple[int, ...], weights: tuple[int, ...]
) -> jax.Array:
    """Root mean square of each group, or of its weights if that is larger."""
    rms = norm / jnp.sqrt(jnp.asarray([max(n, 1) for n in sizes], norm.dtype))
    is_alone = weights == tuple(range(len(weights)))
    return rms if is_alone else jnp.maximum(rms, rms[np.asarray(weights)])


def _update_flags(
    state: FlagState, wishes: dict[str, tuple[jax.Array, jax.Array]], patience: int
) -> dict[str, jax.Array]:
    """Update flags and streaks by the criteria of one observation."""
    changed = {}
    for kind, (enter, leave) in wishes.items():
        flag, streak = getattr(state, kind), getattr(state, f"{kind}_streak")
        # Non-finite values are flagged at once.
        least = jnp.where(flag, patience, 1) if kind == "nonfinite" else patience
        streak = jnp.where(jnp.where(flag, leave, enter), streak + 1, jnp.zeros_like(streak))
        # Hysteresis: a flag changes after its criterion differed from it `patience` times in a row.
        change = streak >= least
        changed[kind] = flag ^ change
        changed[f"{kind}_streak"] = jnp.where(change, jnp.zeros_like(streak), streak)
    return changed


class Thresholds(Protocol):
    """The thresholds of `health_flags`, which documents them."""

    dead: Scalar
    exploding: Scalar
    limit: Scalar
    release: Scalar
    decay: Scalar
    vanishing: Scalar
    zeros: Scalar


def is_dead(h: Thresholds, rms: jax.Array, present: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Whether each group is dead, and whether it has clearly recovered.

    The median is over the finite groups that have elements. If most groups are zero, the median is
    zero too. These groups are still detected, because the comparison includes equality.
    """
    counts = present & jnp.isfinite(rms)
    median = _median(rms, counts)
    return counts & (rms <= h.dead * median), rms > h.release * h.dead * median


def is_vanishing(h: Thresholds, rms: jax.Array, present: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Whether each group is negligible relative to the largest, and whether it has recovered."""
    counts = present & jnp.isfinite(rms)
    # The bound is relative to the largest layer, because gradients of all layers grow and shrink
    # with the loss.
    largest = jnp.max(jnp.where(counts, rms, jnp.zeros_like(rms)), initial=0)
    bound = h.vanishing * largest
    return counts & (rms <= bound) & (largest > 0), rms > h.release * bound


def half_dead(h: Thresholds, health: Health, biases: tuple[int | None, ...]) -> jax.Array:
    """Mask of the groups whose entries and bias are zero in at least the fraction `h.zeros`."""
    if health.zeros is None:
        return jnp.zeros(len(biases), bool)
    judged = np.asarray([bias is not None for bias in biases], bool)
    bias = np.asarray([i if b is None else b for i, b in enumerate(biases)], int)
    half = health.zeros >= h.zeros
    return half & half[bias] & judged


def _median(x: jax.Array, mask: jax.Array) -> jax.Array:
    """Return the upper median of the elements under the mask, or zero if the mask is empty."""
    zero = jnp.zeros((), x.dtype)
    if not x.size:
        return zero
    # Infinity sorts the ignored elements after all others.
    ordered = jnp.sort(jnp.where(mask, x, jnp.asarray(jnp.inf, x.dtype)))
    count = jnp.sum(mask, dtype=jnp.int32)
    return jnp.where(count > 0, ordered[jnp.minimum(count // 2, x.size - 1)], zero)


def is_exploding(h: Thresholds, norm: jax.Array, usual: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Whether each norm is far too large, and whether it has clearly recovered."""
    # A group that was negligible in the first observations may become as large as the others.
    least = _median(usual, usual > 0) / 10
    bound = jnp.minimum(h.exploding * jnp.maximum(usual, least), h.limit)
    bound = jnp.where(usual > 0, bound, h.limit)
    return norm > bound, norm < bound / h.release


def next_usual(h: Thresholds, norm: jax.Array, usual: jax.Array, exploding: jax.Array) -> jax.Array:
    """Update the exponential geometric mean of the norms since the first positive one."""
    counts = (norm > 0) & jnp.isfinite(norm) & ~exploding
    one = jnp.ones((), norm.dtype)
    now = jnp.log(jnp.where(counts, norm, one))
    past = jnp.where(usual > 0, jnp.log(jnp.where(usual > 0, usual, one)), now)
    # The mean is geometric, because norms of a training range over orders of magnitude.
    mean = jnp.exp(h.decay * past + (one - h.decay) * now)
    # The usual norm never falls: a converged layer that moves again isn't exploding.
    return jnp.where(counts, jnp.maximum(mean, usual), usual)

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
        DEAD: The gradient is negligible relative to the median layer.
        EXPLODING: The gradient norm is far above its usual value.
        NONFINITE: The gradient contains NaN or infinities.
        VANISHING: The gradient is negligible relative to the layer with the largest gradient.
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
    """State of `health_flags`: the flags, their streaks, and the usual norms, `[groups]` each.

    A streak is the number of consecutive observations that contradict a flag. The usual norm is a
    running mean, which is zero before the first positive norm.
    """

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
        """Worst flag of every group, an int32 array of `Flag` values."""
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
    """Names of the groups with a raised flag; false if no flag is raised."""

    dead: tuple[str, ...]
    exploding: tuple[str, ...]
    nonfinite: tuple[str, ...]
    vanishing: tuple[str, ...] = ()
    half_dead: tuple[str, ...] = ()

    @classmethod
    def from_flags(cls, names: tuple[str, ...], flags: Iterable[Any]) -> FlagReport:
        """Make a report from a mask of the groups for each kind of flag."""
        return cls(
            *(
                tuple(n for n, raised in zip(names, np.asarray(flag), strict=True) if raised)
                for flag in flags
            )
        )

    def __bool__(self) -> bool:
        return any(tuple(self))

    _repr_pretty_ = show_report

    def __str__(self) -> str:
        kinds = self._asdict().items()
        parts = [f"{kind.replace('_', ' ')}: {', '.join(names)}" for kind, names in kinds if names]
        return "; ".join(parts) or f"no layer is flagged ({_ONLY_WITH_ZEROS})"


class health_flags(Value):
    r"""Detect dead, vanishing and exploding layers from successive `Health` values.

    A group is *dead* if the root mean square :math:`r_\ell` of its gradient is negligible relative
    to the median group. A group is *exploding* if the norm :math:`n_\ell` is far above the group's
    usual norm :math:`\bar n_\ell`, or above an absolute limit:

    .. math::
        r_\ell \le d \cdot \operatorname{median}_k r_k, \qquad
        n_\ell > e\, \bar n_\ell \ \text{ or } \ n_\ell > c

    A group is *vanishing* if the gradient is negligible relative to the largest group,
    :math:`r_\ell \le v \max_k r_k`, as in the first of many saturating layers. A group is *half
    dead* if at least half of the gradient's elements are exactly zero, for example because units
    are never active. This flag needs `zeros` among the statistics. With a batch of one example,
    half of all rectified units are inactive, so increase `zeros` for such batches.

    A bias is dead or vanishing only if the weights of the layer are dead or vanishing: biases of
    attention keys and biases before a normalization always have a zero gradient. Weights are half
    dead only if their bias has as many zeros. A matrix without a bias is never half dead, because
    zero rows may be due to unused embedding rows or to inputs that are always zero.

    :math:`\bar n_\ell` is an exponential geometric mean over the observations that were neither
    zero nor exploding. The mean never decreases, so that fluctuations of a converging fit don't
    raise a flag. The test uses at least a tenth of the median group's :math:`\bar n`. Except for
    the absolute limit, the conditions don't depend on the scale of the loss.

    A flag is raised after `patience` consecutive observations of its condition. The flag is cleared
    after `patience` consecutive observations that are beyond the threshold by the factor `release`.
    The flag for infinite or NaN elements is raised without delay.


    Args:
        dead: :math:`d`, fraction of the median root mean square.
        exploding: :math:`e`, multiple of the group's usual norm.
        limit: :math:`c`, the absolute limit of the norm.
        release: The factor by which a recovered group must be beyond the threshold.
        decay: Decay of the usual norm per observation.
        vanishing: :math:`v`, fraction of the largest root mean square.
        zeros: Fraction of zeros from which on a group is half dead.
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
        """Initial state without raised flags.

        Args:
            groups: Number of groups, `len(health.names)`.
            dtype: The dtype of the statistics; float32 by default.

        Returns:
            The initial state.
        """
        flag = (bool, jnp.int32)  # a flag and its streak
        dtypes = (*flag, *flag, *flag, dtype or jnp.float32, *flag, *flag)
        return FlagState(*(jnp.zeros(groups, d) for d in dtypes))

    def update(self, health: Health, state: FlagState) -> FlagState:
        """Update the flags by one observation; a pure function for use inside a jitted step.

        Args:
            health: The result of `health`, with the norm among the statistics.
            state: The state after the previous observation.

        Returns:
            The next state.

        Raises:
            ValueError: If the norm wasn't measured, or the number of groups differs from `init`.
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
        exploding, recovered = is_exploding(h, norm, state.usual)
        criteria = {
            "dead": is_dead(h, rms, present),
            "exploding": (exploding, recovered),
            "nonfinite": (bad, ~bad),
            "vanishing": is_vanishing(h, rms, present),
            "half_dead": (half, ~half),
        }
        usual = next_usual(h, norm, state.usual, exploding)
        return FlagState(usual=usual, **_update_flags(state, criteria, self.patience))

    def report(self, names: tuple[str, ...], state: FlagState) -> FlagReport:
        """List the groups whose flags are raised.

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
            f"{where()}health_flags: the argument `health` has the statistics {health.stats}, "
            "expected 'norm' among the statistics. Pass stats=('norm', ...) to health."
        )
    if health.norm.shape != state.usual.shape:
        raise ValueError(
            f"{where()}health_flags: `health.norm` has shape {health.norm.shape}, expected "
            f"{state.usual.shape} as in the state. Call init({len(health.names)}), and use "
            "jax.vmap for further axes."
        )


def _rms_with_weights(
    norm: jax.Array, sizes: tuple[int, ...], weights: tuple[int, ...]
) -> jax.Array:
    """Root mean square of each group; for biases, at least the root mean square of the weights."""
    rms = norm / jnp.sqrt(jnp.asarray([max(n, 1) for n in sizes], norm.dtype))
    is_alone = weights == tuple(range(len(weights)))
    return rms if is_alone else jnp.maximum(rms, rms[np.asarray(weights)])


def _update_flags(
    state: FlagState, criteria: dict[str, tuple[jax.Array, jax.Array]], patience: int
) -> dict[str, jax.Array]:
    """Update flags and streaks by one observation.

    `criteria` contains, for each kind of flag, masks of the groups whose observation raises and
    clears the flag.
    """
    fields = {}
    for kind, (enter, leave) in criteria.items():
        flag, streak = getattr(state, kind), getattr(state, f"{kind}_streak")
        # Non-finite values raise the flag without delay.
        required = jnp.where(flag, patience, 1) if kind == "nonfinite" else patience
        streak = jnp.where(jnp.where(flag, leave, enter), streak + 1, jnp.zeros_like(streak))
        change = streak >= required
        fields[kind] = flag ^ change
        fields[f"{kind}_streak"] = jnp.where(change, jnp.zeros_like(streak), streak)
    return fields


class Thresholds(Protocol):
    """Thresholds of `health_flags`; see its arguments."""

    dead: Scalar
    exploding: Scalar
    limit: Scalar
    release: Scalar
    decay: Scalar
    vanishing: Scalar
    zeros: Scalar


def is_dead(h: Thresholds, rms: jax.Array, present: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Masks of dead groups, and of groups that have clearly recovered.

    The median is over the finite groups that have elements. If most groups are zero, the median is
    zero. These groups are still dead, because the comparison includes equality.
    """
    mask = present & jnp.isfinite(rms)
    median = _median(rms, mask)
    return mask & (rms <= h.dead * median), rms > h.release * h.dead * median


def is_vanishing(h: Thresholds, rms: jax.Array, present: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Masks of groups negligible relative to the largest group, and of recovered groups."""
    mask = present & jnp.isfinite(rms)
    # A relative bound, because the gradients of all layers scale with the loss.
    largest = jnp.max(jnp.where(mask, rms, jnp.zeros_like(rms)), initial=0)
    bound = h.vanishing * largest
    return mask & (rms <= bound) & (largest > 0), rms > h.release * bound


def half_dead(h: Thresholds, health: Health, biases: tuple[int | None, ...]) -> jax.Array:
    """Mask of the groups that, like their bias, have at least the fraction `h.zeros` of zeros."""
    if health.zeros is None:
        return jnp.zeros(len(biases), bool)
    has_bias = np.asarray([bias is not None for bias in biases], bool)
    bias = np.asarray([i if b is None else b for i, b in enumerate(biases)], int)
    half = health.zeros >= h.zeros
    return half & half[bias] & has_bias


def _median(x: jax.Array, mask: jax.Array) -> jax.Array:
    """Upper median of the unmasked elements; zero if the mask selects no element."""
    zero = jnp.zeros((), x.dtype)
    if not x.size:
        return zero
    # Infinity sorts the excluded elements after all others.
    ordered = jnp.sort(jnp.where(mask, x, jnp.asarray(jnp.inf, x.dtype)))
    count = jnp.sum(mask, dtype=jnp.int32)
    return jnp.where(count > 0, ordered[jnp.minimum(count // 2, x.size - 1)], zero)


def is_exploding(h: Thresholds, norm: jax.Array, usual: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Masks of groups whose norm is far above the usual norm, and of recovered groups."""
    # The floor permits that a group with a negligible first norm becomes as large as the others.
    floor = _median(usual, usual > 0) / 10
    bound = jnp.minimum(h.exploding * jnp.maximum(usual, floor), h.limit)
    bound = jnp.where(usual > 0, bound, h.limit)
    return norm > bound, norm < bound / h.release


def next_usual(h: Thresholds, norm: jax.Array, usual: jax.Array, exploding: jax.Array) -> jax.Array:
    """Update the exponential geometric mean of each group's norm since the first positive norm."""
    mask = (norm > 0) & jnp.isfinite(norm) & ~exploding
    one = jnp.ones((), norm.dtype)
    log_norm = jnp.log(jnp.where(mask, norm, one))
    log_usual = jnp.where(usual > 0, jnp.log(jnp.where(usual > 0, usual, one)), log_norm)
    # A geometric mean, because norms vary over orders of magnitude during a training.
    mean = jnp.exp(h.decay * log_usual + (one - h.decay) * log_norm)
    # The usual norm never decreases, because a converged layer that changes again isn't exploding.
    return jnp.where(mask, jnp.maximum(mean, usual), usual)

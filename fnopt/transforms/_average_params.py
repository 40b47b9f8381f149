"""Averages of the parameters over steps, and interpolation toward slow parameters."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import (
    Scalar,
    ScalarOrSchedule,
    Slot,
    Transformation,
    apply_updates,
    cast_like,
    hyper,
    map_leaves,
    select_tree,
    slot_copy,
    slot_zeros,
    static,
)
from fnopt.numerics import as_dtype, safe_increment, zero_count
from fnopt.transforms._chain import Wrapper, read_slot
from fnopt.transforms._tree_algebra import numbers, real_dtype_of


class AverageParamsState(NamedTuple):
    """Step count, total weight of the average, and the average multiplied by this weight."""

    count: jax.Array
    weight: jax.Array
    average: Slot


class _AverageParams(Transformation):
    """Base class of transforms that average the params after each step."""

    needs_params = True

    def _weights(self, state: AverageParamsState, count: jax.Array) -> tuple[Any, Any]:
        """Compute the weights of the old average and of the new params."""
        raise NotImplementedError

    def init(self, params: Any) -> AverageParamsState:
        """Return an average of zero with zero weight."""
        dtype = getattr(self, "accumulator_dtype", None)
        zero = jnp.zeros((), real_dtype_of(params))
        return AverageParamsState(zero_count(), zero, slot_zeros(params, dtype))

    def update(
        self, updates: Any, state: AverageParamsState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, AverageParamsState]:
        """Return the updates unchanged; average the new params, rounded to their storage dtype."""
        count = safe_increment(state.count)
        old_weight, new_weight = self._weights(state, count)

        new_params = apply_updates(params, cast_like(updates, params))
        weights = {"old": old_weight, "new": new_weight}

        def average_leaf(h: Any, x: Any, average: Any) -> Any:
            # Without the select, a non-finite param with a weight of zero would add 0 * inf = NaN.
            x = jnp.where(h["new"] > 0, x, jnp.zeros_like(x))
            return x, h["old"] * average + h["new"] * x

        _, average = map_leaves(
            average_leaf, new_params, hyper=weights, outputs=2, average=state.average
        )
        return updates, AverageParamsState(count, old_weight * state.weight + new_weight, average)


class params_ema(_AverageParams):
    r"""Keep an exponential moving average of the parameters.

    .. math:: a_t = \beta_t\, a_{t-1} + (1-\beta_t)\, \theta_t, \qquad
              w_t = \beta_t\, w_{t-1} + (1-\beta_t), \qquad \bar\theta_t = a_t / w_t

    Updates pass unchanged. Put `params_ema` last in a chain, where it receives the final update.
    Read the average with `averaged_params`. The division by :math:`w` corrects the bias of the
    initialization at zero, also if the decay changes with the step.

    Args:
        decay: :math:`\beta`, a number or a `Schedule`.
        debias: Whether the average starts at zero with bias correction; otherwise it starts at the
            initial parameters.
        warmup: Whether the decay is at most :math:`(1+t)/(10+t)`, so that early parameters lose
            their influence quickly.
        every: The number of steps between two updates of the average.
        accumulator_dtype: Storage dtype; by default the dtype of the params, at least float32.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.chain(fnopt.sgd(1.0), fnopt.params_ema(0.5))
        >>> params = {"w": jnp.asarray([3.0])}
        >>> state = tx.init(params)
        >>> for _ in range(2):  # to 2, and to 1
        ...     updates, state = tx.update({"w": jnp.ones(1)}, state, params)
        ...     params = fnopt.apply_updates(params, updates)
        >>> print(f"{fnopt.averaged_params(state, params)['w'][0]:.3f}")
        1.333

    Reference:
        Polyak and Juditsky, 1992; Tarvainen and Valpola, 2017, arXiv:1703.01780.
    """

    decay: ScalarOrSchedule = hyper(default=0.999, ge=0, le=1, schedule=True)
    debias: bool = static(default=True)
    warmup: bool = static(default=False)
    every: Scalar = hyper(default=1, ge=1)
    accumulator_dtype: Any = static(default=None, convert=as_dtype)

    def init(self, params: Any) -> AverageParamsState:
        """Return an average of zero with zero weight, or the initial parameters."""
        state = super().init(params)
        if self.debias:
            return state
        average = slot_copy(params, self.accumulator_dtype)
        return AverageParamsState(state.count, jnp.ones_like(state.weight), average)

    def _weights(self, state: AverageParamsState, count: jax.Array) -> tuple[Any, Any]:
        h = numbers(self, state.weight.dtype, state.count)
        decay = h.decay
        if self.warmup:
            # (1 + n) / (10 + n) after n updates, as in TensorFlow's ExponentialMovingAverage.
            t = (state.count + 1).astype(decay.dtype)
            decay = jnp.minimum(decay, t / (9 + t))
        is_due = count % jnp.round(h.every).astype(count.dtype) == 0
        old_weight = jnp.where(is_due, decay, jnp.ones_like(decay))
        return old_weight, 1 - old_weight


class params_mean(_AverageParams):
    r"""Keep the arithmetic mean of the parameters after some step (SWA, Polyak, tail averaging).

    .. math:: \bar\theta = \frac1n \sum_{i=1}^{n} \theta_{s + i k}

    Updates pass unchanged. Put `params_mean` last in a chain. Read the average with
    `averaged_params`, which returns the current parameters before the first average.

    Args:
        start: :math:`s`, the number of steps before the mean begins; 0 is Polyak averaging.
        every: :math:`k`, the number of steps between two averaged iterates; for stochastic weight
            averaging, the length of a cycle.
        accumulator_dtype: Storage dtype; by default the dtype of the params, at least float32.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.chain(fnopt.sgd(1.0), fnopt.params_mean(start=1))
        >>> params = {"w": jnp.asarray([4.0])}
        >>> state = tx.init(params)
        >>> for _ in range(3):  # to 3, which isn't averaged, to 2, and to 1
        ...     updates, state = tx.update({"w": jnp.ones(1)}, state, params)
        ...     params = fnopt.apply_updates(params, updates)
        >>> fnopt.averaged_params(state, params)
        {'w': Array([1.5], dtype=float32)}

    Reference:
        Izmailov et al., 2018, arXiv:1803.05407; Polyak and Juditsky, 1992.
    """

    start: Scalar = hyper(default=0, ge=0)
    every: Scalar = hyper(default=1, ge=1)
    accumulator_dtype: Any = static(default=None, convert=as_dtype)

    def _weights(self, state: AverageParamsState, count: jax.Array) -> tuple[Any, Any]:
        def to_integer(x: Any) -> jax.Array:
            return jnp.round(jnp.asarray(x, jnp.float32)).astype(count.dtype)

        steps, every = count - to_integer(self.start), to_integer(self.every)
        is_due = (steps > 0) & (steps % every == 0)
        # The slot is a mean, because a sum would lose digits and might overflow. The weight of the
        # n-th iterate is 1/n. n is at least 1, because the weight is also computed in steps whose
        # iterate isn't averaged.
        n = jnp.maximum(steps // every, 1).astype(state.weight.dtype)
        new_weight = jnp.where(is_due, 1 / n, jnp.zeros_like(n))
        return jnp.where(is_due, 1 - 1 / n, jnp.ones_like(n)), new_weight


def averaged_params(state: Any, params: Any) -> Any:
    """Return the average of `params_ema` or `params_mean`, for evaluation.

    Args:
        state: The state of an optimizer that contains `params_ema` or `params_mean`.
        params: The params; the average has their dtypes. Before the first average, and for leaves
            without an average (frozen or masked), the result is the params.

    Returns:
        A tree like `params`.

    Raises:
        ValueError: If the state has no average, or more than one average of a leaf.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, params = fnopt.params_ema(0.9), {"w": jnp.asarray([3.0])}
        >>> fnopt.averaged_params(tx.init(params), params)
        {'w': Array([3.], dtype=float32)}
    """
    who, maker = "averaged_params", "params_ema or params_mean"
    mean = read_slot(params, state, AverageParamsState, "average", _read_average, who, maker)
    return cast_like(mean, params)


def _read_average(state: AverageParamsState, p: Any, average: Any) -> Any:
    """Return the average of a leaf; the param `p` before the first average."""
    has_average = state.weight > 0
    weight = jnp.where(has_average, state.weight, jnp.ones_like(state.weight))

    def read_leaf(weight: Any, p: Any, average: Any) -> Any:
        return jnp.where(has_average, average / weight, p)

    return map_leaves(read_leaf, p, hyper=weight, average=average)


class LookaheadState(NamedTuple):
    """Steps since the last synchronization, the slow params, and the fast optimizer's state."""

    steps_since_sync: jax.Array
    slow: Slot
    inner_state: Any


class lookahead(Wrapper):
    r"""Interpolate periodically between slow weights and the optimizer's fast weights.

    .. math:: \theta_{t+1} = \theta_t + \mathrm{inner}(g_t), \quad \text{and if } k \text{ divides }
              t: \quad \phi \leftarrow \phi + \alpha\, (\theta_{t+1} - \phi), \quad
              \theta_{t+1} \leftarrow \phi

    The slow params :math:`\phi` are a slot of the state. Evaluate the model at the slow params,
    `fnopt.slots(state)["slow"]`.

    Args:
        inner: The fast optimizer, a `Transformation` or any (init, update) pair.
        sync_period: :math:`k`, the number of steps between two synchronizations.
        slow_step_size: :math:`\alpha`.
        reset_state: Whether to reset the fast optimizer's state at a synchronization.

    Raises:
        ValueError: If `sync_period` isn't an integer of at least 1.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, params = fnopt.lookahead(fnopt.sgd(1.0), 2, 0.5), {"w": jnp.zeros(())}
        >>> state = tx.init(params)
        >>> for _ in range(2):
        ...     updates, state = tx.update({"w": jnp.ones(())}, state, params)
        ...     params = fnopt.apply_updates(params, updates)
        >>> params
        {'w': Array(-1., dtype=float32)}

    Reference:
        Zhang, Lucas, Hinton and Ba, 2019, arXiv:1907.08610.
    """

    needs_params = True

    sync_period: int = static(least=1)
    slow_step_size: Scalar = hyper(ge=0, le=1)
    reset_state: bool = static(default=False)

    def init(self, params: Any) -> LookaheadState:
        """Return slow params equal to the fast params."""
        return LookaheadState(zero_count(), slot_copy(params), self.inner.init(params))

    def update(
        self, updates: Any, state: LookaheadState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, LookaheadState]:
        """Return the fast updates, or the update to the interpolated params."""
        fast, inner_state = self.inner.update(updates, state.inner_state, params, **extra_args)
        steps = safe_increment(state.steps_since_sync)
        synchronizes = steps >= self.sync_period

        def step_leaf(h: Any, u: Any, p: Any, slow: Any) -> Any:
            new_slow = slow + h * (p + u - slow)
            update = jnp.where(synchronizes, new_slow - p, u)
            return update, p, jnp.where(synchronizes, new_slow, slow)

        new_updates, _, slow = map_leaves(
            step_leaf, fast, hyper=self.slow_step_size, outputs=3, params=params, slow=state.slow
        )
        # `jax.lax.scan` requires that the dtypes of a state don't change.
        inner_state = cast_like(inner_state, state.inner_state)
        if self.reset_state:
            inner_state = select_tree(synchronizes, self.inner.init(params), inner_state)
        steps = jnp.where(synchronizes, zero_count(), steps)
        return new_updates, LookaheadState(steps, slow, inner_state)

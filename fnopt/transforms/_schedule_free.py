"""Schedule-free averaging of iterates."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import (
    Scalar,
    ScalarOrSchedule,
    Slot,
    cast_like,
    hyper,
    map_leaves,
    slot_copy,
    static,
)
from fnopt.numerics import as_dtype, safe_increment, zero_count
from fnopt.transforms._chain import Wrapper, read_slot
from fnopt.transforms._tree_algebra import numbers, real_dtype_of


class ScheduleFreeState(NamedTuple):
    """Step count, weight sum, largest learning rate, :math:`b_1`, and the inner iterate."""

    count: jax.Array
    weight_sum: jax.Array
    max_lr: jax.Array
    b1: jax.Array
    z: Slot
    inner_state: Any


class schedule_free(Wrapper):
    r"""Average the iterates of an optimizer instead of using a learning-rate schedule.

    .. math::
        z_{t+1} &= z_t + \mathrm{inner}(g_t), \\
        x_{t+1} &= (1-c_t)\, x_t + c_t\, z_{t+1}, \qquad
        c_t = \frac{w_t}{\sum_{i \le t} w_i}, \quad w_t = \Big(\max_{i \le t} \eta_i\Big)^p \\
        y_{t+1} &= \beta_1 x_{t+1} + (1-\beta_1)\, z_{t+1}

    The params are :math:`y`. Evaluate :math:`x`, which `schedule_free_eval_params(state, params)`
    computes. The inner optimizer should have no momentum, because :math:`\beta_1` replaces
    momentum, and a constant learning rate, perhaps with a warm-up.

    Args:
        inner: The optimizer, a `Transformation` or any (init, update) pair.
        learning_rate: :math:`\eta`, the inner learning rate, a number or a `Schedule`, for the
            weights.
        b1: :math:`\beta_1`, the weight of the average at the point of gradient evaluation.
        weight_lr_power: :math:`p`.
        state_dtype: Storage dtype of :math:`z`; by default the dtype of the params, at least
            float32.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, params = fnopt.schedule_free(fnopt.sgd(1.0), 1.0), {"w": jnp.asarray([4.0])}
        >>> updates, state = tx.update({"w": jnp.asarray([1.0])}, tx.init(params), params)
        >>> params = fnopt.apply_updates(params, updates)
        >>> fnopt.schedule_free_eval_params(state, params)["w"].round(1)
        Array([3.], dtype=float32)

    Reference:
        Defazio et al., 2024, arXiv:2405.15682.
    """

    needs_params = True

    learning_rate: ScalarOrSchedule = hyper(ge=0, schedule=True)
    b1: Scalar = hyper(default=0.9, gt=0, le=1)
    weight_lr_power: Scalar = hyper(default=2.0)
    state_dtype: Any = static(default=None, convert=as_dtype)

    def init(self, params: Any) -> ScheduleFreeState:
        """Return the initial state; all sequences start at the params."""
        dtype = real_dtype_of(params)
        # Separate arrays, because a donated state may not contain an array twice.
        weight_sum, max_lr = (jnp.zeros((), dtype) for _ in range(2))
        z, b1 = slot_copy(params, self.state_dtype), jnp.array(self.b1, dtype)
        return ScheduleFreeState(zero_count(), weight_sum, max_lr, b1, z, self.inner.init(params))

    def update(
        self, updates: Any, state: ScheduleFreeState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, ScheduleFreeState]:
        """Return the updates to the next interpolation between average and iterate."""
        dtype, count = state.weight_sum.dtype, safe_increment(state.count)
        # The schedule is evaluated at the incremented count, because the paper counts from 1. Steps
        # with a learning rate of 0, at the start of a warm-up, have no weight.
        h = numbers(self, dtype, count, skip=("inner",))
        max_lr = jnp.maximum(state.max_lr, h.learning_rate)
        is_positive = max_lr > 0
        # The inner select avoids 0 ** p, whose derivative with respect to p is NaN even if the
        # power isn't selected.
        weight = jnp.where(is_positive, max_lr, jnp.ones_like(max_lr)) ** h.weight_lr_power
        weight = jnp.where(is_positive, weight, (h.weight_lr_power == 0).astype(dtype))
        weight_sum = state.weight_sum + weight
        c = weight / jnp.where(weight_sum > 0, weight_sum, jnp.ones_like(weight_sum))
        step, inner_state = self.inner.update(updates, state.inner_state, params, **extra_args)

        def step_leaf(h: Any, u: Any, y: Any, z: Any) -> Any:
            b1, c, last_b1 = h["b1"], h["c"], h["last_b1"]
            # The average x isn't stored, which saves a copy of the params: y and z determine x.
            x = (y - (1 - last_b1) * z) / last_b1
            z = z + u
            x = x + c * (z - x)
            return b1 * x + (1 - b1) * z - y, y, z

        scalars = {"b1": h.b1, "c": c, "last_b1": state.b1}
        new_updates, _, z = map_leaves(
            step_leaf, step, hyper=scalars, outputs=3, params=params, z=state.z
        )
        inner_state = cast_like(inner_state, state.inner_state)
        return new_updates, ScheduleFreeState(count, weight_sum, max_lr, h.b1, z, inner_state)


def schedule_free_eval_params(state: Any, params: Any) -> Any:
    r"""Return the average of `schedule_free` for evaluation: :math:`x = (y - (1-b_1)\, z) / b_1`.

    Args:
        state: The state of `schedule_free`, or of an optimizer that contains it.
        params: The current params; leaves of other optimizers are returned unchanged.

    Returns:
        A tree like `params`.

    Raises:
        ValueError: If `state` contains no state of `schedule_free`, or more than one for a leaf.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, params = fnopt.schedule_free(fnopt.sgd(1.0), 1.0), {"w": jnp.asarray([4.0])}
        >>> fnopt.schedule_free_eval_params(tx.init(params), params)
        {'w': Array([4.], dtype=float32)}
    """
    who = "schedule_free_eval_params"
    mean = read_slot(params, state, ScheduleFreeState, "z", _read_average, who, "schedule_free")
    return cast_like(mean, params)


def _read_average(state: ScheduleFreeState, y: Any, z: Any) -> Any:
    return map_leaves(lambda b1, y, z: (y - (1 - b1) * z) / b1, y, hyper=state.b1, z=z)

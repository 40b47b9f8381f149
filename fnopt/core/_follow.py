"""Params that follow others: the target networks of reinforcement learning."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core._apply import Params
from fnopt.core._leaves import map_leaves


def incremental_update(new_tensors: Params, old_tensors: Params, step_size: Any) -> Params:
    r"""Interpolate between two trees: :math:`\theta' + \tau\, (\theta - \theta')`.

    Args:
        new_tensors: :math:`\theta`, a tree of floating arrays.
        old_tensors: :math:`\theta'`, a tree of the same structure and shapes.
        step_size: :math:`\tau`, a scalar.

    Returns:
        A tree in the dtypes of `old_tensors`.

    Raises:
        ValueError: If structures or shapes differ.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> fnopt.incremental_update({"w": jnp.ones(2)}, {"w": jnp.zeros(2)}, 0.25)
        {'w': Array([0.25, 0.25], dtype=float32)}

    Reference:
        Lillicrap et al., 2015, arXiv:1509.02971.
    """

    def interpolate(step: Any, new: Any, old: Any) -> Any:
        return new, step * new + (1 - step) * old

    step = jnp.asarray(step_size) if jnp.ndim(step_size) == 0 else step_size
    return map_leaves(interpolate, new_tensors, hyper=step, outputs=2, old_tensors=old_tensors)[1]


def periodic_update(
    new_tensors: Params, old_tensors: Params, steps: Any, update_period: Any
) -> Params:
    """Replace parameters by new ones every `update_period` steps.

    Args:
        new_tensors: A tree of arrays.
        old_tensors: A tree of the same structure, shapes and dtypes.
        steps: The step, a whole number.
        update_period: Every how many steps.

    Returns:
        `new_tensors` where the step is a multiple of the period, else `old_tensors`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> fnopt.periodic_update({"w": jnp.ones(1)}, {"w": jnp.zeros(1)}, steps=6, update_period=3)
        {'w': Array([1.], dtype=float32)}

    Reference:
        Mnih et al., 2015, doi:10.1038/nature14236.
    """
    now = jnp.asarray(steps) % jnp.asarray(update_period, jnp.result_type(steps)) == 0
    return jax.tree.map(lambda new, old: jnp.where(now, new, old), new_tensors, old_tensors)

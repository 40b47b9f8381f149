"""Gradient accumulation as optax's class."""

from __future__ import annotations

from typing import Any

from fnopt.core import Transformation
from fnopt.interop.optax_api._bridge import as_schedule
from fnopt.transforms import accumulate, has_updated


class MultiSteps:
    """Adds up gradients over several calls, then makes one step of `opt`.

    Args:
        opt: The optimizer that makes the steps.
        every_k_schedule: How many gradients make a step, a number or a function of the steps made.
        use_grad_mean: Whether `opt` gets the mean of the gradients, or their sum.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.interop import optax_api as optax
        >>> tx = optax.MultiSteps(optax.sgd(1.0), every_k_schedule=2)
        >>> state = tx.init(jnp.ones(2))
        >>> updates, state = tx.update(jnp.ones(2), state)
        >>> bool(tx.has_updated(state))
        False
    """

    def __init__(self, opt: Any, every_k_schedule: Any, use_grad_mean: bool = True) -> None:
        k = as_schedule(every_k_schedule)
        self._tx = accumulate(opt, k=k, use_grad_mean=use_grad_mean)

    @property
    def inner_opt(self) -> Any:
        """The optimizer that makes the steps."""
        return self._tx.inner

    def init(self, params: Any) -> Any:
        """The state before the first call."""
        return self._tx.init(params)

    def update(
        self, updates: Any, state: Any, params: Any = None, **extra_args: Any
    ) -> tuple[Any, Any]:
        """Zero updates, and those of `opt` at every k-th call."""
        return self._tx.update(updates, state, params, **extra_args)

    def has_updated(self, state: Any) -> Any:
        """Whether the last call made a step."""
        return has_updated(state)

    def gradient_transformation(self) -> Transformation:
        """This wrapper as a transformation."""
        return self._tx

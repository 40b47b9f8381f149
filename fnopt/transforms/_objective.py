"""The objective of a line search: its value, its gradient, and the function itself."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import EmptyState, scalar_loss


def with_extras(value_fn: Callable[..., Any], extra_args: dict[str, Any]) -> Callable[[Any], Any]:
    """A function of the params alone: of the other extra arguments it gets those that it names."""
    parameters = list(inspect.signature(value_fn).parameters.values())[1:]
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return functools.partial(value_fn, **extra_args)
    names = {p.name for p in parameters if p.kind is not p.POSITIONAL_ONLY}
    return functools.partial(value_fn, **{k: v for k, v in extra_args.items() if k in names})


def value_and_grad_from_state(value_fn: Callable[..., Any]) -> Callable[..., Any]:
    """Value and gradient from the state of a line search if it has them, else computed.

    A line search ends with the value and the gradient at the point that it chose. For a function
    that doesn't change from step to step these are what the next step needs.

    Args:
        value_fn: `value_fn(params, *args, **kwargs)`, a scalar.

    Returns:
        A function `(params, *args, state, **kwargs) -> (value, gradient)`, where `state` is that
        of an optimizer with one line search in it that keeps gradients.

    Raises:
        ValueError: If no line search, or more than one, keeps them in the state.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, params = fnopt.lbfgs(), jnp.asarray([3.0, 4.0])
        >>> value_and_grad = fnopt.value_and_grad_from_state(lambda x: jnp.sum(x**2))
        >>> value, grad = value_and_grad(params, state=tx.init(params))
        >>> float(value), grad.tolist()
        (25.0, [6.0, 8.0])
    """

    def value_and_grad(params: Any, *args: Any, state: Any, **kwargs: Any) -> tuple[Any, Any]:
        value, grad = stored_value_and_grad(state)

        def computed() -> tuple[Any, Any]:
            new, slope = jax.value_and_grad(value_fn)(params, *args, **kwargs)
            as_known = jax.tree.map(lambda a, b: a.astype(b.dtype), slope, grad)
            return scalar_loss(new, value.dtype), as_known

        known = jnp.isfinite(value)
        return jax.lax.cond(known, lambda: (value, grad), computed)

    return value_and_grad


def stored_value_and_grad(state: Any) -> tuple[jax.Array, Any]:
    """The value and the gradient that a line search keeps somewhere in a state."""
    found = find_kept(state)
    if len(found) != 1:
        raise ValueError(
            f"value_and_grad_from_state: {len(found)} line searches keep value and gradient in "
            "this state, expected one (a backtracking one does with store_grad=True)."
        )
    return found[0]


def find_kept(state: Any) -> list[tuple[jax.Array, Any]]:
    """All the values and gradients that line searches keep in a state."""
    fields = getattr(state, "_fields", ())
    if "value" in fields and "grad" in fields:
        return [] if state.grad is None else [(state.value, state.grad)]
    if isinstance(state, EmptyState) or not isinstance(state, (tuple, list, dict)):
        return []
    parts = state.values() if isinstance(state, dict) else state
    return [pair for part in parts for pair in find_kept(part)]

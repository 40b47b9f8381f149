"""Hyper-parameters in the state, as optax keeps them."""

from __future__ import annotations

import functools
import inspect
import numbers
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import Transformation, default_float, increment, static, zero_count


class InjectHyperparamsState(NamedTuple):
    """Step count, the numbers by name, and the state of what they make."""

    count: jax.Array
    hyperparams: dict[str, Any]
    inner_state: Any


class _injected(Transformation):
    """Makes its transform anew in every step, from the numbers in the state."""

    factory: Callable[..., Any] = static()
    scheduled: tuple[tuple[str, Callable[[Any], Any]], ...] = static()
    numbers: dict[str, Any]

    def init(self, params: Any) -> InjectHyperparamsState:
        """The numbers as arrays, schedules at step 0."""
        count = zero_count()
        now = self._at(count, {k: jnp.asarray(v) for k, v in self.numbers.items()})
        return InjectHyperparamsState(count, now, self.factory(**now).init(params))

    def update(
        self, updates: Any, state: Any, params: Any = None, **extra_args: Any
    ) -> tuple[Any, Any]:
        """A step with the numbers of the state, and those of the schedules at its count."""
        now = self._at(state.count, state.hyperparams)
        tx = self.factory(**now)
        updates, inner = tx.update(updates, state.inner_state, params, **extra_args)
        return updates, InjectHyperparamsState(increment(state.count), now, inner)

    def _at(self, count: jax.Array, given: dict[str, Any]) -> dict[str, Any]:
        return {**given, **{name: jnp.asarray(fn(count)) for name, fn in self.scheduled}}


def inject_hyperparams(
    inner_factory: Callable[..., Any],
    static_args: str | Iterable[str] = (),
    hyperparam_dtype: Any = None,
) -> Callable[..., Any]:
    """Keeps the numbers of an optimizer in its state, where a training loop may change them.

    fnopt needs none of it: there an optimizer is a pytree whose numbers are changed, traced and
    swept as they are. This is for scripts that write `state.hyperparams["learning_rate"] = ...`.

    Args:
        inner_factory: A function that makes an optimizer.
        static_args: Names of arguments to leave alone.
        hyperparam_dtype: The dtype of the numbers; by default JAX's.

    Returns:
        A function of the same arguments, whose result has the state `InjectHyperparamsState`.
        Numbers and functions of the step are kept, all else is left alone.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.interop import optax_api as optax
        >>> tx = optax.inject_hyperparams(optax.sgd)(learning_rate=0.5)
        >>> state = tx.init(jnp.ones(2))
        >>> state.hyperparams["learning_rate"] = jnp.asarray(0.25)
        >>> tx.update(jnp.ones(2), state)[0]
        Array([-0.25, -0.25], dtype=float32)
    """
    names = {static_args} if isinstance(static_args, str) else set(static_args)
    signature = inspect.signature(inner_factory)
    parameters = signature.parameters.values()
    variadic = next((p.name for p in parameters if p.kind is p.VAR_KEYWORD), "")

    @functools.wraps(inner_factory)
    def made(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = dict(bound.arguments)
        given |= given.pop(variadic, {})
        open_ = {name: value for name, value in given.items() if name not in names}
        numeric = {name: _number(v, hyperparam_dtype) for name, v in open_.items() if _is_number(v)}
        scheduled = tuple((name, v) for name, v in open_.items() if _is_schedule(name, v))
        taken = {*numeric, *(name for name, _ in scheduled)}
        rest = {name: value for name, value in given.items() if name not in taken}
        return _injected(functools.partial(inner_factory, **rest), scheduled, numeric)

    return made


def _is_number(value: Any) -> bool:
    if isinstance(value, bool):
        return False
    return isinstance(value, (numbers.Real, jax.Array)) or hasattr(value, "__array__")


def _is_schedule(name: str, value: Any) -> bool:
    is_mask = name.endswith("mask")
    return callable(value) and not is_mask and not isinstance(value, (type, Transformation))


def _number(value: Any, dtype: Any) -> Any:
    array = jnp.asarray(value)
    wanted = dtype or (array.dtype if hasattr(value, "dtype") else default_float())
    return array.astype(wanted)

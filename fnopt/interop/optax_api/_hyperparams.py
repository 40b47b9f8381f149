"""`inject_hyperparams`: hyper-parameters in the optimizer's state."""

from __future__ import annotations

import functools
import inspect
import numbers
import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import Member, Transformation, static
from fnopt.interop.optax_api._wrappers import StatefulSchedule, WrappedSchedule
from fnopt.numerics import default_float, safe_increment, zero_count


class InjectStatefulHyperparamsState(NamedTuple):
    """State of `inject_hyperparams`.

    Attributes:
        count: Number of steps.
        hyperparams: The values of the hyper-parameters, keyed by name.
        hyperparams_states: The states of the schedules, keyed by name.
        inner_state: The state of the inner optimizer.
    """

    count: jax.Array
    hyperparams: dict[str, Any]
    hyperparams_states: dict[str, Any]
    inner_state: Any


# The name of the class before optax 0.1.9.
InjectHyperparamsState = InjectStatefulHyperparamsState


class _injected(Transformation):
    """Transform that is rebuilt in every step from the hyper-parameters in the state."""

    floating_alone = True

    factory: Callable[..., Any] = static()
    scheduled: tuple[tuple[str, StatefulSchedule], ...] = static()
    numbers: dict[str, Any]

    def init(self, params: Any) -> InjectStatefulHyperparamsState:
        """Initial state, with the values of schedules at step 0."""
        states = {name: schedule.init() for name, schedule in self.scheduled}
        values = self._current_values(self.numbers, states, {})
        inner = self.factory(**values).init(params)
        return InjectStatefulHyperparamsState(zero_count(), values, states, inner)

    def update(
        self,
        updates: Any,
        state: InjectStatefulHyperparamsState,
        params: Any = None,
        **extra_args: Any,
    ) -> tuple[Any, InjectStatefulHyperparamsState]:
        """Take a step with the hyper-parameters in the state and the values of the schedules."""
        states = state.hyperparams_states
        values = self._current_values(state.hyperparams, states, extra_args)
        tx = self.factory(**values)
        updates, inner = tx.update(updates, state.inner_state, params, **extra_args)
        states = {name: fn.update(states[name], **extra_args) for name, fn in self.scheduled}
        return updates, InjectStatefulHyperparamsState(
            safe_increment(state.count), values, states, inner
        )

    def members(self, state: Any = None) -> tuple[Member, ...]:
        """Inner transform, built from the hyper-parameters in the state."""
        if state is None:
            return ()
        return (Member("inner", self.factory(**state.hyperparams), state.inner_state),)

    def _current_values(self, hyperparams: Any, states: Any, extra_args: Any) -> dict[str, Any]:
        """Hyper-parameters of the next step: numbers of the state, and values of the schedules."""
        names = {*self.numbers, *(name for name, _ in self.scheduled)}
        if unknown := sorted(hyperparams.keys() - names):
            raise ValueError(
                f"inject_hyperparams: the state's hyperparams have the unknown names {unknown}, "
                f"expected {sorted(names)}. Pass integers that are compile-time constants "
                "(counts, keys) to the factory."
            )
        # The cast keeps the state's dtypes if a loop stores a Python number in the state.
        values = {
            name: jnp.asarray(hyperparams[name], _dtype(number))
            for name, number in self.numbers.items()
        }
        for name, fn in self.scheduled:
            value = fn(states[name], **extra_args)
            values[name] = jnp.asarray(value, _dtype(value))
        return values


def inject_hyperparams(
    inner_factory: Callable[..., Any],
    static_args: str | Iterable[str] = (),
    hyperparam_dtype: Any = None,
) -> Callable[..., Any]:
    """Store the hyper-parameters of an optimizer in the state, where a training loop can set them.

    `inject_hyperparams` serves scripts that assign `state.hyperparams["learning_rate"]`. New code
    doesn't need it, because an fnopt optimizer is a pytree whose hyper-parameters can be changed,
    traced and vectorized.

    Args:
        inner_factory: A function that returns an optimizer.
        static_args: Names of arguments that aren't stored in the state.
        hyperparam_dtype: The dtype of the hyper-parameters; by default JAX's default float.

    Returns:
        A function of the same arguments that returns an optimizer with the state
        `InjectStatefulHyperparamsState`. The state contains the arguments that are numbers,
        functions of the step or instances of `schedules.StatefulSchedule`. All other arguments are
        compile-time constants, including integers for arguments that accept only integers (a seed,
        an interval).

    Raises:
        ValueError: If the factory has no argument with a name in `static_args`.

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
    if not variadic and (unknown := sorted(names - set(signature.parameters))):
        raise ValueError(
            f"inject_hyperparams: static_args has the unknown names {unknown}, expected some of "
            f"the factory's arguments {list(signature.parameters)}."
        )

    @functools.wraps(inner_factory)
    def make(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        # As in optax, the state also contains arguments with default values.
        bound.apply_defaults()
        values = dict(bound.arguments)
        values |= values.pop(variadic, {})
        integers = {n for n, v in values.items() if _is_integer(n, v, signature.parameters.get(n))}
        candidates = {name: value for name, value in values.items() if name not in names | integers}
        numeric = {
            name: jnp.asarray(v, hyperparam_dtype or _dtype(v))
            for name, v in candidates.items()
            if _is_number(v)
        }
        # Masks are functions of the params, and classes and transforms aren't schedules.
        scheduled = tuple(
            (n, v if isinstance(v, StatefulSchedule) else WrappedSchedule(v))
            for n, v in candidates.items()
            if (
                callable(v) and not n.endswith("mask") and not isinstance(v, (type, Transformation))
            )
        )
        in_state = {*numeric, *(name for name, _ in scheduled)}
        constants = {name: value for name, value in values.items() if name not in in_state}
        return _injected(functools.partial(inner_factory, **constants), scheduled, numeric)

    return make


def _is_number(value: Any) -> bool:
    if isinstance(value, bool):
        return False
    return isinstance(value, (numbers.Real, jax.Array)) or hasattr(value, "__array__")


def _is_integer(name: str, value: Any, parameter: inspect.Parameter | None) -> bool:
    """Whether a value is an integer, and its argument accepts only integers."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        return False
    if parameter is None or parameter.annotation in (parameter.empty, Any, "Any"):
        default = None if parameter is None else parameter.default
        return name in ("key", "seed") or isinstance(default, numbers.Integral)
    return re.search(r"\bint\b", str(parameter.annotation)) is not None


def _dtype(value: Any) -> Any:
    return value.dtype if hasattr(value, "dtype") else default_float()

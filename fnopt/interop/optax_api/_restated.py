"""Wrappers whose states have optax's field names, for scripts that read these fields."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from fnopt import transforms
from fnopt.core import Member, Transformation, static
from fnopt.transforms import states


class MultiStepsState(NamedTuple):
    """Calls since the last step, step count, inner state, accumulated gradients, `skip_state`."""

    mini_step: Any
    gradient_step: Any
    inner_opt_state: Any
    acc_grads: Any
    skip_state: Any = ()


class SAMState(NamedTuple):
    """Steps since the last synchronization, both inner states, unperturbed params."""

    steps_since_sync: Any
    opt_state: Any
    adv_state: Any
    cache: Any


class ScheduleFreeState(NamedTuple):
    """`b1`, sum of weights, step count, largest learning rate, inner state, and `z`."""

    b1: Any
    weight_sum: Any
    step_count: Any
    max_lr: Any
    base_optimizer_state: Any
    z: Any


class MechanicState(NamedTuple):
    """State of the optimizer, Mechanic's statistics per decay, initial params."""

    base_optimizer_state: Any
    r: Any
    m: Any
    v: Any
    s: Any
    x0: Any


class PartitionState(NamedTuple):
    """States of the transforms, keyed by label."""

    inner_states: dict[Any, Any]


@dataclasses.dataclass(frozen=True)
class Renamed:
    """Conversion of a state between fnopt's class and a class with optax's field names.

    Args:
        own: fnopt's class.
        optax_type: The class with optax's field names.
        names: Pairs of different field names, fnopt's and optax's.
    """

    own: type
    optax_type: type
    names: tuple[tuple[str, str], ...]

    def as_optax(self, state: Any) -> Any:
        """Convert the state to optax's class."""
        names: dict[Any, str] = dict(self.names)
        return self.optax_type(**{names.get(k, str(k)): v for k, v in state._asdict().items()})

    def as_fnopt(self, state: Any) -> Any:
        """Convert the state to fnopt's class."""
        names: dict[Any, str] = {optax: own for own, optax in self.names}
        return self.own(**{names.get(k, str(k)): v for k, v in state._asdict().items()})


@dataclasses.dataclass(frozen=True)
class ByLabel:
    """Conversion of a partition's states, keyed by label in optax and by index in fnopt."""

    labels: tuple[Any, ...]
    optax_type: type = PartitionState

    def as_optax(self, state: dict[int, Any]) -> PartitionState:
        """Convert to states keyed by label, in optax's class for masked transforms."""
        return PartitionState({self._key(i): states.MaskedState(s) for i, s in state.items()})

    def as_fnopt(self, state: PartitionState) -> dict[int, Any]:
        """Convert to states keyed by index."""
        inner = state.inner_states
        return {i: inner[self._key(i)].inner_state for i in range(len(self.labels))}

    def _key(self, i: int) -> Any:
        # JAX sorts the keys of a dict, so labels that can't be sorted are replaced by indices.
        try:
            sorted(self.labels)
        except TypeError:
            return i
        return self.labels[i]


class restated(Transformation):
    """Transform whose state is converted to optax's class."""

    floating_alone = True

    inner: Any
    form: Any = static()

    @property
    def other_gradients(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether gradients may have another structure than the params."""
        return self.inner.other_gradients

    def init(self, params: Any) -> Any:
        """Initial state in optax's class."""
        return self.form.as_optax(self.inner.init(params))

    def update(
        self, updates: Any, state: Any, params: Any = None, **extra_args: Any
    ) -> tuple[Any, Any]:
        """Apply the inner transform."""
        updates, new = self.inner.update(updates, self._as_fnopt(state), params, **extra_args)
        return updates, self.form.as_optax(new)

    def members(self, state: Any = None) -> tuple[Member, ...]:
        """Inner transform and its state."""
        inner_state = None if state is None else self._as_fnopt(state)
        return (Member(self.inner._place, self.inner, inner_state),)

    def _as_fnopt(self, state: Any) -> Any:
        if not isinstance(state, self.form.optax_type):
            raise TypeError(
                f"the state is a {type(state).__name__}, expected "
                f"{self.form.optax_type.__name__}. It may be the state of another optimizer; use "
                "the state that init(params) returned."
            )
        return self.form.as_fnopt(state)


# Conversions of states that have other field names in optax, keyed by the transform's name.
FORMS = {
    "sam": Renamed(states.SAMState, SAMState, (("inner_state", "opt_state"),)),
    "schedule_free": (
        _schedule_free := Renamed(
            states.ScheduleFreeState,
            ScheduleFreeState,
            (("count", "step_count"), ("inner_state", "base_optimizer_state")),
        )
    ),
    "schedule_free_sgd": _schedule_free,
    "schedule_free_adamw": _schedule_free,
    "mechanize": Renamed(
        states.MechanizeState, MechanicState, (("inner_state", "base_optimizer_state"),)
    ),
}


def restate_maker(name: str, make: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a factory of transforms if their states have other field names in optax."""
    if name not in FORMS:
        return make

    @functools.wraps(make)
    def make_restated(*args: Any, **kwargs: Any) -> restated:
        return restated(make(*args, **kwargs), FORMS[name])

    return make_restated


def with_fnopt_states(state: Any) -> Any:
    """Convert states of this module's classes to fnopt's classes."""
    for form in FORMS.values():
        if isinstance(state, form.optax_type):
            return form.as_fnopt(state._replace(**_convert_fields(state)))
    # A NamedTuple is also a tuple, so this check comes first.
    if hasattr(state, "_replace"):
        return state._replace(**_convert_fields(state))
    if isinstance(state, tuple):
        return tuple(map(with_fnopt_states, state))
    if isinstance(state, dict):
        return {key: with_fnopt_states(value) for key, value in state.items()}
    return state


def _convert_fields(state: Any) -> dict[str, Any]:
    return {key: with_fnopt_states(value) for key, value in state._asdict().items()}


def schedule_free_eval_params(state: Any, params: Any) -> Any:
    """Averaged params of `schedule_free`, for evaluation."""
    return transforms.schedule_free_eval_params(with_fnopt_states(state), params)

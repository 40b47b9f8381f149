"""Every transform and optimizer that the battery runs on. Adding one is one line here."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import fnopt


@dataclasses.dataclass(frozen=True)
class Case:
    """One transform under test.

    Attributes:
        name: Its name in test ids.
        make: Makes it.
        peer: The same algorithm in optax, as a function of the optax module.
        minimise: Makes a version fit to minimise a quadratic and Rosenbrock's function; None for
            transforms that don't descend.
        steps: How many steps that may take.
        extras: Extra arguments that its update requires.
    """

    name: str
    make: Callable[[], Any]
    peer: Callable[[Any], Any] | None = None
    minimise: Callable[[], Any] | None = None
    steps: int = 4000
    extras: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __repr__(self) -> str:
        return self.name


def direction(make: Callable[[], Any], rate: float, name: str, **kwargs: Any) -> Case:
    """A part of an optimizer: a learning rate behind it makes it descend."""

    def minimise() -> Any:
        schedule = fnopt.cosine_decay_schedule(rate, decay_steps=kwargs.get("steps", 4000))
        return fnopt.chain(make(), fnopt.scale_by_learning_rate(schedule))

    return Case(name, make, minimise=minimise, **kwargs)


def optimizer(make: Callable[[Any], Any], rate: float, name: str, **kwargs: Any) -> Case:
    """A whole optimizer: a function of its learning rate."""

    def minimise() -> Any:
        return make(fnopt.cosine_decay_schedule(rate, decay_steps=kwargs.get("steps", 4000)))

    return Case(name, lambda: make(1e-2), minimise=minimise, **kwargs)


CASES = [
    direction(lambda: fnopt.scale_by_adam(), 0.1, "scale_by_adam"),
    optimizer(fnopt.adam, 0.1, "adam", peer=lambda optax: optax.adam(1e-2)),
    Case("identity", fnopt.identity),
    Case("set_to_zero", fnopt.set_to_zero),
    direction(lambda: fnopt.clip(0.5), 2e-3, "clip"),
]

# Public classes that are no transform of their own.
NOT_IN_REGISTRY = {"Transformation", "foreign"}

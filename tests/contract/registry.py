"""Every transform and optimizer that the battery runs on. Adding one is one line here."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import fnopt

# The default says that a tree without kernels is no mistake.
KERNELS = fnopt.by_pattern("*kernel", default=False)


def kernels_only(params: Any) -> Any:
    """The mask `'*kernel'` as optax takes it."""
    return jax.tree.map(lambda path: path.endswith("kernel"), fnopt.leaf_paths(params))


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


def _mean_of_signs(updates: Any, params: Any) -> Any:
    del params
    return jax.tree.map(jnp.sign, updates)


def _ignored(record: dict[str, Any]) -> None:
    del record


def _is_matrix(path: str, leaf: Any) -> bool:
    return leaf.ndim > 1


_MIXED = {"a": lambda: fnopt.adam(1e-2), "b": lambda: fnopt.sgd(1e-2, momentum=0.9)}


def _partition() -> Any:
    parts = {label: make() for label, make in _MIXED.items()}
    return fnopt.partition(parts, fnopt.by_pattern({"*kernel": "a"}, default="b"))


def _decayed(rate: Any) -> Any:
    decay = fnopt.linear_schedule(1e-3, 0.0, transition_steps=10)
    return fnopt.adamw(rate, weight_decay=decay, mask=fnopt.by_path(_is_matrix))


CASES = [
    # parts
    Case("identity", fnopt.identity),
    Case("set_to_zero", fnopt.set_to_zero),
    Case("stateless", lambda: fnopt.stateless(_mean_of_signs)),
    Case("scale", lambda: fnopt.scale(0.5), lambda optax: optax.scale(0.5)),
    Case(
        "scale_by_learning_rate",
        lambda: fnopt.scale_by_learning_rate(fnopt.exponential_decay(0.1, 3, 0.5)),
        lambda optax: optax.scale_by_learning_rate(optax.exponential_decay(0.1, 3, 0.5)),
    ),
    Case(
        "add_decayed_weights",
        lambda: fnopt.add_decayed_weights(0.1, mask=KERNELS),
        lambda optax: optax.add_decayed_weights(0.1, mask=kernels_only),
    ),
    direction(lambda: fnopt.clip(0.5), 0.05, "clip", peer=lambda optax: optax.clip(0.5)),
    direction(
        lambda: fnopt.clip_by_global_norm(0.5),
        0.05,
        "clip_by_global_norm",
        peer=lambda optax: optax.clip_by_global_norm(0.5),
    ),
    direction(lambda: fnopt.trace(0.9), 5e-3, "trace", peer=lambda optax: optax.trace(0.9)),
    direction(fnopt.scale_by_adam, 0.1, "scale_by_adam", peer=lambda optax: optax.scale_by_adam()),
    direction(fnopt.scale_by_rms, 0.02, "scale_by_rms", peer=lambda optax: optax.scale_by_rms()),
    direction(
        fnopt.scale_by_stddev, 0.02, "scale_by_stddev", peer=lambda optax: optax.scale_by_stddev()
    ),
    direction(fnopt.scale_by_rss, 0.5, "scale_by_rss", peer=lambda optax: optax.scale_by_rss()),
    direction(fnopt.scale_by_lion, 0.02, "scale_by_lion", peer=lambda optax: optax.scale_by_lion()),
    direction(fnopt.scale_by_diffgrad, 0.1, "scale_by_diffgrad"),
    # wrappers
    Case("masked", lambda: fnopt.masked(fnopt.scale_by_adam(), KERNELS)),
    Case("partition", _partition),
    Case("freeze", lambda: fnopt.freeze(fnopt.adam(1e-2), fnopt.by_pattern("*bias", False))),
    Case(
        "named_chain",
        lambda: fnopt.chain(("clip", fnopt.clip(0.5)), ("adam", fnopt.adam(1e-2))),
        lambda optax: optax.named_chain(("clip", optax.clip(0.5)), ("adam", optax.adam(1e-2))),
    ),
    optimizer(
        lambda rate: fnopt.accumulate(fnopt.adam(rate), k=2),
        0.1,
        "accumulate",
        peer=lambda optax: optax.MultiSteps(optax.adam(1e-2), 2),
    ),
    optimizer(lambda rate: fnopt.accumulate(fnopt.sgd(rate), k=1), 0.05, "accumulate_one"),
    optimizer(
        lambda rate: fnopt.apply_if_finite(fnopt.adam(rate)),
        0.1,
        "apply_if_finite",
        peer=lambda optax: optax.apply_if_finite(optax.adam(1e-2), 3),
    ),
    # watchers
    Case("record_health", lambda: fnopt.monitor.record_health(4)),
    Case("emit_health", lambda: fnopt.monitor.emit_health(_ignored, every=2)),
    # optimizers
    optimizer(fnopt.sgd, 0.05, "sgd", peer=lambda optax: optax.sgd(1e-2)),
    optimizer(
        lambda rate: fnopt.sgd(rate, momentum=0.9, nesterov=True),
        5e-3,
        "sgd_nesterov",
        peer=lambda optax: optax.sgd(1e-2, momentum=0.9, nesterov=True),
    ),
    optimizer(fnopt.adam, 0.1, "adam", peer=lambda optax: optax.adam(1e-2)),
    optimizer(fnopt.adamw, 0.1, "adamw", peer=lambda optax: optax.adamw(1e-2)),
    optimizer(_decayed, 0.1, "adamw_scheduled_decay"),
    optimizer(fnopt.nadam, 0.1, "nadam", peer=lambda optax: optax.nadam(1e-2)),
    optimizer(fnopt.rmsprop, 0.02, "rmsprop", peer=lambda optax: optax.rmsprop(1e-2)),
    optimizer(
        lambda rate: fnopt.rmsprop(rate, centered=True, momentum=0.9),
        2e-3,
        "rmsprop_centered",
        peer=lambda optax: optax.rmsprop(1e-2, centered=True, momentum=0.9),
    ),
    optimizer(fnopt.adagrad, 0.5, "adagrad", peer=lambda optax: optax.adagrad(1e-2)),
    optimizer(fnopt.lion, 0.02, "lion", peer=lambda optax: optax.lion(1e-2)),
    optimizer(fnopt.diffgrad, 0.1, "diffgrad"),
    Case("sgdr", lambda: fnopt.sgdr(0.01, 3), minimise=lambda: fnopt.sgdr(5e-3, 1000, 1.0)),
    optimizer(lambda rate: fnopt.accumulated_sgd(rate, 2), 0.02, "accumulated_sgd"),
]

# Public classes that are no transform of their own, and the solvers, which have their own battery.
NOT_IN_REGISTRY = {"Transformation", "foreign", "levenberg_marquardt", "gauss_newton", "dogleg"}

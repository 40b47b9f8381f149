"""Transforms, line searches and schedules with optax's arguments."""

from __future__ import annotations

import abc
import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt import optimizers, transforms
from fnopt.core import static
from fnopt.interop.optax_api._bridge import as_schedule, bridge, with_labels
from fnopt.interop.optax_api._restated import ByLabel, restated
from fnopt.numerics import safe_increment, zero_count
from fnopt.transforms.states import ZoomLinesearchInfo


def masked(inner: Any, mask: Any, *, mask_compatible_extra_args: bool = False) -> Any:
    """Apply `inner` where `mask` is True: a tree of bools, or a function of the params."""
    _check_extra_args(mask_compatible_extra_args)
    return with_labels(lambda tree: transforms.masked(inner, tree), mask)


def freeze(mask: Any) -> Any:
    """Set updates to zero where `mask` is True: a tree of bools, or a function of the params."""
    return masked(transforms.set_to_zero(), mask)


def selective_transform(optimizer: Any, *, freeze_mask: Any) -> Any:
    """Apply `optimizer` where `freeze_mask` is False, and set other updates to zero."""
    return with_labels(lambda tree: transforms.freeze(optimizer, tree), freeze_mask)


def partition(
    transforms: Any, param_labels: Any, *, mask_compatible_extra_args: bool = False
) -> Any:
    """Apply a transform to every leaf according to its label.

    Args:
        transforms: A dict from label (anything hashable) to transform.
        param_labels: The labels of the leaves: a tree prefix of the params, or a function from
            params to such a tree.
        mask_compatible_extra_args: Whether extra arguments are masked too; only False is supported.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from fnopt.interop import optax_api as optax
        >>> params = {"w": jnp.ones(2), "b": jnp.ones(2)}
        >>> tx = optax.partition(
        ...     {"train": optax.sgd(0.5), "hold": optax.set_to_zero()},
        ...     lambda params: {"w": "train", "b": "hold"},
        ... )
        >>> tx.update(params, tx.init(params))[0]["w"]
        Array([-0.5, -0.5], dtype=float32)
    """
    # Imported here, because the argument `transforms` hides the module.
    from fnopt.transforms import partition

    _check_extra_args(mask_compatible_extra_args)
    # Indices replace labels, because labels of different classes can't be sorted.
    number = {label: i for i, label in enumerate(transforms)}
    parts = {number[label]: tx for label, tx in transforms.items()}

    def number_labels(labels: Any) -> Any:
        unknown = {repr(x) for x in jax.tree.leaves(labels) if x not in number}
        if unknown:
            raise ValueError(
                f"partition: the labels {', '.join(sorted(unknown))} have no transform, "
                f"expected some of {list(transforms)}."
            )
        return jax.tree.map(lambda label: number[label], labels)

    form = ByLabel(tuple(transforms))

    return with_labels(
        lambda labels: restated(partition(parts, number_labels(labels)), form), param_labels
    )


def _check_extra_args(mask_compatible_extra_args: bool) -> None:
    if mask_compatible_extra_args:
        raise ValueError(
            "mask_compatible_extra_args is True, expected False: extra arguments are passed "
            "unchanged. Mask trees among the extra arguments before the call."
        )


def scale_by_learning_rate(learning_rate: Any, *, flip_sign: bool = True) -> Any:
    """Scale updates by the negative learning rate; without `flip_sign`, by the learning rate."""
    descent = transforms.scale_by_learning_rate(as_schedule(learning_rate))
    return descent if flip_sign else transforms.chain(descent, transforms.scale(-1.0))


def scale_by_schedule(step_size_fn: Callable[[Any], Any]) -> Any:
    """Scale updates by a function of the step."""
    return transforms.scale_by_schedule(as_schedule(step_size_fn))


def stateless_with_tree_map(f: Callable[..., Any]) -> Any:
    """Make a stateless transform from a function of a gradient leaf and a param."""

    def map_leaves(updates: Any, params: Any) -> Any:
        trees = (updates,) if params is None else (updates, params)
        return jax.tree.map(lambda g, p=None: f(g, p), *trees)

    return transforms.stateless(map_leaves)


def centralize() -> Any:
    """Subtract the mean over all axes except the first from every array.

    `fnopt.centralize` averages over all axes except the last, which is the output axis in flax and
    Keras.
    """
    return stateless_with_tree_map(
        lambda g, p: g if g.ndim < 2 else g - jnp.mean(g, tuple(range(1, g.ndim)), keepdims=True)
    )


def join_schedules(schedules: Any, boundaries: Any) -> Any:
    """Join schedules or functions of the step at boundaries."""
    from fnopt.schedules import join_schedules

    return join_schedules(tuple(map(as_schedule, schedules)), tuple(boundaries))


def add_noise(eta: Any, gamma: Any, key: Any = None, seed: Any = None) -> Any:
    """Add Gaussian noise whose variance decreases with the step; pass a `key` or a `seed`."""
    return transforms.add_gradient_noise(eta, gamma, key=_key(key, seed))


def noisy_sgd(
    learning_rate: Any, eta: Any = 0.01, gamma: Any = 0.55, key: Any = None, seed: Any = None
) -> Any:
    """Gradient descent with noise whose variance decreases with the step."""
    return bridge(optimizers.noisy_sgd)(learning_rate, eta, gamma, _key(key, seed))


def _key(key: Any, seed: Any) -> Any:
    key = key if key is not None else seed
    return 0 if key is None else key


# `nadam` is `adam` with another default, so `nadam(nesterov=False)` is Adam, as in optax.
nadam = functools.partial(bridge(optimizers.adam), nesterov=True)
nadamw = functools.partial(bridge(optimizers.adamw), nesterov=True)


class StatefulSchedule(abc.ABC):
    """A schedule with a state, which may read the extra arguments of `update`."""

    @abc.abstractmethod
    def init(self) -> Any:
        """Initial state."""

    @abc.abstractmethod
    def update(self, state: Any, **extra_args: Any) -> Any:
        """State after a step."""

    @abc.abstractmethod
    def __call__(self, state: Any, **extra_args: Any) -> Any:
        """Value of the schedule in a state."""


class WrappedScheduleState(NamedTuple):
    """Number of steps."""

    count: jax.Array


@dataclasses.dataclass(frozen=True)
class WrappedSchedule(StatefulSchedule):
    """A function of the step count as a stateful schedule.

    Args:
        schedule_fn: The function.
    """

    schedule_fn: Callable[[Any], Any]

    def init(self) -> WrappedScheduleState:
        """Initial state with a step count of zero."""
        return WrappedScheduleState(zero_count())

    def update(self, state: WrappedScheduleState, **extra_args: Any) -> WrappedScheduleState:
        """Increment the step count."""
        del extra_args
        return WrappedScheduleState(safe_increment(state.count))

    def __call__(self, state: WrappedScheduleState, **extra_args: Any) -> Any:
        del extra_args
        return self.schedule_fn(state.count)


class _printing(transforms.Wrapper):
    """Line search that prints a message if no step satisfies the criteria."""

    State = None
    floating_alone = True

    tolerance: Any
    name: str = static()

    def update(
        self, updates: Any, state: Any, params: Any = None, **extra_args: Any
    ) -> tuple[Any, Any]:
        """Apply the line search; print a message if the search failed."""
        scaled, state = self.inner.update(updates, state, params, **extra_args)
        errors = {"decrease": state.info.decrease_error}
        if isinstance(state.info, ZoomLinesearchInfo):
            errors["curvature"] = state.info.curvature_error
        text = f"{self.name}: no step meets the criteria. Step {{step}}, value {{value}}, " + (
            ", ".join(f"error of the {name} {{{name}}}" for name in errors)
        )
        failed = functools.reduce(
            jax.numpy.logical_or, [e > self.tolerance for e in errors.values()]
        )

        def report() -> None:
            jax.debug.print(text, step=state.learning_rate, value=state.value, **errors)

        # `cond`, so that the host callback runs only after a failed search.
        jax.lax.cond(failed, report, lambda: None)
        return scaled, state


def _accept_verbose(search: Any, tolerance: str) -> Any:
    """Add the argument `verbose` to a line search; `tolerance` is the name of an attribute."""

    @functools.wraps(search)
    def make(*args: Any, verbose: bool = False, **kwargs: Any) -> Any:
        tx = search(*args, **kwargs)
        return _printing(tx, getattr(tx, tolerance), search.__name__) if verbose else tx

    signature = inspect.signature(search)
    verbose = inspect.Parameter("verbose", inspect.Parameter.KEYWORD_ONLY, default=False)
    parameters = [*signature.parameters.values(), verbose]
    make.__signature__ = signature.replace(parameters=parameters)  # pyright: ignore[reportAttributeAccessIssue]
    return make


scale_by_backtracking_linesearch = _accept_verbose(
    transforms.scale_by_backtracking_linesearch, "atol"
)
scale_by_zoom_linesearch = _accept_verbose(transforms.scale_by_zoom_linesearch, "tol")

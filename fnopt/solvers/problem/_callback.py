"""Callbacks at every step: their signatures, what they answer, and what they raise."""

from __future__ import annotations

import inspect
import types
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fnopt.core import Status
from fnopt.solvers.result._solution import StepInfo


def asked_to_stop(callback: Callable[[Any], Any], info: StepInfo, value: str = "cost") -> jax.Array:
    """Calls a function of the host with what there is to see, and says whether to stop.

    Args:
        callback: `callback(info)`, or one with a signature of SciPy's; it stops the fit
            by returning True or raising `StopIteration`. Another exception is shown as a warning,
            and the fit goes on.
        info: What there is to see.
        value: What SciPy calls the cost of this search.

    Returns:
        A boolean scalar.
    """
    failed: list[Exception] = []
    heard = _of_a_step(callback, value)

    def call(info: Any) -> np.ndarray:
        try:
            answer = heard(jax.tree.map(np.asarray, info))
        except StopIteration:
            answer = True
        except Exception as error:
            # From in here it would end the fit: a full disk hours of work.
            if not failed:
                warnings.warn(_failure(callback, error), stacklevel=2)
            failed.append(error)
            answer = False
        # Only True itself: what a logger returns is often something that is true.
        return np.asarray(isinstance(answer, (bool, np.bool_)) and bool(answer))

    # Its answer is used, so it is called in every step; one with effects can't be in a batch.
    shape = jax.ShapeDtypeStruct((), bool)
    return jax.pure_callback(call, shape, info, vmap_method="sequential")


def status_after(
    callback: Callable[[Any], Any], info: StepInfo, status: jax.Array, value: str = "cost"
) -> jax.Array:
    """The status of a search after its callback: `STOPPED` where a running one is asked to stop."""
    stop = asked_to_stop(callback, info, value) & (status == Status.RUNNING.value)
    return jnp.where(stop, Status.STOPPED.array, status)


def _failure(callback: Any, error: Exception) -> str:
    text = str(error).rstrip(".")
    name = getattr(callback, "__name__", type(callback).__name__)
    return (
        f"callback: {name} raised {type(error).__name__}: {text}. The fit goes on; raise "
        "StopIteration, or return True, to end it."
    )


def _of_a_step(callback: Callable[..., Any], value: str) -> Callable[[StepInfo], Any]:
    """A callback of a `StepInfo`; SciPy tells its two signatures by the name of the argument."""
    try:
        names = list(inspect.signature(callback).parameters)
    except (TypeError, ValueError):  # some builtin functions have none
        return callback
    if names in (["x"], ["xk"]):
        return lambda info: callback(info.params)
    if names != ["intermediate_result"]:
        return callback

    def called(info: StepInfo) -> Any:
        seen = {"x": info.params, "nit": info.step, value: info.cost}
        return callback(intermediate_result=types.SimpleNamespace(**seen))

    return called

"""Callbacks at every step: their signatures, return values and exceptions."""

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
    """Call a function on the host with a `StepInfo`, and return whether to stop.

    Args:
        callback: `callback(info)`, or a callback with one of SciPy's signatures. It stops the fit
            by returning True or raising `StopIteration`. Any other exception becomes a warning, and
            the fit continues.
        info: The argument of the callback.
        value: The name of the cost in SciPy's result of this solver.

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
            # An exception raised here would abort the fit. A full disk would cost hours of work.
            if not failed:
                warnings.warn(_failure(callback, error), stacklevel=2)
            failed.append(error)
            answer = False
        # Only True itself stops: a logger often returns another truthy value.
        return np.asarray(isinstance(answer, (bool, np.bool_)) and bool(answer))

    # JAX calls it in every step, because the result is used; `jax.vmap` doesn't support ordered
    # effects.
    shape = jax.ShapeDtypeStruct((), bool)
    return jax.pure_callback(call, shape, info, vmap_method="sequential")


def status_after(
    callback: Callable[[Any], Any], info: StepInfo, status: jax.Array, value: str = "cost"
) -> jax.Array:
    """Return the status after the callback: `STOPPED` if the callback stops a running search."""
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
    """Convert a callback with SciPy's signature to a callback with a `StepInfo` argument."""
    try:
        names = list(inspect.signature(callback).parameters)
    except (TypeError, ValueError):  # some builtin functions have no signature
        return callback
    if names in (["x"], ["xk"]):
        return lambda info: callback(info.params)
    if names != ["intermediate_result"]:
        return callback

    def called(info: StepInfo) -> Any:
        seen = {"x": info.params, "nit": info.step, value: info.cost}
        return callback(intermediate_result=types.SimpleNamespace(**seen))

    return called

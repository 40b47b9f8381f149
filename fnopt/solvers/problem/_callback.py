"""Calls of the user's callback on the host, with fnopt's or SciPy's signature."""

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


def run_callback(callback: Callable[[Any], Any], info: StepInfo, value: str = "cost") -> jax.Array:
    """Call the user's callback on the host, and return whether the search has to stop.

    Args:
        callback: `callback(info)`, or a callback with one of SciPy's signatures. It stops the
            search by returning True or raising `StopIteration`. Any other exception becomes a
            warning, and the search continues.
        info: The argument of the callback.
        value: The name of the cost in SciPy's result of this solver.

    Returns:
        A boolean scalar.
    """
    errors: list[Exception] = []
    adapted = _adapt_callback(callback, value)

    def call(info: Any) -> np.ndarray:
        try:
            output = adapted(jax.tree.map(np.asarray, info))
        except StopIteration:
            output = True
        except Exception as error:
            # An exception raised here would abort the search: a logger on a full disk would
            # discard hours of work.
            if not errors:
                warnings.warn(_failure(callback, error), stacklevel=2)
            errors.append(error)
            output = False
        # Loggers often return other truthy values, so only True itself stops the search.
        return np.asarray(isinstance(output, (bool, np.bool_)) and bool(output))

    # XLA doesn't remove the call, because the loop uses its result. An ordered `io_callback` would
    # fail under `jax.vmap`.
    shape = jax.ShapeDtypeStruct((), bool)
    return jax.pure_callback(call, shape, info, vmap_method="sequential")


def status_after(
    callback: Callable[[Any], Any], info: StepInfo, status: jax.Array, value: str = "cost"
) -> jax.Array:
    """Return the status after the callback: `STOPPED` if the callback stops a running search."""
    stop = run_callback(callback, info, value) & (status == Status.RUNNING.value)
    return jnp.where(stop, Status.STOPPED.array, status)


def _failure(callback: Any, error: Exception) -> str:
    text = str(error).rstrip(".")
    name = getattr(callback, "__name__", type(callback).__name__)
    return (
        f"callback: {name} raised {type(error).__name__}: {text}. The search continues. To stop "
        "it, raise StopIteration or return True."
    )


def _adapt_callback(callback: Callable[..., Any], value: str) -> Callable[[StepInfo], Any]:
    """Convert a callback with SciPy's signature to a callback with a `StepInfo` argument."""
    try:
        names = list(inspect.signature(callback).parameters)
    except (TypeError, ValueError):  # some builtin functions have no signature
        return callback
    if names in (["x"], ["xk"]):
        return lambda info: callback(info.params)
    if names != ["intermediate_result"]:
        return callback

    def adapted(info: StepInfo) -> Any:
        result = {"x": info.params, "nit": info.step, value: info.cost}
        return callback(intermediate_result=types.SimpleNamespace(**result))

    return adapted

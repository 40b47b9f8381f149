"""A callback that watches a fit from the host, and may end it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fnopt.core import Status


def asked_to_stop(callback: Callable[[Any], Any], info: Any) -> jax.Array:
    """Calls a function of the host with what there is to see, and says whether to stop.

    Args:
        callback: `callback(info)`; it stops the fit by returning True or raising `StopIteration`.
            Another exception is shown as a warning, and the fit goes on.
        info: A tree of arrays.

    Returns:
        A boolean scalar.
    """
    failed: list[Exception] = []

    def call(info: Any) -> np.ndarray:
        try:
            answer = callback(jax.tree.map(np.asarray, info))
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


def status_after(callback: Callable[[Any], Any], info: Any, status: jax.Array) -> jax.Array:
    """The status of a search after its callback: `STOPPED` where a running one is asked to stop."""
    stop = asked_to_stop(callback, info) & (status == Status.RUNNING.value)
    return jnp.where(stop, Status.STOPPED.array, status)


def _failure(callback: Any, error: Exception) -> str:
    name = getattr(callback, "__name__", type(callback).__name__)
    return (
        f"callback: {name} raised {type(error).__name__}: {error}. The fit goes on; raise "
        "StopIteration, or return True, to end it."
    )

"""Errors of steps whose arrays are on different devices."""

from __future__ import annotations

from typing import Any

import jax
from jax.core import Tracer

from fnopt.core._errors import where
from fnopt.core._paths import leaf_text, leaves_with_names


def explain_device_errors(error: ValueError, updates: Any, **others: Any) -> None:
    """Raise an error that names an array on other devices than the gradients, if there is one.

    Args:
        error: The error of JAX.
        updates: The gradients.
        others: What goes with them, by name: trees of arrays.
    """
    found = _array_elsewhere(updates, others)
    if found is not None:
        raise ValueError(f"{where()}{found}") from error


def _array_elsewhere(updates: Any, others: dict[str, Any]) -> str | None:
    gradients = _placed(updates)
    if not gradients:
        return None
    name, home = gradients[0]
    for what, tree in {"gradients": updates, **others}.items():
        for other, x in _placed(tree):
            if x.sharding.device_set != home.sharding.device_set:
                leaf = f"{leaf_text(other)} of {what}" if other else what
                return (
                    f"{leaf} has the sharding {x.sharding}, {leaf_text(name)} of the gradients has "
                    f"{home.sharding}: on other devices. Bring the state to where the params are "
                    "with jax.device_put(state, fnopt.distributed.state_sharding(tx, params)), or "
                    "to one device with jax.device_put(state, device)."
                )
    return None


def _placed(tree: Any) -> list[tuple[str, jax.Array]]:
    """The arrays that are committed to devices, by name."""
    named = leaves_with_names(tree)[0]
    return [
        (name, x)
        for name, x in named
        if isinstance(x, jax.Array) and not isinstance(x, Tracer) and x.committed
    ]

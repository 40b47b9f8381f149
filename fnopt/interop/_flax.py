"""flax: the optimizer of nnx with its numbers as data, and params on manifolds in its bytes."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import as_transformation, default_float
from fnopt.manifolds import on


def nnx_optimizer(model: Any, tx: Any, *, wrt: Any) -> Any:
    """Make an `nnx.Optimizer` whose learning rate may change without recompilation.

    In `nnx.Optimizer` the optimizer is static, so every new number compiles a new program. This
    optimizer holds `tx` as data, so `optimizer.tx = fnopt.adam(rate)` in a loop doesn't recompile.

    Args:
        model: The `nnx.Module`.
        tx: The optimizer.
        wrt: The filter of the trained variables, such as `nnx.Param`.

    Returns:
        An `nnx.Optimizer`.

    Raises:
        TypeError: If `tx` isn't an optimizer.
        ImportError: If flax isn't installed.

    Example:
        >>> import fnopt
        >>> from flax import nnx
        >>> model = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
        >>> optimizer = fnopt.interop.nnx_optimizer(model, fnopt.adam(0.1), wrt=nnx.Param)
        >>> optimizer.tx = fnopt.adam(0.05)
        >>> isinstance(optimizer, nnx.Optimizer)
        True
    """
    return _class()(model, as_transformation(tx, "nnx_optimizer: tx"), wrt=wrt)


@functools.cache
def _class() -> Any:
    from flax import nnx

    class Optimizer(nnx.Optimizer):
        """An `nnx.Optimizer` whose `tx` is data."""

        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, nnx.data(_as_arrays(value)) if name == "tx" else value)

    return Optimizer


def _as_arrays(tx: Any) -> Any:
    """The optimizer with arrays for its numbers: other numbers are static in nnx."""

    return jax.tree.map(
        lambda x: jnp.asarray(x, default_float()) if isinstance(x, float) else x, tx
    )


def register_flax_points() -> None:
    """Let `flax.serialization` save params made by :func:`fnopt.manifolds.on`.

    flax serializes only registered classes. The bytes hold the array; the manifold
    comes from the target tree of the restore. Pickle and orbax need no registration.

    Example:
        >>> import flax.serialization, fnopt, jax.numpy as jnp
        >>> from fnopt.manifolds import SO2, on
        >>> fnopt.interop.register_flax_points()
        >>> params = on(SO2, jnp.eye(2))
        >>> saved = flax.serialization.to_bytes(params)
        >>> flax.serialization.from_bytes(params, saved) == params
        True
    """
    from flax import serialization

    def read(target: on, state: Any) -> on:
        # Slots of an optimizer hold tangents, which aren't on the manifold.
        value = serialization.from_state_dict(target.value, state["value"])
        return jax.tree.unflatten(jax.tree.structure(target), [value])

    serialization.register_serialization_state(
        on, lambda point: {"value": point.value}, read, override=True
    )

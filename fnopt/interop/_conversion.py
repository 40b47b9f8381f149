"""Conversion of transformations for optax, of optimizers for nnx, and of points for flax."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import Transformation, as_transformation
from fnopt.manifolds import on
from fnopt.numerics import default_float


def to_optax(tx: Any) -> Any:
    """Convert an fnopt optimizer to an `optax.GradientTransformationExtraArgs`.

    optax's wrappers, flax and Equinox accept an fnopt optimizer without conversion. However,
    `optax.chain` and similar wrappers pass extra arguments (`value=loss`) only to instances of this
    class, and drop them silently for other objects. Therefore, convert optimizers that need extra
    arguments. The result has no equality or configuration, and its hyper-parameters aren't pytree
    leaves.

    Args:
        tx: An fnopt optimizer, or any (init, update) pair.

    Returns:
        An `optax.GradientTransformationExtraArgs` with the same `init`, `update` and state.

    Raises:
        TypeError: If `tx` isn't an optimizer.
        ImportError: If optax isn't installed.

    Example:
        >>> import fnopt, optax
        >>> tx = fnopt.interop.to_optax(fnopt.adam(1e-3))
        >>> isinstance(tx, optax.GradientTransformationExtraArgs)
        True
    """
    import optax

    return optax.GradientTransformationExtraArgs(*as_transformation(tx, "to_optax: tx"))


def from_optax(tx: Any) -> Transformation:
    """Convert an optax transformation to an fnopt transformation.

    `fnopt.chain` and fnopt's wrappers convert transformations automatically. Call `from_optax` to
    get an optimizer that is a pytree and can be an argument of a jitted function. The
    hyper-parameters are constants, because optax's functions close over them.

    Args:
        tx: An `optax.GradientTransformation`, or any (init, update) pair.

    Returns:
        A `Transformation` with the same state. `tx` receives the extra arguments that are in the
        signature of its `update`.

    Raises:
        TypeError: If `tx` isn't an optimizer.

    Example:
        >>> import jax, jax.numpy as jnp, fnopt, optax
        >>> tx = fnopt.interop.from_optax(optax.sgd(0.5))
        >>> step = jax.jit(lambda tx, grads: tx.update(grads, tx.init(grads))[0])
        >>> step(tx, {"w": jnp.ones(2)})
        {'w': Array([-0.5, -0.5], dtype=float32)}
    """
    return as_transformation(tx, "from_optax: tx")


def nnx_optimizer(model: Any, tx: Any, *, wrt: Any) -> Any:
    """Make an `nnx.Optimizer` whose learning rate can change without recompilation.

    `nnx.Optimizer` stores its optimizer as static data, so that every new hyper-parameter value
    recompiles the step. The returned optimizer stores `tx` as a pytree, so that `optimizer.tx =
    fnopt.adam(rate)` in a loop doesn't recompile.

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
    return _optimizer_class()(model, as_transformation(tx, "nnx_optimizer: tx"), wrt=wrt)


@functools.cache
def _optimizer_class() -> Any:
    from flax import nnx

    class Optimizer(nnx.Optimizer):
        """An `nnx.Optimizer` that stores `tx` as a pytree."""

        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, nnx.data(_as_arrays(value)) if name == "tx" else value)

    return Optimizer


def _as_arrays(tx: Any) -> Any:
    """Convert the optimizer's numbers to arrays."""
    # nnx hashes all leaves except arrays, so that a new Python number would recompile the step.
    return jax.tree.map(
        lambda x: jnp.asarray(x, default_float()) if isinstance(x, float) else x, tx
    )


def register_flax_points() -> None:
    """Register params made by :func:`fnopt.manifolds.on` with `flax.serialization`.

    flax serializes only registered classes. The bytes contain only the array; the manifold comes
    from the target tree that is passed to `from_bytes`. Pickle and orbax need no registration.

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
        # `on(...)` would check the value, but slots of an optimizer contain tangent vectors, which
        # aren't points of the manifold.
        value = serialization.from_state_dict(target.value, state["value"])
        return jax.tree.unflatten(jax.tree.structure(target), [value])

    serialization.register_serialization_state(
        on, lambda point: {"value": point.value}, read, override=True
    )

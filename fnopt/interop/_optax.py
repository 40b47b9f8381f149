"""Conversion of transformations between optax and fnopt."""

from __future__ import annotations

from typing import Any

from fnopt.core import Transformation, as_transformation


def to_optax(tx: Any) -> Any:
    """Convert an fnopt optimizer to an `optax.GradientTransformationExtraArgs`.

    optax's wrappers, flax and Equinox take an fnopt optimizer without conversion. But `optax.chain`
    and others pass extra arguments (`value=loss`) only to instances of this class, and silently
    drop them for others. Therefore convert optimizers that need extra arguments. The result has no
    equality and no configuration, and its numbers aren't leaves.

    Args:
        tx: An fnopt optimizer, or any (init, update) pair.

    Returns:
        An `optax.GradientTransformationExtraArgs` with the same `init` and `update`, and thus the
        same state.

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
    """Convert an optax transformation to an fnopt one.

    `fnopt.chain` and the wrappers do this automatically. Use it to get an optimizer that is a
    pytree, and can be an argument of a jitted function. Its hyper-parameters are constants, because
    optax's functions close over them.

    Args:
        tx: An `optax.GradientTransformation`, or any (init, update) pair.

    Returns:
        A Transformation with the same state. `tx` gets the extra arguments that its signature
        takes.

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

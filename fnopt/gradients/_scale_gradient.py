"""The identity with a scaled gradient."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


@jax.custom_jvp
def _scale_cotangent(x: jax.Array, scale: jax.Array) -> jax.Array:
    del scale
    return x


@_scale_cotangent.defjvp
def _scale_cotangent_jvp(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    x, scale = primals
    return x, tangents[0] * scale.astype(tangents[0].dtype)


def scale_gradient(inputs: Any, scale: Any) -> Any:
    r"""Return the inputs unchanged, and multiply their gradient by a number.

    .. math:: y = x, \qquad \frac{\partial L}{\partial x} = s\, \frac{\partial L}{\partial y}

    Zero stops the gradient, a negative number reverses it (Ganin and Lempitsky, 2014,
    arXiv:1409.7495). Forward-mode derivatives are scaled likewise.

    Args:
        inputs: A tree of floating or complex arrays.
        scale: :math:`s`, a number; it may be traced, and has no derivative.

    Returns:
        The same tree.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from fnopt.gradients import scale_gradient
        >>> jax.grad(lambda x: jnp.sum(scale_gradient(x, -0.5) ** 2))(jnp.ones(2))
        Array([-1., -1.], dtype=float32)
    """
    return jax.tree.map(lambda x: _scale_leaf(x, scale), inputs)


def _scale_leaf(x: Any, scale: Any) -> jax.Array:
    x = jnp.asarray(x)
    return _scale_cotangent(x, jax.lax.stop_gradient(jnp.asarray(scale, x.real.dtype)))

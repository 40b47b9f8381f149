"""Second derivatives of a loss of params, inputs and targets, as flat vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import HIGHEST
from fnopt.jacobians import ravel


def hvp(loss: Callable[..., Any], v: Any, params: Any, inputs: Any, targets: Any) -> Any:
    """Multiply the Hessian of `loss(params, inputs, targets)` by a flat vector."""
    _, unravel = ravel(params)

    return jax.jvp(
        lambda params: jax.grad(loss)(params, inputs, targets), (params,), (unravel(v),)
    )[1]


def hessian_diag(loss: Callable[..., Any], params: Any, inputs: Any, targets: Any) -> jax.Array:
    """Compute the Hessian's diagonal, with one product for each param.

    `fnopt.curvature.hessian_diagonal` estimates it from a few products.
    """
    flat, _ = ravel(params)

    def entry(v: jax.Array) -> jax.Array:
        return jnp.vdot(v, ravel(hvp(loss, v, params, inputs, targets))[0], precision=HIGHEST)

    return jax.vmap(entry)(jnp.eye(flat.size, dtype=flat.dtype))


def fisher_diag(
    negative_log_likelihood: Callable[..., Any], params: Any, inputs: Any, targets: Any
) -> jax.Array:
    """Square the gradient of the batch; for one example this is the Fisher matrix' diagonal."""
    gradient = jax.grad(negative_log_likelihood)(params, inputs, targets)
    return jnp.square(ravel(gradient)[0])

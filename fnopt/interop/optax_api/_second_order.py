"""Second derivatives of a loss of params, inputs and targets, as flat vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import HIGHEST
from fnopt.jacobians import ravel


def hvp(loss: Callable[..., Any], v: Any, params: Any, inputs: Any, targets: Any) -> Any:
    """The Hessian of `loss(params, inputs, targets)` times a flat vector, a tree like params."""
    _, unravel = ravel(params)

    def gradient(params: Any) -> Any:
        return jax.grad(loss)(params, inputs, targets)

    return jax.jvp(gradient, (params,), (unravel(v),))[1]


def hessian_diag(loss: Callable[..., Any], params: Any, inputs: Any, targets: Any) -> jax.Array:
    """The Hessian's diagonal, by as many products as there are params.

    `fnopt.curvature.hessian_diagonal` estimates it by a few.
    """
    flat, _ = ravel(params)

    def entry(v: jax.Array) -> jax.Array:
        return jnp.vdot(v, ravel(hvp(loss, v, params, inputs, targets))[0], precision=HIGHEST)

    return jax.vmap(entry)(jnp.eye(flat.size, dtype=flat.dtype))


def fisher_diag(
    negative_log_likelihood: Callable[..., Any], params: Any, inputs: Any, targets: Any
) -> jax.Array:
    """The squared gradient of the batch; that of one example is the Fisher matrix' diagonal."""
    gradient = jax.grad(negative_log_likelihood)(params, inputs, targets)
    return jnp.square(ravel(gradient)[0])

"""optax's numerical functions: safe norms, samples, nonnegative least squares, Hessians."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fnopt import core, numerics
from fnopt.jacobians import ravel
from fnopt.numerics import HIGHEST, matmul


def global_norm(updates: Any) -> jax.Array:
    """Euclidean norm of all leaves."""
    return core.global_norm(updates)


def safe_increment(count: Any) -> jax.Array:
    """Add one to a count of any real dtype; the largest number stays unchanged."""
    count = jnp.asarray(count)
    if not jnp.issubdtype(count.dtype, jnp.floating):
        return numerics.safe_increment(count)
    return jnp.minimum(count + jnp.ones_like(count), jnp.finfo(count.dtype).max)


def safe_norm(
    x: jax.Array, min_norm: Any, ord: Any = None, axis: Any = None, keepdims: bool = False
) -> jax.Array:
    """Norm of an array, at least `min_norm`, with derivative zero at this bound."""
    norm = jnp.linalg.norm(x, ord, axis, True)
    small = norm <= min_norm
    # Without the inner select, the infinite slope at zero would make the derivative NaN.
    norm = jnp.linalg.norm(jnp.where(small, jnp.ones_like(x), x), ord, axis, keepdims)
    small = small if keepdims else jnp.squeeze(small, axis)
    return jnp.where(small, jnp.asarray(min_norm, norm.dtype), norm)


def safe_root_mean_squares(x: jax.Array, min_rms: Any) -> jax.Array:
    """Root mean square, at least `min_rms`, with derivative zero at this bound."""
    mean = jnp.mean(jnp.square(jnp.abs(x)))
    small = mean <= jnp.square(jnp.asarray(min_rms, mean.dtype))
    rms = jnp.sqrt(jnp.where(small, jnp.ones_like(mean), mean))
    return jnp.where(small, jnp.asarray(min_rms, rms.dtype), rms)


def nnls(A: Any, b: Any, iters: int, unroll: int | bool = 1, L: Any = None) -> jax.Array:
    r"""Minimize :math:`\lVert A x - b \rVert` subject to :math:`x \ge 0`.

    The method takes a fixed number of accelerated projected gradient steps. `fnopt.least_squares`
    with bounds needs fewer steps and reports whether it converged.

    Args:
        A: A matrix `[m, n]`.
        b: A vector `[m]`, or a matrix `[m, k]` of `k` right-hand sides.
        iters: Number of steps.
        unroll: The argument `unroll` of `jax.lax.scan`.
        L: An upper bound on the largest eigenvalue of `A.T @ A`.

    Reference:
        Beck and Teboulle, 2009, "A fast iterative shrinkage-thresholding algorithm".
    """
    gram, product = matmul(A.T, A), matmul(A.T, b)
    # The Frobenius norm and the 1-norm are upper bounds of the largest eigenvalue.
    if L is None:
        columns = jnp.sum(jnp.abs(gram), axis=0)
        L = jnp.minimum(jnp.linalg.norm(gram), jnp.max(columns, initial=0))
    bound = jnp.asarray(L, product.dtype)
    rate = 1 / jnp.where(bound == 0, jnp.ones_like(bound), bound)

    def step(carry: tuple[Any, Any, Any], _: None) -> tuple[tuple[Any, Any, Any], None]:
        x, y, t = carry  # in the notation of Beck and Teboulle
        new_x = jnp.maximum(y - rate * (matmul(gram, y) - product), jnp.zeros_like(y))
        new_t = (1 + jnp.sqrt(1 + 4 * t**2)) / 2
        return (new_x, new_x + (t - 1) / new_t * (new_x - x), new_t), None

    zero, one = jnp.zeros_like(product), jnp.ones((), product.dtype)
    return jax.lax.scan(step, (zero, zero, one), length=iters, unroll=unroll)[0][0]


class MultiNormalDiagFromLogScale:
    """Independent normal distributions, with means and logarithms of standard deviations."""

    def __init__(self, loc: Any, log_scale: Any) -> None:
        self._mean, self._log_scale = jnp.asarray(loc), jnp.asarray(log_scale)
        self._shape = jnp.broadcast_shapes(self._mean.shape, self._log_scale.shape)

    def sample(self, shape: Any, key: Any) -> jax.Array:
        """Draw an array of random vectors with the batch shape `shape`."""
        dtype = jnp.result_type(self._mean, self._log_scale)
        noise = jax.random.normal(key, (*shape, *self._shape), dtype)
        return noise * jnp.exp(self._log_scale) + self._mean

    def log_prob(self, x: Any) -> jax.Array:
        """Logarithm of the density at an array of vectors."""
        scaled = (jnp.asarray(x) - self._mean) * jnp.exp(-self._log_scale)
        terms = -0.5 * jnp.square(scaled) - self._log_scale - 0.5 * jnp.log(2 * jnp.pi)
        return jnp.sum(terms, axis=tuple(range(-len(self._shape), 0)))

    @property
    def log_scale(self) -> jax.Array:
        """Logarithms of the standard deviations."""
        return self._log_scale

    @property
    def params(self) -> list[jax.Array]:
        """List of the means and the logarithms of the standard deviations."""
        return [self._mean, self._log_scale]


multi_normal = MultiNormalDiagFromLogScale


def hvp(loss: Callable[..., Any], v: Any, params: Any, inputs: Any, targets: Any) -> Any:
    """Multiply the Hessian of `loss(params, inputs, targets)` by a flat vector."""
    _, unravel = ravel(params)
    return jax.jvp(
        lambda params: jax.grad(loss)(params, inputs, targets), (params,), (unravel(v),)
    )[1]


def hessian_diag(loss: Callable[..., Any], params: Any, inputs: Any, targets: Any) -> jax.Array:
    """Compute the diagonal of the Hessian with one Hessian-vector product per parameter.

    `fnopt.curvature.hessian_diagonal` estimates the diagonal from a few products.
    """
    flat, _ = ravel(params)

    def entry(v: jax.Array) -> jax.Array:
        return jnp.vdot(v, ravel(hvp(loss, v, params, inputs, targets))[0], precision=HIGHEST)

    return jax.vmap(entry)(jnp.eye(flat.size, dtype=flat.dtype))


def fisher_diag(
    negative_log_likelihood: Callable[..., Any], params: Any, inputs: Any, targets: Any
) -> jax.Array:
    """Squared gradient of the batch; for one example, the diagonal of the empirical Fisher."""
    gradient = jax.grad(negative_log_likelihood)(params, inputs, targets)
    return jnp.square(ravel(gradient)[0])

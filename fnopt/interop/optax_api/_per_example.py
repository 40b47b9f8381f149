"""Clipping of per-example gradients, and noise.

`fnopt.clipped_grad` clips without forming per-example gradients, at about the cost of the gradient
of the batch.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt import optimizers, transforms
from fnopt.core import Transformation, global_norm
from fnopt.errors import check_key
from fnopt.gradients import add_noise, clip_factors, weighted_total
from fnopt.interop.optax_api._bridge import as_schedule
from fnopt.numerics import default_float, is_inexact


def per_example_global_norm_clip(grads: Any, l2_norm_clip: Any) -> tuple[Any, jax.Array]:
    """Clip the gradient of each example; return the sum and the number of clipped gradients.

    Args:
        grads: Per-example gradients, a tree of arrays `[n, ...]`.
        l2_norm_clip: The maximum norm of an example's gradient.
    """
    grads = jax.tree.map(_floating, grads)
    norms = jax.vmap(global_norm)(grads)
    factors = clip_factors(norms, l2_norm_clip, "clip")
    summed = jax.tree.map(lambda g: weighted_total(factors, g).astype(g.dtype), grads)
    return summed, jnp.sum(norms > l2_norm_clip)


def _floating(g: Any) -> jax.Array:
    """Convert integer gradients to floating gradients."""
    return jnp.asarray(g, jnp.result_type(g) if is_inexact(g) else default_float())


def per_example_layer_norm_clip(
    grads: Any, global_l2_norm_clip: Any, uniform: bool = True
) -> tuple[Any, Any]:
    """Clip each leaf of each example's gradient; return sums and numbers of clipped leaves.

    Args:
        grads: Per-example gradients, a tree of arrays `[n, ...]`.
        global_l2_norm_clip: The maximum norm of all leaves of an example's gradient.
        uniform: Whether the squared clipping norm is divided equally among the leaves, or else in
            proportion to their sizes.
    """
    leaves, treedef = jax.tree.flatten(grads)
    sizes = [1 if uniform else g[0].size for g in leaves]
    limits = [global_l2_norm_clip * (size / sum(sizes)) ** 0.5 for size in sizes]
    pairs = [per_example_global_norm_clip(g, c) for g, c in zip(leaves, limits, strict=True)]
    return treedef.unflatten([g for g, _ in pairs]), treedef.unflatten([n for _, n in pairs])


class DifferentiallyPrivateAggregateState(NamedTuple):
    """PRNG key for the noise of the next step."""

    rng_key: jax.Array


class _private_mean(Transformation):
    """Noisy mean of clipped per-example gradients."""

    other_gradients = True  # gradients have an example axis

    l2_norm_clip: Any
    noise_multiplier: Any
    key: Any

    def init(self, params: Any) -> DifferentiallyPrivateAggregateState:
        """Initial state with the key."""
        del params
        return DifferentiallyPrivateAggregateState(self.key)

    def update(
        self, updates: Any, state: Any, params: Any = None, **extra_args: Any
    ) -> tuple[Any, DifferentiallyPrivateAggregateState]:
        """Return the noisy mean and a state with a new key."""
        del params, extra_args
        n = jax.tree.leaves(updates)[0].shape[0]
        key, noise_key = jax.random.split(state.rng_key)
        summed, _ = per_example_global_norm_clip(updates, self.l2_norm_clip)
        noisy, _ = add_noise(summed, noise_key, self.noise_multiplier, self.l2_norm_clip)
        mean = jax.tree.map(lambda g: g / jnp.asarray(n, g.dtype), noisy)
        return mean, DifferentiallyPrivateAggregateState(key)


def differentially_private_aggregate(
    l2_norm_clip: Any, noise_multiplier: Any, key: Any = None, *, seed: Any = None
) -> Any:
    """Clip per-example gradients `[n, ...]`, average them, and add Gaussian noise.

    Args:
        l2_norm_clip: The maximum norm of an example's gradient.
        noise_multiplier: The standard deviation of the noise, divided by `l2_norm_clip`.
        key: A PRNG key, or a seed.
        seed: Alias of `key`.
    """
    key = key if key is not None else seed
    if key is None or isinstance(key, int):
        key = jax.random.key(key or 0)
    key = check_key(key, "differentially_private_aggregate")
    return _private_mean(l2_norm_clip, noise_multiplier, key)


def dpsgd(
    learning_rate: Any,
    l2_norm_clip: Any,
    noise_multiplier: Any,
    seed: Any,
    momentum: Any = None,
    nesterov: bool = False,
) -> Any:
    """Gradient descent with the differentially private mean of per-example gradients `[n, ...]`."""
    private = differentially_private_aggregate(l2_norm_clip, noise_multiplier, seed)
    descent = optimizers.sgd(as_schedule(learning_rate), momentum, nesterov)
    return transforms.chain(private, descent)

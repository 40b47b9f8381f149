"""Clipping and noise for per-example gradients.

`fnopt.clipped_grad` clips without forming per-example gradients, at about the cost of the batch
gradient.
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
        grads: A tree of arrays `[n, ...]`.
        l2_norm_clip: The maximum norm of an example's gradient.
    """
    grads = jax.tree.map(_floating, grads)
    norms = jax.vmap(global_norm)(grads)
    factors = clip_factors(norms, l2_norm_clip, "clip")
    summed = jax.tree.map(lambda g: weighted_total(factors, g).astype(g.dtype), grads)
    return summed, jnp.sum(norms > l2_norm_clip)


def _floating(g: Any) -> jax.Array:
    """Convert integer gradients, as in documentation examples, to floating ones."""
    return jnp.asarray(g, jnp.result_type(g) if is_inexact(g) else default_float())


def per_example_layer_norm_clip(
    grads: Any, global_l2_norm_clip: Any, uniform: bool = True
) -> tuple[Any, Any]:
    """Clip each leaf of each example's gradient; return sums and numbers of clipped leaves.

    Args:
        grads: A tree of arrays `[n, ...]`.
        global_l2_norm_clip: The maximum norm of an example's whole gradient.
        uniform: Whether all leaves get an equal share of the squared clipping norm; otherwise, a
            share in proportion to their size.
    """
    leaves, treedef = jax.tree.flatten(grads)
    sizes = [1 if uniform else g[0].size for g in leaves]
    limits = [global_l2_norm_clip * (size / sum(sizes)) ** 0.5 for size in sizes]
    pairs = [per_example_global_norm_clip(g, c) for g, c in zip(leaves, limits, strict=True)]
    return treedef.unflatten([g for g, _ in pairs]), treedef.unflatten([n for _, n in pairs])


class DifferentiallyPrivateAggregateState(NamedTuple):
    """PRNG key for the next noise."""

    rng_key: jax.Array


class _private_mean(Transformation):
    """Noisy mean of clipped gradients `[n, ...]`."""

    other_gradients = True  # gradients have an axis of examples

    l2_norm_clip: Any
    noise_multiplier: Any
    key: Any

    def init(self, params: Any) -> DifferentiallyPrivateAggregateState:
        """Return the key as the state."""
        del params
        return DifferentiallyPrivateAggregateState(self.key)

    def update(
        self, updates: Any, state: Any, params: Any = None, **extra_args: Any
    ) -> tuple[Any, DifferentiallyPrivateAggregateState]:
        """Return the noisy mean, and a new key."""
        del params, extra_args
        n = jax.tree.leaves(updates)[0].shape[0]
        key, own = jax.random.split(state.rng_key)
        summed, _ = per_example_global_norm_clip(updates, self.l2_norm_clip)
        noisy, _ = add_noise(summed, own, self.noise_multiplier, self.l2_norm_clip)
        mean = jax.tree.map(lambda g: g / jnp.asarray(n, g.dtype), noisy)
        return mean, DifferentiallyPrivateAggregateState(key)


def differentially_private_aggregate(
    l2_norm_clip: Any, noise_multiplier: Any, key: Any = None, *, seed: Any = None
) -> Any:
    """Clip every gradient of `[n, ...]`, average them, and add Gaussian noise.

    Args:
        l2_norm_clip: The maximum norm of an example's gradient.
        noise_multiplier: The noise's standard deviation, relative to `l2_norm_clip`.
        key: A PRNG key, or a seed.
        seed: Alias of `key`.
    """
    given = key if key is not None else seed
    if given is None or isinstance(given, int):
        given = jax.random.key(given or 0)
    given = check_key(given, "differentially_private_aggregate")
    return _private_mean(l2_norm_clip, noise_multiplier, given)


def dpsgd(
    learning_rate: Any,
    l2_norm_clip: Any,
    noise_multiplier: Any,
    seed: Any,
    momentum: Any = None,
    nesterov: bool = False,
) -> Any:
    """Gradient descent with the differentially private mean of gradients `[n, ...]`."""
    private = differentially_private_aggregate(l2_norm_clip, noise_multiplier, seed)
    descent = optimizers.sgd(as_schedule(learning_rate), momentum, nesterov)
    return transforms.chain(private, descent)

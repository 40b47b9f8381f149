"""PRNG keys of transforms, and annealed gradient noise."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from fnopt.core import Scalar, Transformation, hyper, static
from fnopt.errors import check_inexact, where
from fnopt.numerics import compute_dtype, real_dtype, safe_increment, safe_sqrt


def key_words(key: Any) -> tuple[int, ...] | int:
    """Convert an integer or a PRNG key to integers, which can be compared and serialized."""
    if isinstance(key, (int, np.integer)):
        return int(key)
    if isinstance(key, Tracer):
        raise TypeError(
            f"{where()}the key is traced, expected an integer or a concrete key. Make the "
            "transform outside of jit and vmap."
        )
    if isinstance(key, (tuple, list)):
        return tuple(int(word) for word in key)
    if hasattr(key, "dtype") and jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        key = jax.random.key_data(key)
    words = np.asarray(key)
    if words.dtype != np.uint32 or words.ndim != 1:
        raise TypeError(f"{where()}key = {key!r}, expected an integer or a key of jax.random.")
    return tuple(int(word) for word in words)


def step_key(words: Any, count: jax.Array) -> jax.Array:
    """Derive the key of a step from the words of a key and the step count."""
    if isinstance(words, int):
        key = jax.random.key(words)
    else:
        key = jax.random.wrap_key_data(jnp.asarray(words, jnp.uint32))
    # A state stores the count instead of a key, because some checkpoint libraries can't save keys.
    return jax.random.fold_in(key, count)


class AddGradientNoiseState(NamedTuple):
    """Number of previous updates, which determines the noise of a step together with the key."""

    count: jax.Array


class add_gradient_noise(Transformation):
    r"""Add normal noise with a variance that decreases with the step.

    .. math:: u_t = g_t + \sigma_t\, z_t, \qquad z_t \sim N(0, 1), \qquad
              \sigma_t^2 = \frac{\eta}{t^\gamma}

    The noise of a step is a function of the key and of the step, so a restored run continues with
    the same noise. For noise with a constant variance in private training, see `fnopt.add_noise`.

    Args:
        eta: :math:`\eta`, the variance of the first step's noise.
        gamma: :math:`\gamma`, the exponent of the variance's decay.
        key: An integer or a key of `jax.random`; a constant of the compiled step.

    Raises:
        TypeError: If `key` is neither an integer nor a key of `jax.random`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, g = fnopt.add_gradient_noise(0.01, 0.55, key=3), {"w": jnp.zeros(10_000)}
        >>> updates, _ = tx.update(g, tx.init(g))
        >>> print(f"{updates['w'].std():.2f}")
        0.10

    Reference:
        Neelakantan et al., 2015, arXiv:1511.06807.
    """

    State = AddGradientNoiseState

    eta: Scalar = hyper(ge=0)
    gamma: Scalar = hyper(ge=0)
    key: Any = static(default=0, convert=key_words)

    def update(
        self, updates: Any, state: AddGradientNoiseState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, AddGradientNoiseState]:
        """Add the noise of this step."""
        check_inexact(updates, "gradients")
        count = safe_increment(state.count)
        key = step_key(self.key, state.count)
        leaves, treedef = jax.tree.flatten(updates)

        # A key per leaf, so that the noise of a leaf doesn't depend on the other leaves' shapes.
        def add_noise(i: int, g: Any) -> jax.Array:
            dtype = compute_dtype(jnp.result_type(g))
            real = real_dtype(dtype)
            eta, gamma = (jnp.asarray(x, real) for x in (self.eta, self.gamma))
            # The variance of Neelakantan et al. (2015). `safe_sqrt` has a finite derivative at 0.
            sigma = safe_sqrt(eta / count.astype(real) ** gamma)
            noise = jax.random.normal(jax.random.fold_in(key, i), jnp.shape(g), dtype)
            return jnp.asarray(g, dtype) + sigma.astype(dtype) * noise

        noisy_leaves = [add_noise(i, g) for i, g in enumerate(leaves)]
        return treedef.unflatten(noisy_leaves), AddGradientNoiseState(count)

"""Derivatives of piecewise constant functions, smoothed by random perturbations of the input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import Value
from fnopt.errors import check_count, check_inexact, check_key
from fnopt.numerics import compute_dtype


class Normal(Value):
    r"""Standard normal noise: :math:`p(z) \propto e^{-z^2 / 2}`.

    Example:
        >>> from fnopt.discrete import Normal
        >>> Normal().sample(jax.random.key(0), (2, 3)).shape
        (2, 3)
    """

    def sample(self, key: Any, sample_shape: tuple[int, ...] = (), dtype: Any = float) -> jax.Array:
        """Draw independent samples of shape `sample_shape`."""
        return jax.random.normal(key, sample_shape, dtype)

    def log_prob(self, inputs: jax.Array) -> jax.Array:
        """The logarithm of the density, up to a constant."""
        return -0.5 * jnp.square(inputs)


class Gumbel(Value):
    r"""Standard Gumbel noise: :math:`p(z) = e^{-z - e^{-z}}`.

    If this noise is added to scores, the argmax is a sample of the softmax distribution.

    Example:
        >>> from fnopt.discrete import Gumbel
        >>> Gumbel().sample(jax.random.key(0), (2, 3)).shape
        (2, 3)
    """

    def sample(self, key: Any, sample_shape: tuple[int, ...] = (), dtype: Any = float) -> jax.Array:
        """Draw independent samples of shape `sample_shape`."""
        return jax.random.gumbel(key, sample_shape, dtype)

    def log_prob(self, inputs: jax.Array) -> jax.Array:
        """The logarithm of the density."""
        return -inputs - jnp.exp(-inputs)


def make_perturbed_fun(
    fun: Callable[[Any], Any],
    num_samples: int = 1000,
    sigma: Any = 0.1,
    noise: Any = Gumbel(),  # noqa: B008 - an immutable value
    use_baseline: bool = True,
) -> Callable[[Any, Any], Any]:
    r"""Smooth a piecewise constant function by averaging it over noisy inputs.

    .. math:: f_\sigma(x) = \mathbb E_z\, f(x + \sigma z), \qquad
              \partial f_\sigma(x) = -\mathbb E_z \left( f(x + \sigma z) - f(x) \right)
              \frac{\nabla \log p(z)^\top}{\sigma}

    Both expectations are estimated by means over samples. The function is evaluated but never
    differentiated. Therefore an argmax, a ranking or an assignment has derivatives of any order.

    Args:
        fun: A traceable function of a tree of floating arrays, which returns numbers of any dtype.
            Integers and bools are converted to floats.
        num_samples: The number of noisy inputs.
        sigma: :math:`\sigma`, a positive number.
        noise: The distribution of :math:`z`: `Gumbel()`, `Normal()`, or any object with
            `sample(key, shape, dtype)` and `log_prob(z)`.
        use_baseline: Whether to subtract :math:`f(x)` in derivatives to reduce their variance.

    Returns:
        A function `perturbed(key, x)`, which returns a tree like `fun(x)` in float32 or wider.

    Raises:
        ValueError: If `num_samples` is below 1.
        TypeError: If an input isn't floating, or `key` isn't one PRNG key.

    Example:
        >>> from fnopt.discrete import Normal, make_perturbed_fun
        >>> def one_hot_argmax(x):
        ...     return jax.nn.one_hot(jnp.argmax(x), 3)
        >>> soft = make_perturbed_fun(one_hot_argmax, num_samples=500, sigma=1.0)
        >>> x = jnp.asarray([0.0, 1.0, 2.0])
        >>> bool(jnp.max(jnp.abs(soft(jax.random.key(0), x) - jax.nn.softmax(x))) < 0.1)
        True

    Reference:
        Berthet et al., 2020, arXiv:2002.08676; Foerster et al., 2018, arXiv:1802.05098.
    """
    check_count(num_samples, "num_samples", "make_perturbed_fun")

    def perturbed_fun(key: Any, x: Any) -> Any:
        check_key(key, "make_perturbed_fun")
        check_inexact(x, "the input of a perturbed function")
        # The baseline is a constant: it only reduces the variance of the derivative.
        baseline = _floats(fun(jax.lax.stop_gradient(x)))

        def evaluate_sample(key: Any) -> Any:
            shifted, log_prob = _sample_with_log_prob(key, x, sigma, noise)
            # The "magic box" of Foerster et al. (2018): its value is 1 and its derivative is the
            # derivative of `log_prob`, for derivatives of any order.
            weight = jnp.exp(log_prob - jax.lax.stop_gradient(log_prob))
            value = _floats(fun(shifted))
            if not use_baseline:
                return jax.tree.map(lambda y: weight.astype(y.dtype) * y, value)
            return jax.tree.map(
                lambda y, b: y + (weight.astype(y.dtype) - 1) * (y - b), value, baseline
            )

        values = jax.vmap(evaluate_sample)(jax.random.split(key, num_samples))
        return jax.tree.map(lambda y: jnp.mean(y, axis=0), values)

    return perturbed_fun


def _floats(tree: Any) -> Any:
    def cast_leaf(y: Any) -> jax.Array:
        y = jnp.asarray(y)
        is_inexact = jnp.issubdtype(y.dtype, jnp.inexact)
        return y.astype(compute_dtype(y.dtype) if is_inexact else compute_dtype())

    return jax.tree.map(cast_leaf, tree)


def _sample_with_log_prob(key: Any, x: Any, sigma: Any, noise: Any) -> tuple[Any, jax.Array]:
    """Draw a noisy input, a constant, and the log-density of its noise as a function of `x`."""
    leaves, treedef = jax.tree.flatten(x)
    shifted, total = [], jnp.zeros((), compute_dtype())
    for k, leaf in zip(jax.random.split(key, max(len(leaves), 1)), leaves, strict=False):
        leaf = jnp.asarray(leaf)
        dtype = compute_dtype(leaf.dtype)
        s, value = jnp.asarray(sigma).astype(dtype), leaf.astype(dtype)
        noisy = jax.lax.stop_gradient(value + s * noise.sample(k, leaf.shape, dtype))
        shifted.append(noisy.astype(leaf.dtype))
        # `noisy` is constant, so that the log-density has a derivative with respect to `leaf`.
        z = (noisy - value) / s
        total += jnp.sum(noise.log_prob(z)).astype(total.dtype)
    return jax.tree.unflatten(treedef, shifted), total

"""Averages of gradients: the arithmetic that the adaptive methods share."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def as_dtype(dtype: Any) -> Any:
    """A storage dtype in its canonical, hashable form; None stays None."""
    return None if dtype is None else jnp.dtype(dtype)


def ema(mean: jax.Array, x: jax.Array, decay: jax.Array) -> jax.Array:
    r"""One step of an exponential average: :math:`\beta m + (1-\beta) x`."""
    return decay * mean + (1 - decay) * x


def squared(x: jax.Array) -> jax.Array:
    """The squared modulus: real for complex gradients too."""
    return jnp.real(x) ** 2 + jnp.imag(x) ** 2 if jnp.iscomplexobj(x) else x * x


def bias_correction(decay: jax.Array, count: jax.Array) -> jax.Array:
    r"""What an average that started at zero has seen after `count` steps: :math:`1-\beta^t`.

    It is computed as :math:`-\mathrm{expm1}(t \log \beta)`: for a decay near one the power is near
    one too, and the difference would lose three of float32's seven digits in the first steps.
    """
    t = count.astype(decay.dtype)
    positive = decay > 0
    safe = jnp.where(positive, decay, jnp.full_like(decay, 0.5))
    # log1p of the exact difference keeps the digits of 1 - beta, which log alone would round.
    return jnp.where(positive, -jnp.expm1(t * jnp.log1p(safe - 1)), 1 - decay**t)


@jax.custom_jvp
def root(x: jax.Array) -> jax.Array:
    r"""The square root :math:`\sqrt x`, with derivative 0 at 0.

    The slope of the root is infinite there, and infinity times the zero derivative of a second
    moment that saw no gradient would make every hyper-gradient NaN.
    """
    return jnp.sqrt(x)


@root.defjvp
def _root_jvp(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    y = root(*primals)
    slope = jnp.where(y == 0, jnp.zeros_like(y), 0.5 / nonzero(y))
    return y, slope * tangents[0]


def nonzero(x: jax.Array) -> jax.Array:
    """A divisor: 1 where `x` is 0, so that a zero over a zero is 0; NaN stays NaN."""
    return jnp.where(x == 0, jnp.ones_like(x), x)

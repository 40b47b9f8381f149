"""Identities that hand out the cotangent that flows through them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


@jax.custom_jvp
def listened(x: jax.Array, probe: jax.Array) -> jax.Array:
    """The value `x`, whose cotangent is also that of the probe.

    As `x + probe` at `probe = 0`, but the probe's zeros are never read, so that the compiler drops
    them, and `x` keeps its bits.
    """
    return x


@listened.defjvp
def _listened_jvp(primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[Any, Any]:
    return primals[0], tangents[0] + tangents[1]


def listened_reduced(reduce: Callable[[Any], Any], x: jax.Array, probe: Any) -> jax.Array:
    """The value `x`; the probe's "cotangent" is `reduce(cotangent of x)`: no more is kept."""

    @jax.custom_vjp
    def identity(x: jax.Array, probe: Any) -> jax.Array:
        return x

    def backward(_: None, cotangent: jax.Array) -> tuple[jax.Array, Any]:
        return cotangent, jax.tree.map(_as_float, reduce(cotangent))

    identity.defvjp(lambda x, probe: (x, None), backward)
    return identity(x, probe)


def with_cotangent_rule(rule: Callable[[Any, Any], Any], x: jax.Array, given: Any) -> jax.Array:
    """The value `x`, whose cotangent goes through `rule(cotangent, given)` on the way back."""

    @jax.custom_vjp
    def identity(x: jax.Array, given: Any) -> jax.Array:
        return x

    def backward(given: Any, cotangent: jax.Array) -> tuple[jax.Array, Any]:
        return rule(cotangent, given), jax.tree.map(jnp.zeros_like, given)

    # An argument, because a rule must not close over values of an iteration.
    identity.defvjp(lambda x, given: (x, given), backward)
    return identity(x, given)


def probe_dtype(dtype: Any) -> Any:
    """The dtype in which a reduction travels as a cotangent: counts travel as float32."""
    return dtype if jnp.issubdtype(dtype, jnp.inexact) else jnp.dtype(jnp.float32)


def _as_float(x: Any) -> jax.Array:
    x = jnp.asarray(x)
    return x.astype(probe_dtype(x.dtype))

"""Identity primitives: `tap` names a value; a probe adds zeros whose gradient is a cotangent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from fnopt.errors import leaves_with_names
from fnopt.programs import SCOPE_PREFIX

Tree = TypeVar("Tree")

_RESERVED = "*?[]#"

# A tap is an identity in the traced program, and compiles to nothing. Unlike the rule of JAX's
# `name` primitive, the derivative rule drops the tap. With `name`, a differentiated scan would save
# the values before and after the primitive as two residuals of every iteration.
tap_p = Primitive("tap")
tap_p.def_impl(lambda x, *, name: x)
tap_p.def_abstract_eval(lambda x, *, name: x)
mlir.register_lowering(tap_p, lambda ctx, x, *, name: [x])
batching.defvectorized(tap_p)
ad.primitive_jvps[tap_p] = lambda primals, tangents, *, name: (primals[0], tangents[0])
ad.primitive_transposes[tap_p] = lambda cotangent, x, *, name: [cotangent]


def tap(name: str, x: Tree) -> Tree:
    """Name a value inside a function for `capture`, `patch` and related functions.

    A tap is the identity. Outside of `capture` and `patch`, taps don't change the compiled program
    of a function or its gradient. A tap works in any JAX code (jit, grad, vmap, scan, remat,
    branches, custom derivative rules) and in the modules of any framework.

    `capture` also finds values named by `jax.ad_checkpoint.checkpoint_name`. These names survive
    differentiation and are visible to rematerialization policies, but they may cost memory. Taps
    don't survive `jax.grad(loss)`. Capture the loss itself instead.

    Args:
        name: The name of the value, which may contain slashes (`'layer_3/attention'`). If one name
            is used several times, the nodes are `name#0`, `name#1`, … in the order of the program.
        x: An array, or a tree whose leaves are named `name/path`.

    Returns:
        `x`.

    Raises:
        TypeError: If the name isn't a string.
        ValueError: If the name is empty, contains one of `*?[]#`, or begins with `scope:`.

    Example:
        >>> from fnopt.taps import capture, tap
        >>> def loss(w, x):
        ...     return jnp.sum(tap("hidden", w * x) ** 2)
        >>> _, nodes = capture(loss, "hidden", cotangents=True)(jnp.float32(2.0), jnp.ones(2))
        >>> nodes.values["hidden"].tolist(), nodes.cotangents["hidden"].tolist()
        ([2.0, 2.0], [4.0, 4.0])
    """
    _check_name(name)
    pairs, treedef = leaves_with_names(x)
    leaves = [
        tap_p.bind(jnp.asarray(leaf), name=f"{name}/{path}" if path else name)
        for path, leaf in pairs
    ]
    return jax.tree.unflatten(treedef, leaves)


def _check_name(name: Any) -> None:
    if not isinstance(name, str):
        raise TypeError(
            f"tap: the name is a {type(name).__name__}, expected a string. Write tap('hidden', x)."
        )
    if not name or name.startswith(SCOPE_PREFIX) or any(c in name for c in _RESERVED):
        raise ValueError(
            f"tap: the name is {name!r}, expected a nonempty string without the characters "
            f"{_RESERVED} and the prefix {SCOPE_PREFIX!r}, which select nodes and scopes."
        )


@jax.custom_jvp
def add_probe(x: jax.Array, probe: jax.Array) -> jax.Array:
    """Add a zero probe to `x`, whose cotangent equals the cotangent of `x`.

    The function returns `x` itself, not `x + probe`, so that the compiler removes the probe's zeros
    and the forward pass stays bitwise unchanged.
    """
    return x


@add_probe.defjvp
def _add_probe_jvp(primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[Any, Any]:
    return primals[0], tangents[0] + tangents[1]


def add_reduced_probe(reduce: Callable[[Any], Any], x: jax.Array, probe: Any) -> jax.Array:
    """Add a zero probe to `x`, whose cotangent is `reduce(cotangent of x)`.

    Reverse mode stores the reduced cotangent instead of the full cotangent.
    """

    @jax.custom_vjp
    def identity(x: jax.Array, probe: Any) -> jax.Array:
        return x

    def backward(_: None, cotangent: jax.Array) -> tuple[jax.Array, Any]:
        reduced = jax.tree.map(jnp.asarray, reduce(cotangent))
        # JAX requires that a cotangent has the dtype of its primal, here the probe.
        return cotangent, jax.tree.map(lambda x: x.astype(probe_dtype(x.dtype)), reduced)

    # `custom_vjp`, because a nonlinear reduction has no JVP rule that transposes to `backward`.
    identity.defvjp(lambda x, probe: (x, None), backward)
    return identity(x, probe)


def with_cotangent_rule(rule: Callable[[Any, Any], Any], x: jax.Array, operand: Any) -> jax.Array:
    """Return `x` and replace its cotangent by `rule(cotangent, operand)` in the backward pass."""

    @jax.custom_vjp
    def identity(x: jax.Array, operand: Any) -> jax.Array:
        return x

    def backward(operand: Any, cotangent: jax.Array) -> tuple[jax.Array, Any]:
        return rule(cotangent, operand), jax.tree.map(jnp.zeros_like, operand)

    # `operand` is an argument, because a VJP rule must not close over tracers of a scan's body.
    identity.defvjp(lambda x, operand: (x, operand), backward)
    return identity(x, operand)


def probe_dtype(dtype: Any) -> Any:
    """Dtype of a probe: the dtype of the cotangent, or float32 for integers such as counts."""
    return dtype if jnp.issubdtype(dtype, jnp.inexact) else jnp.dtype(jnp.float32)

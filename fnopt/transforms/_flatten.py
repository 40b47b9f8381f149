"""Transforms of reshaped parameters: a single vector, or real and imaginary parts."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import cast_like, translate_extra_args
from fnopt.errors import check_inexact
from fnopt.numerics import compute_dtype, is_array_like, is_inexact
from fnopt.sharding import concatenate, replicate, reshape, reshard_like
from fnopt.transforms._chain import Wrapper


class FlattenState(NamedTuple):
    """The inner state, whose params are a single vector."""

    inner_state: Any


class flatten(Wrapper):
    r"""Apply a transform to all leaves as one vector: :math:`u = \mathrm{inner}(\mathrm{vec}\, g)`.

    Elementwise methods compute the same updates in fewer, larger kernels. For methods that depend
    on leaves (norms, masks, paths), the vector is the only leaf. Every step copies the leaves into
    the vector and back. On accelerators, `flatten` is faster only for thousands of small leaves.

    Args:
        inner: The transform, a `Transformation` or any (init, update) pair.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.flatten(fnopt.sgd(1.0, momentum=0.9))
        >>> state = tx.init({"a": jnp.ones((2, 2)), "b": jnp.ones(3)})
        >>> fnopt.slots(state)["trace"].shape
        (7,)
    """

    def init(self, params: Any) -> FlattenState:
        """Initialize the inner transform for the vector."""
        return FlattenState(self.inner.init(_vector(params)))

    def update(
        self, updates: Any, state: FlattenState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, FlattenState]:
        """Take the inner step for the vector, and split its updates into leaves."""
        vector = None
        if params is not None:
            vector = _vector(params)
            outward = lambda v: cast_like(_split_vector(v, params), params)  # noqa: E731
            extra_args = translate_extra_args(extra_args, _vector, outward)
        new_vector, inner_state = self.inner.update(
            _vector(updates), state.inner_state, vector, **extra_args
        )
        return _split_vector(new_vector, updates), FlattenState(inner_state)


def _vector(tree: Any) -> jax.Array:
    check_inexact(tree, "params")
    leaves = jax.tree.leaves(tree)
    dtype = compute_dtype(*map(jnp.result_type, leaves))
    if not leaves:
        return jnp.zeros((0,), dtype)
    return concatenate([reshape(jnp.asarray(x), jnp.size(x)).astype(dtype) for x in leaves])


def _split_vector(vector: jax.Array, like: Any) -> Any:
    leaves, treedef = jax.tree.flatten(like)
    vector, parts, start = replicate(vector), [], 0
    for leaf in leaves:
        size = jnp.size(leaf)
        part = vector[start : start + size].reshape(jnp.shape(leaf))
        # If one leaf is complex, the vector is complex, so the parts of real leaves are converted.
        is_real = is_inexact(leaf) and not jnp.iscomplexobj(leaf)
        parts.append(reshard_like(jnp.real(part) if is_real else part, leaf))
        start += size
    return treedef.unflatten(parts)


class SplitRealAndImaginaryState(NamedTuple):
    """The inner state, in which a complex leaf is a pair of real leaves."""

    inner_state: Any


class RealAndImaginary(NamedTuple):
    """The real and imaginary parts of a complex array."""

    real: Any
    imaginary: Any


class split_real_and_imaginary(Wrapper):
    r"""Apply a transform separately to the real and imaginary parts of complex leaves.

    .. math:: u = \mathrm{inner}(\mathrm{Re}\, g) + i\, \mathrm{inner}(\mathrm{Im}\, g)

    Without this wrapper, adaptive methods divide both parts by the root of the mean squared
    modulus. An update then keeps the gradient's direction in the complex plane.

    Args:
        inner: The transform, a `Transformation` or any (init, update) pair.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.split_real_and_imaginary(fnopt.scale_by_sign())
        >>> g = {"w": jnp.asarray([3.0 - 4.0j])}
        >>> tx.update(g, tx.init(g))[0]
        {'w': Array([1.-1.j], dtype=complex64)}
    """

    def init(self, params: Any) -> SplitRealAndImaginaryState:
        """Initialize the inner transform for the parts."""
        return SplitRealAndImaginaryState(self.inner.init(_split(params)))

    def update(
        self, updates: Any, state: SplitRealAndImaginaryState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, SplitRealAndImaginaryState]:
        """Take the inner step for the parts, and join its updates into complex leaves."""
        parts, inner_state = self.inner.update(
            _split(updates),
            state.inner_state,
            _split(params),
            **translate_extra_args(extra_args, _split, _join),
        )
        return _join(parts), SplitRealAndImaginaryState(inner_state)


def _split(tree: Any) -> Any:
    def split_leaf(x: Any) -> Any:
        if not is_array_like(x) or not jnp.iscomplexobj(x):
            return x
        return RealAndImaginary(jnp.real(x), jnp.imag(x))

    return jax.tree.map(split_leaf, tree)


def _join(tree: Any) -> Any:
    def is_pair(x: Any) -> bool:
        return isinstance(x, RealAndImaginary)

    return jax.tree.map(
        lambda x: jax.lax.complex(x.real, x.imaginary) if is_pair(x) else x, tree, is_leaf=is_pair
    )

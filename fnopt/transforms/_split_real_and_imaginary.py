"""Complex params as pairs of real ones."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import is_array_like, translate_extra_args
from fnopt.transforms._wrapper import Wrapper


class SplitRealAndImaginaryState(NamedTuple):
    """The inner state, in which a complex leaf is a pair of real ones."""

    inner_state: Any


class RealAndImaginary(NamedTuple):
    """The parts of a complex array."""

    real: Any
    imaginary: Any


class split_real_and_imaginary(Wrapper):
    r"""Apply a transform to real and imaginary parts of complex leaves as separate leaves.

    .. math:: u = \mathrm{inner}(\mathrm{Re}\, g) + i\, \mathrm{inner}(\mathrm{Im}\, g)

    Without this wrapper, adaptive methods divide both parts by the root of the mean squared
    modulus, so an update keeps the direction of the gradient in the complex plane.

    Args:
        inner: The transform, fnopt's or any (init, update) pair.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.split_real_and_imaginary(fnopt.scale_by_sign())
        >>> g = {"w": jnp.asarray([3.0 - 4.0j])}
        >>> tx.update(g, tx.init(g))[0]
        {'w': Array([1.-1.j], dtype=complex64)}
    """

    def init(self, params: Any) -> SplitRealAndImaginaryState:
        """The inner state for the parts."""
        return SplitRealAndImaginaryState(self.inner.init(_split(params)))

    def update(
        self, updates: Any, state: SplitRealAndImaginaryState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, SplitRealAndImaginaryState]:
        """The inner updates of the parts, put together."""
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

    def join_leaf(x: Any) -> Any:
        return jax.lax.complex(x.real, x.imaginary) if is_pair(x) else x

    return jax.tree.map(join_leaf, tree, is_leaf=is_pair)

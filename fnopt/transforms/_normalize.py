"""Normalization of updates: by their global norm, their mean, and the norms of parameters."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fnopt.core import (
    EmptyState,
    Leafwise,
    Scalar,
    Transformation,
    add_epsilon,
    global_norm,
    hyper,
    map_leaves,
    nonzero,
    range_divisor,
)
from fnopt.sharding import sharded_full_like


def divide_by_norm(x: jax.Array, length: jax.Array) -> jax.Array:
    """`x / length` for any length; `x` where that is zero.

    In two divisions: a float32 length beyond 2^126 has a reciprocal that is subnormal, and zero.
    """
    unit = range_divisor(length)
    rest = length / unit
    return x / unit / lax.select(rest > 0, rest, sharded_full_like(rest, 1))


class normalize_by_update_norm(Transformation):
    r"""Divide all updates by their joint norm.

    .. math:: u = \frac{c}{\lVert g \rVert_2 + \epsilon}\, g

    Zero updates stay zero, without an epsilon too.

    Args:
        scale_factor: :math:`c`, the length of the result.
        eps: :math:`\epsilon`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, g = fnopt.normalize_by_update_norm(eps=0.0), {"w": jnp.asarray([3.0, 4.0])}
        >>> tx.update(g, tx.init(g))[0]["w"].round(3)
        Array([0.6, 0.8], dtype=float32)
    """

    scale_factor: Scalar = hyper(default=1.0)
    eps: Scalar = hyper(default=1e-6, ge=0)

    def update(
        self, updates: Any, state: EmptyState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, EmptyState]:
        """The updates times one factor."""
        norm = global_norm(updates)
        length = add_epsilon(norm, jnp.asarray(self.eps, norm.dtype))
        scale_factor = jnp.asarray(self.scale_factor, norm.dtype)

        def scale_leaf(h: Any, g: Any) -> Any:
            # The quotient first: the factor alone overflows for gradients of 1e-40.
            return divide_by_norm(g, h["length"]) * h["factor"]

        numbers = {"length": length, "factor": scale_factor}
        return map_leaves(scale_leaf, updates, hyper=numbers), state


class scale_by_trust_ratio(Leafwise):
    r"""Scale every leaf by the ratio of parameter norm and update norm.

    .. math:: u = c\, \frac{\max(\lVert \theta \rVert, n)}{\max(\lVert g \rVert, n) + \epsilon}\, g

    A leaf whose params or update are zero passes unchanged.

    Args:
        min_norm: :math:`n`, below which both norms are not taken to be.
        trust_coefficient: :math:`c`.
        eps: :math:`\epsilon`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, params = fnopt.scale_by_trust_ratio(), {"w": jnp.asarray([6.0, 8.0])}
        >>> tx.update({"w": jnp.asarray([0.0, 2.0])}, tx.init(params), params)[0]
        {'w': Array([ 0., 10.], dtype=float32)}

    Reference:
        You, Gitman and Ginsburg, 2017, arXiv:1708.03888.
    """

    needs_params = True

    min_norm: Scalar = hyper(default=0.0, ge=0)
    trust_coefficient: Scalar = hyper(default=1.0, ge=0)
    eps: Scalar = hyper(default=0.0, ge=0)

    def leaf(self, h: Any, g: Any, p: Any) -> Any:
        of_params = jnp.maximum(global_norm(p), h.min_norm)
        of_update = jnp.maximum(global_norm(g), h.min_norm)
        ratio = h.trust_coefficient * of_params / (nonzero(of_update) + h.eps)
        # A layer of zeros would stay at zero for ever: it gets the update as it is.
        frozen = (of_params == 0) | (of_update == 0)
        return jnp.where(frozen, jnp.ones_like(ratio), ratio) * g


class centralize(Leafwise):
    r"""Subtract from every matrix its mean over all axes but the last.

    .. math:: u_{\cdot j} = g_{\cdot j} - \frac{1}{m} \sum_i g_{ij}

    Vectors and scalars pass unchanged. The last axis is that of the outputs, as in the kernels of
    flax and Keras.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, g = fnopt.centralize(), {"w": jnp.asarray([[1.0, 4.0], [3.0, 4.0]])}
        >>> print(tx.update(g, tx.init(g))[0]["w"])
        [[-1.  0.]
         [ 1.  0.]]

    Reference:
        Yong, Huang, Hua and Zhang, 2020, arXiv:2004.01461.
    """

    def leaf(self, h: Any, g: Any) -> Any:
        if g.ndim < 2:
            return g
        return g - jnp.mean(g, axis=tuple(range(g.ndim - 1)), keepdims=True)

"""Gradient centralization."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from fnopt.core import Leafwise


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

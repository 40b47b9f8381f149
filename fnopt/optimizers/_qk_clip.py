"""QK-Clip: bounds on attention logits by rescaling the query and key kernels of each head."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import Scalar, Transformation, hyper, static
from fnopt.errors import leaves_with_names, where
from fnopt.numerics import compute_dtype


class qk_clip(Transformation):
    r"""Rescale the query and key kernels of each head after a step, to bound attention logits.

    .. math:: \theta_{t+1} = \min\left(1, \frac{\tau}{S_h}\right)^{\alpha} (\theta_t + u_t), \qquad
              \alpha = \tfrac12 \text{ for queries and for keys}

    with the largest logit :math:`S_h` of head `h` in the batch. Put `qk_clip` last in a chain,
    after the learning rate. `update` needs `max_logits`, a dict from the paths of the kernels to
    the largest logits of their heads, `[heads]`. Pass the same array for a query and its key.

    Args:
        tau: :math:`\tau`, the largest logit allowed.
        alpha: :math:`\alpha`, the exponent of a kernel's factor.
        head_axis: The axis of the heads in the kernels.

    Raises:
        ValueError: In use, if a path isn't the path of a leaf, or if the number of maxima isn't the
            number of heads.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, params = fnopt.qk_clip(tau=4.0, head_axis=1), {"q": jnp.ones((2, 2, 3))}
        >>> zero, maxima = {"q": jnp.zeros((2, 2, 3))}, {"q": jnp.asarray([2.0, 16.0])}
        >>> updates, _ = tx.update(zero, tx.init(params), params, max_logits=maxima)
        >>> fnopt.apply_updates(params, updates)["q"][0, :, 0]
        Array([1. , 0.5], dtype=float32)

    Reference:
        Kimi Team, 2025, Kimi K2, arXiv:2507.20534.
    """

    needs_params = True

    tau: Scalar = hyper(default=100.0, gt=0)
    alpha: Scalar = hyper(default=0.5, ge=0)
    head_axis: int = static(default=-2)

    def update(
        self, updates: Any, state: Any, params: Any = None, *, max_logits: Any, **extra_args: Any
    ) -> tuple[Any, Any]:
        """Return updates that also scale down the kernels of heads with large logits."""
        pairs, treedef = leaves_with_names(updates)
        unknown = sorted(max_logits.keys() - {name for name, _ in pairs})
        if unknown:
            raise ValueError(
                f"{where()}max_logits has the path {unknown[0]!r}, expected paths of params: "
                f"{', '.join(repr(name) for name, _ in pairs)}."
            )
        leaves = treedef.flatten_up_to(params)
        new = [
            self._clip_leaf(name, u, p, jnp.asarray(max_logits[name])) if name in max_logits else u
            for (name, u), p in zip(pairs, leaves, strict=True)
        ]
        return treedef.unflatten(new), state

    def _clip_leaf(self, name: str, u: Any, p: Any, maxima: jax.Array) -> jax.Array:
        axis = self.head_axis % max(u.ndim, 1)
        if not -u.ndim <= self.head_axis < u.ndim or maxima.shape != u.shape[axis : axis + 1]:
            raise ValueError(
                f"{where()}max_logits[{name!r}] has shape {maxima.shape}, and the leaf has shape "
                f"{u.shape}, expected one maximum for each entry of axis {self.head_axis}. "
                "Pass the head_axis of the kernels to qk_clip."
            )
        dtype = compute_dtype(u.dtype, p.dtype)
        maxima, tau, alpha = (jnp.asarray(x).astype(dtype) for x in (maxima, self.tau, self.alpha))
        # The factor is exactly 1 for heads whose logits are below tau.
        factor = (tau / jnp.maximum(maxima, tau)) ** alpha
        p = p.astype(dtype)
        return (p + u.astype(dtype)) * jnp.expand_dims(factor, range(1, u.ndim - axis)) - p

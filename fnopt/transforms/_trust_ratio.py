"""Layer-wise trust ratio."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from fnopt.core import Leafwise, Scalar, global_norm, hyper, nonzero


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

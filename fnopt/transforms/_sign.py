"""The sign of updates."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from fnopt.core import Leafwise


class scale_by_sign(Leafwise):
    r"""Keep the sign only: :math:`u = \operatorname{sign} g` (:math:`g / |g|` if complex).

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.scale_by_sign()
        >>> tx.update({"w": jnp.asarray([3.0, -2.0])}, tx.init({"w": jnp.ones(2)}))[0]
        {'w': Array([ 1., -1.], dtype=float32)}
    """

    def leaf(self, h: Any, g: Any) -> Any:
        return jnp.sign(g)

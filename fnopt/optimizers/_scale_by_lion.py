"""Lion's direction: the sign of a momentum."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp

from fnopt.core import Scalar, Slot, Transformation, hyper, map_leaves, slot_zeros, static
from fnopt.transforms import as_dtype, ema


class ScaleByLionState(NamedTuple):
    """The average of the gradient."""

    mu: Slot


class scale_by_lion(Transformation):
    r"""The sign of a mean gradient, which is averaged once for the step and once for memory.

    .. math:: u_t = \operatorname{sign}(\beta_1 \mu_{t-1} + (1-\beta_1)\, g_t), \qquad
              \mu_t = \beta_2 \mu_{t-1} + (1-\beta_2)\, g_t

    Args:
        b1: :math:`\beta_1`, how much of the step comes from the past.
        b2: :math:`\beta_2`, decay of the mean; not 0, because the step is computed from the new
            mean.
        mu_dtype: Storage dtype of `mu`; by default the params' own, but at least float32.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.scale_by_lion()
        >>> tx.update({"w": jnp.asarray([3.0, -0.1])}, tx.init({"w": jnp.ones(2)}))[0]
        {'w': Array([ 1., -1.], dtype=float32)}

    Reference:
        Chen et al., 2023, arXiv:2302.06675.
    """

    b1: Scalar = hyper(default=0.9, ge=0, lt=1)
    b2: Scalar = hyper(default=0.99, gt=0, lt=1)
    mu_dtype: Any = static(default=None, convert=as_dtype)

    def init(self, params: Any) -> ScaleByLionState:
        """A zero mean."""
        return ScaleByLionState(slot_zeros(params, self.mu_dtype))

    def update(
        self, updates: Any, state: ScaleByLionState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, ScaleByLionState]:
        """The sign, and one step of the mean."""

        def leaf(h: Any, g: Any, mu: Any) -> Any:
            # The same sum from the new mean, so that the old one can be overwritten before the
            # direction is used; else XLA would keep a copy of it, of the params' size.
            mu = ema(mu, g, h.b2)
            c = h.b1 / h.b2
            return jnp.sign(c * mu + (1 - c) * g), mu

        updates, mu = map_leaves(leaf, updates, hyper=self, outputs=2, mu=state.mu)
        return updates, ScaleByLionState(mu)

"""Adagrad's direction."""

from __future__ import annotations

from typing import Any, NamedTuple

from fnopt.core import Scalar, Slot, Transformation, hyper, map_leaves, slot_zeros
from fnopt.transforms import nonzero, root, squared


class ScaleByRssState(NamedTuple):
    """The sum of the squared gradients."""

    sum_of_squares: Slot


class scale_by_rss(Transformation):
    r"""Divides the gradient by the root of the sum of all squared gradients so far.

    .. math:: G_t = G_{t-1} + |g_t|^2, \qquad u_t = \frac{g_t}{\sqrt{G_t + \epsilon}}

    Args:
        initial_accumulator_value: :math:`G_0`.
        eps: :math:`\epsilon`. With this and :math:`G_0` zero, an element that never saw a
            gradient gets a zero update.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.scale_by_rss(initial_accumulator_value=9.0)
        >>> tx.update({"w": jnp.full(2, 4.0)}, tx.init({"w": jnp.ones(2)}))[0]
        {'w': Array([0.8, 0.8], dtype=float32)}

    Reference:
        Duchi, Hazan and Singer, 2011, Adaptive subgradient methods.
    """

    initial_accumulator_value: Scalar = hyper(default=0.1, ge=0)
    eps: Scalar = hyper(default=1e-7, ge=0)

    def init(self, params: Any) -> ScaleByRssState:
        """A sum that starts at `initial_accumulator_value`."""
        fill = self.initial_accumulator_value
        return ScaleByRssState(slot_zeros(params, fill=fill, real=True))

    def update(
        self, updates: Any, state: ScaleByRssState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, ScaleByRssState]:
        """Adds a squared gradient, and divides."""

        def leaf(h: Any, g: Any, total: Any) -> Any:
            total = total + squared(g)
            return g / nonzero(root(total + h.eps)), total

        slots = {"sum_of_squares": state.sum_of_squares}
        updates, total = map_leaves(leaf, updates, hyper=self, outputs=2, **slots)
        return updates, ScaleByRssState(total)

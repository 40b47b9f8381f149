"""Weight decay towards the initial parameters (L2-SP)."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax

from fnopt.core import Leafwise, ScalarOrSchedule, Slot, hyper


class DecayToAnchorState(NamedTuple):
    """The number of updates made (None for a constant pull), and the params of `init`."""

    count: jax.Array | None
    anchor: Slot


class decay_to_anchor(Leafwise):
    r"""Add L2 regularisation towards the initial parameters (L2-SP).

    .. math:: u_t = g_t + \lambda_t\, (\theta_t - \theta_0)

    For fine-tuning: what was learned before is what weights decay to. In front of an optimizer it
    is the gradient of :math:`\frac{\lambda}{2} \lVert \theta - \theta_0 \rVert^2`, as in the
    paper; between a direction and `scale_by_learning_rate` it is decoupled. New layers get plain
    decay: `chain(masked(decay_to_anchor(a), 'body/*'), add_decayed_weights(b, 'head/*'), ...)`.

    Args:
        strength: :math:`\lambda`, a number or a `Schedule`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, params = fnopt.decay_to_anchor(0.5), {"w": jnp.ones(2)}
        >>> state = tx.init(params)
        >>> tx.update({"w": jnp.zeros(2)}, state, {"w": jnp.full(2, 3.0)})[0]
        {'w': Array([1., 1.], dtype=float32)}

    Reference:
        Li, Grandvalet and Davoine, 2018, arXiv:1802.01483.
    """

    State = DecayToAnchorState
    needs_params = True
    reads_step = False

    strength: ScalarOrSchedule = hyper(ge=0, schedule=True)

    def fill(self, slot: str) -> Any:
        """The params."""
        return "params"

    def leaf(self, h: Any, g: Any, p: Any, anchor: Any) -> Any:
        return g + h.strength * (p - anchor), anchor

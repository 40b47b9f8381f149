"""Fromage: layer-wise steps proportional to the norm of the parameters."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
from jax import lax

from fnopt.core import Leafwise, Scalar, ScalarOrSchedule, hyper
from fnopt.optimizers._recipe import recipe
from fnopt.transforms import Chain, chain, scale_by_trust_ratio


class ScaleByFromageState(NamedTuple):
    """The number of updates made; None for a constant rate."""

    count: jax.Array | None


class scale_by_fromage(Leafwise):
    r"""A step of size :math:`\eta`, after which the params are shrunk by its length.

    .. math:: u_t = c\,(\theta_t - \eta_t\, g_t) - \theta_t, \qquad
              c = \frac{1}{\sqrt{1 + \eta_t^2}}

    The minus sign of descent is in it.

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, params = fnopt.scale_by_fromage(0.75), {"w": jnp.asarray([1.0])}
        >>> updates, _ = tx.update({"w": jnp.asarray([1.0])}, tx.init(params), params)
        >>> print(f"{updates['w'][0]:.4f}")
        -0.8000

    Reference:
        Bernstein, Vahdat, Yue and Liu, 2020, arXiv:2002.03432.
    """

    State = ScaleByFromageState
    needs_params = True
    reads_step = False

    learning_rate: ScalarOrSchedule = hyper(ge=0, schedule=True)

    def scalars(self, h: Any, t: Any) -> dict[str, Any]:
        """The factors of the gradient and of the params."""
        del t
        shrink = lax.rsqrt(1 + h.learning_rate**2)
        step = -h.learning_rate * shrink
        # shrink - 1 = -step^2 / (1 + shrink): the difference would have no digits for small rates.
        return {"step": step, "decay": -(step**2) / (1 + shrink)}

    def leaf(self, h: Any, g: Any, p: Any) -> Any:
        return h.step * g + h.decay * p


@recipe
def fromage(learning_rate: ScalarOrSchedule, min_norm: Scalar = 1e-6) -> Chain:
    r"""Fromage: the relative size of every layer's step is the learning rate.

    .. math:: u_t = c \left(\theta_t - \eta_t
              \frac{\lVert \theta_t \rVert}{\lVert g_t \rVert}\, g_t\right) - \theta_t, \qquad
              c = \frac{1}{\sqrt{1 + \eta_t^2}}

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        min_norm: What both norms are at least.

    Returns:
        A chain of `scale_by_trust_ratio` and `scale_by_fromage`; it has no slots.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, params = fnopt.fromage(0.75), {"w": jnp.asarray([3.0, 4.0])}
        >>> updates, _ = tx.update({"w": jnp.asarray([0.0, 2.0])}, tx.init(params), params)
        >>> print(*(f"{x:.4f}" for x in fnopt.apply_updates(params, updates)["w"]))
        2.4000 0.2000

    Reference:
        Bernstein, Vahdat, Yue and Liu, 2020, arXiv:2002.03432.
    """
    return chain(scale_by_trust_ratio(min_norm), scale_by_fromage(learning_rate))

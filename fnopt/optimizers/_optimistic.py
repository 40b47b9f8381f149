"""Optimistic methods: the next gradient, extrapolated from the last two."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import Leafwise, Scalar, ScalarOrSchedule, Slot, hyper
from fnopt.optimizers._adam import scale_by_adam
from fnopt.optimizers._recipe import recipe, write_after
from fnopt.transforms import Chain, chain, scale_by_learning_rate


class ScaleByOptimisticGradientState(NamedTuple):
    """Step count, and the last gradient."""

    count: jax.Array
    previous_gradient: Slot


class scale_by_optimistic_gradient(Leafwise):
    r"""Extrapolate the gradient by its change.

    .. math:: u_t = (\alpha + \beta)\, g_t - \beta\, g_{t-1}, \qquad g_0 = g_1

    Args:
        alpha: :math:`\alpha`, the weight of the gradient; a number or a `Schedule`.
        beta: :math:`\beta`, the weight of the gradient's change; a number or a `Schedule`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.scale_by_optimistic_gradient()
        >>> _, state = tx.update({"w": jnp.ones(2)}, tx.init({"w": jnp.ones(2)}))
        >>> tx.update({"w": jnp.full(2, 3.0)}, state)[0]
        {'w': Array([5., 5.], dtype=float32)}

    Reference:
        Mokhtari, Ozdaglar and Pattathil, 2019, arXiv:1901.08511.
    """

    State = ScaleByOptimisticGradientState

    alpha: ScalarOrSchedule = hyper(default=1.0, ge=0, schedule=True)
    beta: ScalarOrSchedule = hyper(default=1.0, ge=0, schedule=True)

    def scalars(self, h: Any, t: Any) -> dict[str, Any]:
        """The weight of the change; zero at the first step, which knows of none."""
        return {"change": jnp.where(t > 1, h.beta, jnp.zeros_like(h.beta))}

    def leaf(self, h: Any, g: Any, previous: Any) -> Any:
        u = h.alpha * g + h.change * (g - previous)
        # The old gradient is read by u: after it, XLA can overwrite the slot in place.
        return u, write_after(g, u)


@recipe
def optimistic_gradient_descent(
    learning_rate: ScalarOrSchedule,
    alpha: ScalarOrSchedule = 1.0,
    beta: ScalarOrSchedule = 1.0,
) -> Chain:
    r"""Gradient descent for games (minimax problems), along an extrapolated gradient.

    .. math:: u_t = -\eta_t\, \big((\alpha + \beta)\, g_t - \beta\, g_{t-1}\big)

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        alpha: :math:`\alpha`, the weight of the gradient; a number or a `Schedule`.
        beta: :math:`\beta`, the weight of the gradient's change; a number or a `Schedule`.

    Returns:
        A chain of `scale_by_optimistic_gradient` and `scale_by_learning_rate`, with the slot
        `previous_gradient`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.optimistic_gradient_descent(0.25)
        >>> params = {"w": jnp.ones(2)}
        >>> updates, state = tx.update({"w": jnp.ones(2)}, tx.init(params), params)
        >>> fnopt.apply_updates(params, updates)
        {'w': Array([0.75, 0.75], dtype=float32)}

    Reference:
        Mokhtari, Ozdaglar and Pattathil, 2019, arXiv:1901.08511.
    """
    return chain(scale_by_optimistic_gradient(alpha, beta), scale_by_learning_rate(learning_rate))


@recipe
def optimistic_adam_v2(
    learning_rate: ScalarOrSchedule,
    *,
    alpha: ScalarOrSchedule = 1.0,
    beta: ScalarOrSchedule = 1.0,
    b1: Scalar = 0.9,
    b2: Scalar = 0.999,
    eps: Scalar = 1e-8,
    eps_root: Scalar = 0.0,
    mu_dtype: Any = None,
    nesterov: bool = True,
) -> Chain:
    r"""Optimistic Adam for games (minimax problems): step along Adam's extrapolated direction.

    .. math:: u_t = -\eta_t\, \big((\alpha + \beta)\, d_t - \beta\, d_{t-1}\big), \qquad
              d_t = \frac{\hat\mu_t}{\sqrt{\hat\nu_t + \bar\epsilon} + \epsilon}

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        alpha: :math:`\alpha`, the weight of the direction; a number or a `Schedule`.
        beta: :math:`\beta`, the weight of the direction's change; a number or a `Schedule`.
        b1: Decay of the mean gradient.
        b2: Decay of the mean square.
        eps: Added to the root.
        eps_root: Added under the root.
        mu_dtype: Storage dtype of the mean; by default the params' own, but at least float32.
        nesterov: Whether to look ahead (Nadam).

    Returns:
        A chain of `scale_by_adam`, `scale_by_optimistic_gradient` and `scale_by_learning_rate`,
        with the slots `mu`, `nu` and `previous_gradient` (the last direction).

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.optimistic_adam_v2(0.25, nesterov=False)
        >>> params = {"w": jnp.ones(2)}
        >>> updates, state = tx.update({"w": jnp.ones(2)}, tx.init(params), params)
        >>> fnopt.apply_updates(params, updates)["w"].round(4)
        Array([0.75, 0.75], dtype=float32)

    Reference:
        Daskalakis, Ilyas, Syrgkanis and Zeng, 2018, arXiv:1711.00141.
    """
    return chain(
        scale_by_adam(b1, b2, eps, eps_root, mu_dtype, nesterov),
        scale_by_optimistic_gradient(alpha, beta),
        scale_by_learning_rate(learning_rate),
    )


@recipe
def optimistic_adam(
    learning_rate: ScalarOrSchedule,
    optimism: ScalarOrSchedule | None = None,
    b1: Scalar = 0.9,
    b2: Scalar = 0.999,
    eps: Scalar = 1e-8,
    eps_root: Scalar = 0.0,
    mu_dtype: Any = None,
    *,
    nesterov: bool = True,
) -> Chain:
    r"""Optimistic Adam for games (minimax problems), with a separate rate of optimism.

    .. math:: u_t = -\big((\eta_t + \omega_t)\, d_t - \omega_t\, d_{t-1}\big), \qquad
              d_t = \frac{\hat\mu_t}{\sqrt{\hat\nu_t + \bar\epsilon} + \epsilon}

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        optimism: :math:`\omega`, a number or a `Schedule`; None for the learning rate.
        b1: Decay of the mean gradient.
        b2: Decay of the mean square.
        eps: Added to the root.
        eps_root: Added under the root.
        mu_dtype: Storage dtype of the mean; by default the params' own, but at least float32.
        nesterov: Whether to look ahead (Nadam).

    Returns:
        A chain of `scale_by_adam`, `scale_by_optimistic_gradient` and `scale_by_learning_rate`,
        with the slots `mu`, `nu` and `previous_gradient` (the last direction).

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.optimistic_adam(0.25, nesterov=False)
        >>> params = {"w": jnp.ones(2)}
        >>> updates, state = tx.update({"w": jnp.ones(2)}, tx.init(params), params)
        >>> fnopt.apply_updates(params, updates)["w"].round(4)
        Array([0.75, 0.75], dtype=float32)

    Reference:
        Daskalakis, Ilyas, Syrgkanis and Zeng, 2018, arXiv:1711.00141.
    """
    change = learning_rate if optimism is None else optimism
    return optimistic_adam_v2(
        1.0,
        alpha=learning_rate,
        beta=change,
        b1=b1,
        b2=b2,
        eps=eps,
        eps_root=eps_root,
        mu_dtype=mu_dtype,
        nesterov=nesterov,
    )

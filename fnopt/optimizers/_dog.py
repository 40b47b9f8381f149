"""DoG and DoWG: step sizes from the distance to the initial parameters."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import (
    Scalar,
    ScalarOrSchedule,
    Slot,
    Transformation,
    global_norm,
    hyper,
    map_leaves,
    slot_copy,
    static,
)
from fnopt.errors import where
from fnopt.numerics import joint_norm, nonzero, safe_increment, safe_sqrt, zero_count
from fnopt.optimizers._recipe import recipe
from fnopt.transforms import (
    Chain,
    add_decayed_weights,
    chain,
    numbers,
    real_dtype_of,
    scale_by_learning_rate,
)

_KINDS = ("distance", "learning_rate", "heuristic")


def _init_step(init_step: Any) -> tuple[str, float]:
    pair = tuple(init_step) if isinstance(init_step, (tuple, list)) else ()
    if len(pair) != 2 or pair[0] not in _KINDS:
        raise ValueError(
            f"{where()}scale_by_dog: init_step = {init_step!r}, expected a pair (kind, number) "
            f"with a kind of {_KINDS}."
        )
    return pair[0], float(pair[1])


class ScaleByDogState(NamedTuple):
    r"""State of `scale_by_dog`.

    Attributes:
        count: :math:`t`, the number of steps.
        init_params: :math:`\theta_0`, the initial parameters.
        max_dist: :math:`\max_i \lVert \theta_i - \theta_0 \rVert`, the largest distance.
        norm_grads: :math:`(\sum_i \lVert g_i \rVert^2)^{1/2}`, the joint norm of all gradients.
    """

    count: jax.Array
    init_params: Slot
    max_dist: jax.Array
    norm_grads: jax.Array


class ScaleByDowgState(NamedTuple):
    r"""State of `scale_by_dowg`.

    Attributes:
        init_params: :math:`\theta_0`, the initial parameters.
        weighted_norm_grads: :math:`(\sum_i r_i^2 \lVert g_i \rVert^2)^{1/2}`.
        estim_sq_dist: :math:`r_t^2`, the largest squared distance from :math:`\theta_0`.
    """

    init_params: Slot
    weighted_norm_grads: jax.Array
    estim_sq_dist: jax.Array


class scale_by_dog(Transformation):
    r"""Scale by the distance from the initial parameters over the joint norm of all gradients.

    .. math:: u_t = \frac{\max_{i \le t} \lVert \theta_i - \theta_0 \rVert}
              {\sqrt{\sum_{i \le t} \lVert g_i \rVert^2 + \epsilon}}\, g_t

    Args:
        init_step: A lower bound of the distance, as `('distance', r)`, or as `('heuristic', r)` for
            :math:`r\,(1 + \lVert \theta_0 \rVert)`. `('learning_rate', eta)` sets the factor of the
            first gradient instead.
        eps: :math:`\epsilon`, added inside the square root.

    Raises:
        ValueError: If `init_step` isn't such a pair.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, params = fnopt.scale_by_dog(("distance", 0.5)), {"w": jnp.ones(2)}
        >>> updates, _ = tx.update({"w": jnp.asarray([3.0, 4.0])}, tx.init(params), params)
        >>> updates["w"].round(3)
        Array([0.3, 0.4], dtype=float32)

    Reference:
        Ivgi, Hinder and Carmon, 2023, arXiv:2302.12022.
    """

    needs_params = True

    init_step: Any = static(convert=_init_step)
    eps: Scalar = hyper(default=1e-8, ge=0)

    def init(self, params: Any) -> ScaleByDogState:
        """Return the state with the initial parameters and the initial distance."""
        zero = jnp.zeros((), real_dtype_of(params))
        kind, value = self.init_step
        distance = jnp.array(0.0 if kind == "learning_rate" else value, zero.dtype)
        # Ivgi et al. (2023), section 3, recommend 1e-6 (1 + |theta_0|).
        if kind == "heuristic":
            distance = distance * (1 + global_norm(params).astype(distance.dtype))
        return ScaleByDogState(zero_count(), slot_copy(params), distance, zero)

    def update(
        self, updates: Any, state: ScaleByDogState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, ScaleByDogState]:
        """Multiply all leaves by the same factor."""
        distance = jnp.maximum(state.max_dist, _distance(state.init_params, params))
        norm = global_norm(updates).astype(distance.dtype)
        norm = joint_norm([state.norm_grads, norm])  # a norm, because the square may overflow
        # sqrt(G + eps) as the joint norm of sqrt(G) and sqrt(eps), because G may overflow.
        eps = safe_sqrt(jnp.asarray(self.eps, norm.dtype))
        factor = distance / nonzero(joint_norm([norm, eps]))
        kind, value = self.init_step
        if kind == "learning_rate":
            factor = jnp.where(state.count == 0, jnp.full_like(factor, value), factor)
        state = ScaleByDogState(safe_increment(state.count), state.init_params, distance, norm)
        return map_leaves(lambda h, g: h * g, updates, hyper=factor), state


class scale_by_dowg(Transformation):
    r"""Scale by the squared distance from the initial parameters over a weighted gradient norm.

    .. math:: u_t = \frac{r_t^2}{\sqrt{\sum_{i \le t} r_i^2 \lVert g_i \rVert^2} + \epsilon}\,
              g_t, \qquad r_t^2 = \max_{i \le t} \lVert \theta_i - \theta_0 \rVert^2

    Args:
        init_estim_sq_dist: :math:`r_0^2`, a lower bound of :math:`r_t^2`; None uses `eps`.
        eps: :math:`\epsilon`, added outside the square root.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, params = fnopt.scale_by_dowg(1.0), {"w": jnp.ones(2)}
        >>> updates, _ = tx.update({"w": jnp.asarray([3.0, 4.0])}, tx.init(params), params)
        >>> updates["w"].round(3)
        Array([0.6, 0.8], dtype=float32)

    Reference:
        Khaled, Mishchenko and Jin, 2023, arXiv:2305.16284.
    """

    needs_params = True

    init_estim_sq_dist: Scalar | None = hyper(default=None, ge=0)
    eps: Scalar = hyper(default=1e-4, ge=0)

    def init(self, params: Any) -> ScaleByDowgState:
        """Return the state with the initial parameters and the initial distance."""
        dtype = real_dtype_of(params)
        sq_dist = self.eps if self.init_estim_sq_dist is None else self.init_estim_sq_dist
        return ScaleByDowgState(slot_copy(params), jnp.zeros((), dtype), jnp.array(sq_dist, dtype))

    def update(
        self, updates: Any, state: ScaleByDowgState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, ScaleByDowgState]:
        """Multiply all leaves by the same factor."""
        h = numbers(self, state.estim_sq_dist.dtype)
        distance = _distance(state.init_params, params).astype(state.estim_sq_dist.dtype)
        sq_dist = jnp.maximum(state.estim_sq_dist, distance * distance)
        norm = global_norm(updates).astype(sq_dist.dtype)
        # The state contains the norm, because its square may overflow.
        norm = joint_norm([state.weighted_norm_grads, safe_sqrt(sq_dist) * norm])
        factor = sq_dist / nonzero(norm + h.eps)
        state = ScaleByDowgState(state.init_params, norm, sq_dist)
        return map_leaves(lambda h, g: h * g, updates, hyper=factor), state


def _distance(start: Any, params: Any) -> jax.Array:
    return global_norm(map_leaves(lambda p, p0: p - p0, params, start=start))


def _decay(weight_decay: Any, mask: Any) -> list[Any]:
    # The decay comes before the direction. It is L2 regularization, included in gradient norms.
    return [] if weight_decay is None else [add_decayed_weights(weight_decay, mask)]


@recipe
def dog(
    learning_rate: ScalarOrSchedule = 1.0,
    init_step: tuple[str, float] = ("heuristic", 1e-6),
    eps: Scalar = 1e-8,
    weight_decay: ScalarOrSchedule | None = None,
    mask: Any = None,
) -> Chain:
    r"""DoG: distance over gradients, which needs no learning rate.

    .. math:: u_t = -\eta_t\, \frac{\max_{i \le t} \lVert \theta_i - \theta_0 \rVert}
              {\sqrt{\sum_{i \le t} \lVert g_i \rVert^2 + \epsilon}}\, g_t

    The authors recommend evaluating an average of the params; see `params_mean`.

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`; the published method has 1.
        init_step: The initial distance or the first step size; see `scale_by_dog`.
        eps: :math:`\epsilon`, added inside the square root.
        weight_decay: Coefficient of L2 regularization, a number or a `Schedule`; None disables it.
        mask: The leaves with weight decay; see `add_decayed_weights`. None means all leaves.

    Returns:
        A chain of `scale_by_dog` and `scale_by_learning_rate`, with the slot `init_params`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, params = fnopt.dog(init_step=("distance", 0.5)), {"w": jnp.ones(2)}
        >>> updates, _ = tx.update({"w": jnp.asarray([3.0, 4.0])}, tx.init(params), params)
        >>> print(*(f"{x:.3f}" for x in fnopt.apply_updates(params, updates)["w"]))
        0.700 0.600

    Reference:
        Ivgi, Hinder and Carmon, 2023, arXiv:2302.12022.
    """
    members = [scale_by_dog(init_step, eps), scale_by_learning_rate(learning_rate)]
    return chain(*_decay(weight_decay, mask), *members)


@recipe
def dowg(
    learning_rate: ScalarOrSchedule = 1.0,
    init_estim_sq_dist: Scalar | None = None,
    eps: Scalar = 1e-4,
    weight_decay: ScalarOrSchedule | None = None,
    mask: Any = None,
) -> Chain:
    r"""DoWG: distance over weighted gradients, which needs no learning rate.

    .. math:: u_t = -\eta_t\, \frac{r_t^2}{\sqrt{\sum_{i \le t} r_i^2 \lVert g_i \rVert^2} +
              \epsilon}\, g_t, \qquad r_t^2 = \max_{i \le t} \lVert \theta_i - \theta_0 \rVert^2

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`; the published method has 1.
        init_estim_sq_dist: :math:`r_0^2`, a lower bound of :math:`r_t^2`; None uses `eps`.
        eps: :math:`\epsilon`, added outside the square root.
        weight_decay: Coefficient of L2 regularization, a number or a `Schedule`; None disables it.
        mask: The leaves with weight decay; see `add_decayed_weights`. None means all leaves.

    Returns:
        A chain of `scale_by_dowg` and `scale_by_learning_rate`, with the slot `init_params`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, params = fnopt.dowg(init_estim_sq_dist=1.0), {"w": jnp.ones(2)}
        >>> updates, _ = tx.update({"w": jnp.asarray([3.0, 4.0])}, tx.init(params), params)
        >>> fnopt.apply_updates(params, updates)["w"].round(3)
        Array([0.4, 0.2], dtype=float32)

    Reference:
        Khaled, Mishchenko and Jin, 2023, arXiv:2305.16284.
    """
    members = [scale_by_dowg(init_estim_sq_dist, eps), scale_by_learning_rate(learning_rate)]
    return chain(*_decay(weight_decay, mask), *members)

"""Adagrad, Adadelta and SM3."""

from __future__ import annotations

import functools
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import CustomSlot, Leafwise, RealSlot, Scalar, ScalarOrSchedule, Slot, hyper
from fnopt.numerics import compute_dtype, ema, positive_root, real_dtype, squared_modulus
from fnopt.optimizers._recipe import descend, recipe
from fnopt.transforms import Chain, add_decayed_weights, chain, scale_by_learning_rate


class ScaleByRssState(NamedTuple):
    """State of `scale_by_rss`.

    Attributes:
        sum_of_squares: :math:`G_t`, the sum of the squared gradients.
    """

    sum_of_squares: RealSlot


class scale_by_rss(Leafwise):
    r"""Divide the gradient by the root of the sum of the squared gradients of all steps.

    .. math:: G_t = G_{t-1} + |g_t|^2, \qquad u_t = \frac{g_t}{\sqrt{G_t + \epsilon}}

    Args:
        initial_accumulator_value: :math:`G_0`, the initial sum.
        eps: :math:`\epsilon`, added inside the square root. If :math:`\epsilon = G_0 = 0`, an
            element whose gradients were all zero has a zero update.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.scale_by_rss(initial_accumulator_value=9.0)
        >>> tx.update({"w": jnp.full(2, 4.0)}, tx.init({"w": jnp.ones(2)}))[0]
        {'w': Array([0.8, 0.8], dtype=float32)}

    Reference:
        Duchi, Hazan and Singer, 2011, Adaptive subgradient methods.
    """

    State = ScaleByRssState
    fill: ClassVar[Any] = {"sum_of_squares": "initial_accumulator_value"}

    # TensorFlow and optax use 0.1; the paper uses 0, with longer first steps.
    initial_accumulator_value: Scalar = hyper(default=0.1, ge=0)
    eps: Scalar = hyper(default=1e-7, ge=0)

    def leaf(self, h: Any, g: Any, total: Any) -> Any:
        # Epsilon is inside the root as in optax; Duchi et al. (2011) add it outside.
        total = total + squared_modulus(g)
        return g / positive_root(total + h.eps), total


@recipe
def adagrad(
    learning_rate: ScalarOrSchedule,
    initial_accumulator_value: Scalar = 0.1,
    eps: Scalar = 1e-7,
) -> Chain:
    r"""Adagrad: steps along the gradient over the root of the sum of all squared gradients.

    .. math:: G_t = G_{t-1} + |g_t|^2, \qquad u_t = -\eta_t\, \frac{g_t}{\sqrt{G_t + \epsilon}}

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        initial_accumulator_value: :math:`G_0`, the initial sum.
        eps: :math:`\epsilon`, added inside the square root.

    Returns:
        A chain of `scale_by_rss` and `scale_by_learning_rate`, with the slot `sum_of_squares`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.adagrad(0.5, initial_accumulator_value=9.0)
        >>> params = {"w": jnp.ones(2)}
        >>> updates, state = tx.update({"w": jnp.full(2, 4.0)}, tx.init(params), params)
        >>> fnopt.apply_updates(params, updates)
        {'w': Array([0.6, 0.6], dtype=float32)}

    Reference:
        Duchi, Hazan and Singer, 2011, Adaptive subgradient methods.
    """
    return descend(scale_by_rss(initial_accumulator_value, eps), learning_rate)


class ScaleByAdadeltaState(NamedTuple):
    """State of `scale_by_adadelta`.

    Attributes:
        e_g: :math:`E^g_t`, the moving average of the squared gradient.
        e_x: :math:`E^x_t`, the moving average of the squared update.
    """

    e_g: RealSlot
    e_x: RealSlot


class scale_by_adadelta(Leafwise):
    r"""Scale the gradient by the ratio of the root mean squares of updates and gradients.

    .. math::
        E^g_t = \rho E^g_{t-1} + (1-\rho)\, |g_t|^2, \qquad
        u_t = \sqrt{\frac{E^x_{t-1} + \epsilon}{E^g_t + \epsilon}}\; g_t, \qquad
        E^x_t = \rho E^x_{t-1} + (1-\rho)\, |u_t|^2

    Args:
        rho: :math:`\rho`, decay rate of both moving averages.
        eps: :math:`\epsilon`, added to both averages. It determines the length of the first steps.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.scale_by_adadelta(rho=0.75, eps=1.0)
        >>> tx.update({"w": jnp.zeros(2)}, tx.init({"w": jnp.ones(2)}))[0]
        {'w': Array([0., 0.], dtype=float32)}

    Reference:
        Zeiler, 2012, arXiv:1212.5701.
    """

    State = ScaleByAdadeltaState

    rho: Scalar = hyper(default=0.9, ge=0, lt=1)
    eps: Scalar = hyper(default=1e-6, ge=0)

    def leaf(self, h: Any, g: Any, e_g: Any, e_x: Any) -> Any:
        square = squared_modulus(g)
        e_g = ema(e_g, square, h.rho)
        # A quotient of roots, because the quotient of the averages may overflow.
        step = positive_root(e_x + h.eps) / positive_root(e_g + h.eps) * g
        e_x = ema(e_x, squared_modulus(step), h.rho)
        # Recompute the step from the new average E', so that XLA can overwrite the old average E in
        # place: E' + rho eps = (E + eps) (rho + (1 - rho) |g|^2 / (E^g + eps)).
        divisor = positive_root(h.rho * (e_g + h.eps) + (1 - h.rho) * square)
        return positive_root(e_x + h.rho * h.eps) / divisor * g, e_g, e_x


@recipe
def adadelta(
    learning_rate: ScalarOrSchedule = 1.0,
    rho: Scalar = 0.9,
    eps: Scalar = 1e-6,
    weight_decay: ScalarOrSchedule = 0.0,
    weight_decay_mask: Any = None,
) -> Chain:
    r"""Adadelta: steps scaled by the ratio of the root mean squares of updates and gradients.

    .. math:: u_t = -\eta_t \sqrt{\frac{E^x_{t-1} + \epsilon}{E^g_t + \epsilon}}\; g_t

    where :math:`E^g` and :math:`E^x` are moving averages of squared gradients and squared updates;
    see `scale_by_adadelta`.

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        rho: :math:`\rho`, decay rate of both moving averages.
        eps: :math:`\epsilon`, added to both averages.
        weight_decay: Coefficient of L2 regularization, a number or a `Schedule`.
        weight_decay_mask: The leaves with weight decay; see `add_decayed_weights`. None means all
            leaves.

    Returns:
        A chain of `add_decayed_weights`, `scale_by_adadelta` and `scale_by_learning_rate`, with
        the slots `e_g` and `e_x`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.adadelta(rho=0.75, eps=1e-4)
        >>> params = {"w": jnp.ones(2)}
        >>> updates, state = tx.update({"w": jnp.full(2, 8.0)}, tx.init(params), params)
        >>> print(f"{updates['w'][0]:.4f}")
        -0.0200

    Reference:
        Zeiler, 2012, arXiv:1212.5701.
    """
    return chain(
        # Weight decay comes first, so it is L2 regularization, as in optax and PyTorch.
        add_decayed_weights(weight_decay, weight_decay_mask),
        scale_by_adadelta(rho, eps),
        scale_by_learning_rate(learning_rate),
    )


class ScaleBySM3State(NamedTuple):
    r"""State of `scale_by_sm3`.

    Attributes:
        mu: The maxima :math:`\rho, \kappa`: one vector for each axis of a leaf.
        nu: :math:`m_t`, the moving average of the scaled gradient.
    """

    mu: CustomSlot
    nu: Slot


class scale_by_sm3(Leafwise):
    r"""Divide the gradient by the root of an upper bound of Adagrad's sum of squares.

    .. math:: v_{ij} &= \beta_2 \min(\rho_i,\, \kappa_j) + w\, |g_{ij}|^2, \qquad
              \rho_i = \max_j v_{ij}, \quad \kappa_j = \max_i v_{ij}, \\
              u_t = m_t &= \beta_1 m_{t-1} + (1-\beta_1)\, \frac{g_t}{\sqrt{v_t + \epsilon}}

    with :math:`w = 1` if :math:`\beta_2 = 1` (the paper's sum of squares), otherwise :math:`w =
    1-\beta_2`. For an :math:`m \times n` matrix, the state has :math:`m + n` numbers for the
    squares; for an array with more axes, one vector per axis. For vectors and scalars, the state
    has one number per element. Elements whose gradients were all zero have a zero update.

    Args:
        b1: :math:`\beta_1`, decay rate of the momentum :math:`m`.
        b2: :math:`\beta_2`, decay rate of the squares; with 1, the squares are summed.
        eps: :math:`\epsilon`, added inside the square root.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, g = fnopt.scale_by_sm3(b1=0.0), {"w": jnp.full((2, 3), 4.0)}
        >>> updates, state = tx.update(g, tx.init(g))
        >>> updates["w"].round(3)[0], [v.tolist() for v in state.mu["w"]]
        (Array([1., 1., 1.], dtype=float32), [[16.0, 16.0], [16.0, 16.0, 16.0]])

    Reference:
        Anil, Gupta, Koren and Singer, 2019, arXiv:1901.11150.
    """

    State = ScaleBySM3State
    keeps_squares = True
    carrier = "nu"

    b1: Scalar = hyper(default=0.9, ge=0, lt=1)
    b2: Scalar = hyper(default=1.0, ge=0, le=1)
    eps: Scalar = hyper(default=1e-8, ge=0)

    def start(self, slot: str, p: Any) -> Any:
        """Return a vector of zeros for each axis, with the sharding of the params."""
        dtype = real_dtype(compute_dtype(p.dtype))
        return tuple(jnp.zeros_like(x, dtype) for x in _reduce_along_axes(jnp.sum, p))

    def scalars(self, h: Any, t: Any) -> dict[str, Any]:
        """Weight of the new squared gradient."""
        # With b2 = 1, squares are summed as in Adagrad and in the paper; otherwise averaged.
        return {"gain": jnp.where(h.b2 == 1, jnp.ones_like(h.b2), 1 - h.b2)}

    def leaf(self, h: Any, g: Any, mu: Any, nu: Any) -> Any:
        # SM3-II: each of the maxima along the axes bounds an element's sum of squares.
        bounds = [
            jnp.expand_dims(v, tuple(j for j in range(g.ndim) if j != i)) if g.ndim > 1 else v
            for i, v in enumerate(mu)
        ]
        squares = h.b2 * functools.reduce(jnp.minimum, bounds) + h.gain * squared_modulus(g)
        # With eps = 0, a zero sum has an infinite inverse root, and inf * 0 is NaN.
        is_positive = squares > 0
        factor = jax.lax.rsqrt(jnp.where(is_positive, squares, jnp.ones_like(squares)) + h.eps)
        nu = ema(nu, jnp.where(is_positive, factor, jnp.zeros_like(factor)) * g, h.b1)
        # Squares aren't negative, so the maximum over an empty axis is defined as 0.
        return nu, _reduce_along_axes(functools.partial(jnp.max, initial=0), squares), nu


def _reduce_along_axes(reduce: Any, x: jax.Array) -> tuple[jax.Array, ...]:
    """Reduce an array to one vector per axis; return arrays with fewer than two axes unchanged."""
    if x.ndim < 2:
        return (x,)
    axes = range(x.ndim)
    return tuple(reduce(x, axis=tuple(j for j in axes if j != i)) for i in axes)


@recipe
def sm3(learning_rate: ScalarOrSchedule, momentum: Scalar = 0.9) -> Chain:
    r"""SM3: Adagrad with one number per row and column, for large embeddings and matrices.

    .. math:: u_t = -\eta_t\, m_t, \qquad m_t = \beta m_{t-1} + (1-\beta)\,
              \frac{g_t}{\sqrt{v_t + \epsilon}}

    where :math:`v_t` is computed from one number per row and column; see `scale_by_sm3`.

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        momentum: :math:`\beta`, decay rate of the momentum :math:`m`.

    Returns:
        A chain of `scale_by_sm3` and `scale_by_learning_rate`, with the slots `mu` (the vectors)
        and `nu` (the momentum).

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, params = fnopt.sm3(0.5, momentum=0.0), {"w": jnp.ones((2, 2))}
        >>> updates, _ = tx.update({"w": jnp.full((2, 2), 4.0)}, tx.init(params), params)
        >>> fnopt.apply_updates(params, updates)["w"].round(3)[0]
        Array([0.5, 0.5], dtype=float32)

    Reference:
        Anil, Gupta, Koren and Singer, 2019, arXiv:1901.11150.
    """
    return descend(scale_by_sm3(momentum), learning_rate)

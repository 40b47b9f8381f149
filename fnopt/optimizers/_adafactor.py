"""Adafactor and CAME: factored second moments of matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fnopt.core import CustomSlot, Leafwise, Scalar, ScalarOrSchedule, Slot, hyper, static
from fnopt.numerics import as_dtype, compute_dtype, ema, positive_root, real_dtype, squared_modulus
from fnopt.optimizers._recipe import descend, recipe
from fnopt.transforms import (
    Chain,
    add_decayed_weights,
    chain,
    clip_by_block_rms,
    clipped_rms,
    scale,
    scale_by_param_block_rms,
    scale_by_schedule,
)
from fnopt.transforms import ema as mean_of_updates

Parts = tuple[jax.Array, ...]
"""Mean squares of rows and of columns; for an unfactored leaf, mean squares of all elements."""

Axes = tuple[int, int] | None
"""The axis of the rows and the axis of the columns; None for an unfactored leaf."""


def zeros_like_parts(p: jax.Array, axes: Axes) -> Parts:
    """Return zero mean squares in at least float32, sharded like the params."""
    dtype = real_dtype(compute_dtype(p.dtype))
    if axes is None:
        return (jnp.zeros_like(p, dtype),)
    # A sum of the params has the sharding that means of the gradients will have.
    return tuple(jnp.zeros_like(jnp.sum(p, axis=i), dtype) for i in reversed(axes))


def average_squares(v: Parts, squares: jax.Array, decay: Any, axes: Axes) -> Parts:
    """Update the moving averages of the mean squares of rows and columns."""
    if axes is None:
        return (ema(v[0], squares, decay),)
    # The sum of `size` squares must be finite, because the quotient of infinite means is NaN.
    limit = jnp.asarray(jnp.finfo(squares.dtype).max / max(squares.size, 1), squares.dtype)
    squares = jnp.minimum(squares, limit)
    sides = zip(v, reversed(axes), strict=True)
    return tuple(ema(part, jnp.mean(squares, axis=i), decay) for part, i in sides)


def divide_by_root(x: jax.Array, v: Parts, axes: Axes) -> jax.Array:
    r"""Divide by the factored root mean square: :math:`x_{ij} / \sqrt{R_i C_j / \bar R}`."""
    if axes is None:
        return x / positive_root(v[0])
    (rows, columns), (row_axis, column_axis) = v, axes
    # `rows` has no column axis, so axes after it are shifted by one.
    mean = jnp.mean(rows, axis=row_axis - (row_axis > column_axis), keepdims=True)
    # Factors 1 / sqrt(...) instead of quotients, whose derivatives overflow for small mean squares
    # before they are multiplied by zero.
    row_factor = positive_root(mean) / positive_root(rows)
    u = x * jnp.expand_dims(row_factor, column_axis)
    return u * jnp.expand_dims(1 / positive_root(columns), row_axis)


def power_decay(step: jax.Array, exponent: jax.Array) -> jax.Array:
    r"""Decay rate of the paper, :math:`\beta_t = 1 - t^{-e}` with :math:`t` = `step` + 1."""
    t = jnp.maximum(step + 1, jnp.ones_like(step))
    return -jnp.expm1(-exponent * jnp.log(t))  # the difference 1 - t^-e would cancel


class ScaleByFactoredRmsState(NamedTuple):
    """State of `scale_by_factored_rms`.

    Attributes:
        count: :math:`t`, the number of steps.
        v: :math:`R_t` and :math:`C_t` of every leaf; a mean square per element without factors.
    """

    count: jax.Array
    v: CustomSlot


class scale_by_factored_rms(Leafwise):
    r"""Divide by the running root mean square, factored into rows and columns for matrices.

    .. math:: R_t &= \beta_t R_{t-1} + (1-\beta_t)\, \mathrm{mean}_j (|g_{ij}|^2 + \epsilon), \qquad
              C_t = \beta_t C_{t-1} + (1-\beta_t)\, \mathrm{mean}_i (|g_{ij}|^2 + \epsilon), \\
              u_{ij} &= \frac{g_{ij}}{\sqrt{R_i\, C_j / \bar R}}, \qquad \beta_t = 1 - t^{-e}

    A leaf is factored along its two largest axes if both have at least `min_dim_size_to_factor`
    elements. Other leaves store a mean square per element.

    Args:
        factored: Whether to factor the second moments of matrices.
        decay_rate: :math:`e`, the exponent of the decay rate :math:`\beta_t`.
        step_offset: The number of steps of an earlier training run, subtracted from the step count.
        min_dim_size_to_factor: The smallest size of both axes for which a leaf is factored.
        epsilon: :math:`\epsilon`, added to squared gradients.
        decay_rate_fn: A function `(step, decay_rate) -> beta_t`, where `step` is the number of
            previous steps.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, g = fnopt.scale_by_factored_rms(min_dim_size_to_factor=2), {"w": jnp.ones((2, 3))}
        >>> updates, state = tx.update(g, tx.init(g))
        >>> [v.shape for v in state.v["w"]]
        [(2,), (3,)]

    Reference:
        Shazeer and Stern, 2018, arXiv:1804.04235.
    """

    State = ScaleByFactoredRmsState
    keeps_squares = True

    factored: bool = static(default=True)
    decay_rate: Scalar = hyper(default=0.8, gt=0)
    step_offset: Scalar = hyper(default=0)
    min_dim_size_to_factor: int = static(default=128, least=1)
    # Shazeer and Stern (2018), section 4: mean squares of zero rows and columns stay positive.
    epsilon: Scalar = hyper(default=1e-30, ge=0)
    decay_rate_fn: Callable[[Any, Any], Any] = static(default=power_decay)

    def _axes(self, shape: tuple[int, ...]) -> tuple[int, int] | None:
        """The two largest axes, the smaller axis first; None for leaves that aren't factored."""
        if not self.factored or len(shape) < 2:
            return None
        # Of equal axes, a stable sort selects the last, as in optax.
        *_, smaller, larger = (int(i) for i in np.argsort(shape, kind="stable"))
        return None if shape[smaller] < self.min_dim_size_to_factor else (smaller, larger)

    def start(self, slot: str, p: Any) -> Any:
        """Return zero mean squares."""
        return zeros_like_parts(p, self._axes(p.shape))

    def scalars(self, h: Any, t: Any) -> dict[str, Any]:
        """Decay rate of this step."""
        # The step is a float, because the offset is a floating scalar.
        step = (t - 1).astype(h.decay_rate.dtype) - h.step_offset
        return {"decay": self.decay_rate_fn(step, h.decay_rate)}

    def leaf(self, h: Any, g: Any, v: Any) -> Any:
        squares, axes = squared_modulus(g) + h.epsilon, self._axes(g.shape)
        v = average_squares(v, squares, h.decay, axes)
        return divide_by_root(g, v, axes), v


@recipe
def adafactor(
    learning_rate: ScalarOrSchedule | None = None,
    min_dim_size_to_factor: int = 128,
    decay_rate: Scalar = 0.8,
    decay_offset: Scalar = 0,
    multiply_by_parameter_scale: bool = True,
    clipping_threshold: Scalar | None = 1.0,
    momentum: Scalar | None = None,
    dtype_momentum: Any = jnp.float32,
    weight_decay_rate: ScalarOrSchedule | None = None,
    eps: Scalar = 1e-30,
    factored: bool = True,
    weight_decay_mask: Any = None,
) -> Chain:
    r"""Adafactor: steps relative to the parameters' size, with factored second moments.

    .. math:: u_t = -\Big(\eta_t\, \max(10^{-3}, \mathrm{rms}(\theta_t))\,
              \frac{d_t}{\max(1, \mathrm{rms}(d_t)/c)} + \lambda_t\, \theta_t\Big), \qquad
              d_t = \frac{g_t}{\sqrt{\hat V_t}}

    where :math:`\hat V_t = R_i C_j / \bar R` is factored as in `scale_by_factored_rms`.

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`; None uses 1.
        min_dim_size_to_factor: The smallest size of both axes for which a leaf is factored.
        decay_rate: The exponent of the decay rate of :math:`\hat V`.
        decay_offset: The number of steps to subtract from the step count.
        multiply_by_parameter_scale: Whether to scale steps by the parameters' root mean square.
        clipping_threshold: :math:`c`, the largest root mean square of a leaf of :math:`d`; None
            disables clipping.
        momentum: The decay rate of a moving average of the updates; None disables momentum.
        dtype_momentum: The storage dtype of the averaged updates.
        weight_decay_rate: :math:`\lambda`, independent of the learning rate; None disables decay.
        eps: The constant added to squared gradients.
        factored: Whether to factor the second moments of matrices.
        weight_decay_mask: The leaves with weight decay; see `add_decayed_weights`. None means all
            leaves.

    Returns:
        A chain with the slot `v` and, with momentum, the slot `ema`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, params = fnopt.adafactor(0.5), {"w": jnp.ones(2)}
        >>> updates, _ = tx.update({"w": jnp.full(2, 8.0)}, tx.init(params), params)
        >>> fnopt.apply_updates(params, updates)["w"].round(3)
        Array([0.5, 0.5], dtype=float32)

    Reference:
        Shazeer and Stern, 2018, arXiv:1804.04235.
    """
    members: list[Any] = [
        scale_by_factored_rms(factored, decay_rate, decay_offset, min_dim_size_to_factor, eps)
    ]
    if clipping_threshold is not None:
        members.append(clip_by_block_rms(clipping_threshold))
    if learning_rate is not None:
        members.append(scale_by_schedule(learning_rate))
    if multiply_by_parameter_scale:
        members.append(scale_by_param_block_rms())
    if momentum is not None:
        members.append(mean_of_updates(momentum, debias=False, accumulator_dtype=dtype_momentum))
    # Weight decay comes after the learning rate, which therefore doesn't scale it, as in optax.
    if weight_decay_rate is not None:
        members.append(add_decayed_weights(weight_decay_rate, weight_decay_mask))
    return chain(*members, scale(-1.0))


class ScaleByCameState(NamedTuple):
    r"""State of `scale_by_came`.

    Attributes:
        mu: :math:`\mu_t`, the moving average of the steps.
        v: The factors of :math:`\hat V_t`, mean squares of the gradient's rows and columns.
        residual: The factors of :math:`\hat S_t`; empty for an unfactored leaf.
    """

    mu: Slot
    v: CustomSlot
    residual: CustomSlot


class scale_by_came(Leafwise):
    r"""Divide an average of Adafactor's steps by the steps' deviation from this average.

    .. math::
        d_t &= \frac{g_t}{\sqrt{\hat V_t}}, \qquad
        \bar d_t = \frac{d_t}{\max(1, \mathrm{rms}(d_t) / c)}, \qquad
        \mu_t = \beta_1 \mu_{t-1} + (1-\beta_1)\, \bar d_t \\
        u_t &= \frac{\mu_t}{\sqrt{\hat S_t}}

    :math:`\hat V` is the factored moving average of :math:`|g|^2 + \epsilon_1` with decay rate
    :math:`\beta_2` (see `scale_by_factored_rms`). :math:`\hat S` is the factored moving average of
    :math:`|\bar d - \mu|^2 + \epsilon_2` with decay rate :math:`\beta_3`. Both are factored along
    the last two axes. For leaves with fewer axes, :math:`\hat V` has a mean square per element, and
    :math:`u = \mu`.

    Args:
        b1: :math:`\beta_1`, decay rate of :math:`\mu`, the moving average of the steps.
        b2: :math:`\beta_2`, decay rate of the squared gradients.
        b3: :math:`\beta_3`, decay rate of the squared residuals :math:`|\bar d - \mu|^2`.
        eps: :math:`\epsilon_1`, added to squared gradients.
        eps_residual: :math:`\epsilon_2`, added to squared residuals.
        clipping_threshold: :math:`c`, the largest root mean square of a leaf of :math:`d`.
        mu_dtype: Storage dtype of `mu`; None uses the wider of float32 and the params' dtype.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, g = fnopt.scale_by_came(), {"w": jnp.ones((2, 3))}
        >>> updates, state = tx.update(g, tx.init(g))
        >>> [v.shape for v in state.residual["w"]]
        [(2,), (3,)]

    Reference:
        Luo et al., 2023, arXiv:2307.02047.
    """

    State = ScaleByCameState
    keeps_squares = True
    carrier = "mu"

    b1: Scalar = hyper(default=0.9, ge=0, lt=1)
    b2: Scalar = hyper(default=0.999, ge=0, lt=1)
    b3: Scalar = hyper(default=0.9999, ge=0, lt=1)
    eps: Scalar = hyper(default=1e-30, ge=0)
    eps_residual: Scalar = hyper(default=1e-16, ge=0)
    clipping_threshold: Scalar = hyper(default=1.0, gt=0, infinite=True)
    mu_dtype: Any = static(default=None, convert=as_dtype)

    def start(self, slot: str, p: Any) -> Any:
        """Return zero mean squares; no residuals for an unfactored leaf."""
        axes = _last_axes(p.shape)
        return () if slot == "residual" and axes is None else zeros_like_parts(p, axes)

    def leaf(self, h: Any, g: Any, mu: Any, v: Any, residual: Any) -> Any:
        axes = _last_axes(g.shape)
        v = average_squares(v, squared_modulus(g) + h.eps, h.b2, axes)
        step = clipped_rms(divide_by_root(g, v, axes), h.clipping_threshold)
        mu = ema(mu, step, h.b1)
        if axes is None:
            # As in the authors' code, a leaf without factors isn't divided by the deviation.
            return mu, mu, v, residual
        instability = squared_modulus(step - mu) + h.eps_residual
        residual = average_squares(residual, instability, h.b3, axes)
        return divide_by_root(mu, residual, axes), mu, v, residual


def _last_axes(shape: tuple[int, ...]) -> Axes:
    """Axes that CAME factors: the last two axes of a nonempty array."""
    return (len(shape) - 2, len(shape) - 1) if len(shape) > 1 and 0 not in shape else None


@recipe
def came(
    learning_rate: ScalarOrSchedule,
    b1: Scalar = 0.9,
    b2: Scalar = 0.999,
    b3: Scalar = 0.9999,
    eps: Scalar = 1e-30,
    eps_residual: Scalar = 1e-16,
    clipping_threshold: Scalar = 1.0,
    weight_decay: ScalarOrSchedule = 0.0,
    mask: Any = None,
    mu_dtype: Any = None,
) -> Chain:
    r"""CAME: averaged Adafactor steps, divided by the steps' deviation from their average.

    .. math:: u_t = -\eta_t \left(\frac{\mu_t}{\sqrt{\hat S_t}} + \lambda_t\, \theta_t\right)

    `scale_by_came` defines the averaged step :math:`\mu` and the deviation :math:`\hat S`.

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        b1: :math:`\beta_1`, decay rate of :math:`\mu`, the moving average of the steps.
        b2: :math:`\beta_2`, decay rate of the squared gradients.
        b3: :math:`\beta_3`, decay rate of the squared residuals.
        eps: :math:`\epsilon_1`, added to squared gradients.
        eps_residual: :math:`\epsilon_2`, added to squared residuals.
        clipping_threshold: :math:`c`, the largest root mean square of a leaf's step.
        weight_decay: :math:`\lambda`, the decoupled weight decay; a number or a `Schedule`.
        mask: The leaves with weight decay; see `add_decayed_weights`. None means all leaves.
        mu_dtype: Storage dtype of `mu`; None uses the wider of float32 and the params' dtype.

    Returns:
        A chain of `scale_by_came`, `add_decayed_weights` and `scale_by_learning_rate`, with the
        slots `mu`, `v` and `residual`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, params = fnopt.came(1.0), {"w": jnp.ones(2)}
        >>> updates, _ = tx.update({"w": jnp.full(2, 8.0)}, tx.init(params), params)
        >>> updates["w"].round(3)
        Array([-0.1, -0.1], dtype=float32)

    Reference:
        Luo et al., 2023, arXiv:2307.02047.
    """
    direction = scale_by_came(b1, b2, b3, eps, eps_residual, clipping_threshold, mu_dtype)
    return descend(direction, learning_rate, weight_decay, mask)

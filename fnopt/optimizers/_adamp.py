"""AdamP: Adam without radial steps for scale-invariant weights."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import Scalar, ScalarOrSchedule, hyper, static
from fnopt.numerics import as_dtype, axis_norms, nonzero
from fnopt.optimizers._adam import AdamDirection, adam_scalars
from fnopt.optimizers._recipe import descend, recipe
from fnopt.transforms import Chain


class scale_by_adamp(AdamDirection):
    r"""Project Adam's direction orthogonally to scale-invariant weights.

    .. math:: d_t = \frac{\hat\mu_t}{\sqrt{\hat\nu_t} + \epsilon}, \qquad
              u_t = \begin{cases} d_t - \dfrac{\theta_t \langle \theta_t, d_t \rangle}
              {\lVert \theta_t \rVert^2} + r \lambda_t\, \theta_t & \text{if }
              \lvert\cos(\theta_t, g_t)\rvert < \delta / \sqrt{n} \\
              d_t + \lambda_t\, \theta_t & \text{otherwise} \end{cases}

    Weights before a normalization layer are scale-invariant, and their gradient is orthogonal to
    the weights; the cosine tests this. The cosine is tested first for each output (along the last
    axis; the largest cosine decides), then for the whole leaf; :math:`n` is the number of weights
    of an output, or of the leaf. Leaves with fewer than two axes are updated along Adam's
    direction.

    Args:
        b1: Decay of the mean.
        b2: Decay rate of :math:`\nu`, the moving average of the squared gradient.
        eps: :math:`\epsilon`, added to the root.
        weight_decay: :math:`\lambda`, a number or a `Schedule`.
        delta: :math:`\delta`, the largest scaled cosine of weights regarded as scale-invariant.
        wd_ratio: :math:`r`, the factor of the weight decay of scale-invariant weights.
        nesterov: Whether to use Nesterov momentum.
        mu_dtype: Storage dtype of `mu`; by default the dtype of the params, at least float32.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, params = fnopt.scale_by_adamp(), {"w": jnp.asarray([[2.0, 0.0], [0.0, 2.0]])}
        >>> across = {"w": jnp.asarray([[0.0, 3.0], [3.0, 0.0]])}
        >>> print(tx.update(across, tx.init(params), params)[0]["w"].round(3))
        [[0. 1.]
         [1. 0.]]

    Reference:
        Heo et al., 2020, arXiv:2006.08217.
    """

    needs_params = True

    weight_decay: ScalarOrSchedule = hyper(default=0.0, ge=0, schedule=True)
    delta: Scalar = hyper(default=0.1, ge=0)
    wd_ratio: Scalar = hyper(default=0.1, ge=0)
    nesterov: bool = static(default=False)
    mu_dtype: Any = static(default=None, convert=as_dtype)

    def scalars(self, h: Any, t: Any) -> dict[str, Any]:
        """Scalars of Adam; the Nesterov term uses the bias correction of the mean."""
        numbers = adam_scalars(h, t)
        if self.nesterov:
            mean = numbers["mean"]
            numbers |= {"mean": mean * h.b1, "gradient": mean * (1 - h.b1)}
        return numbers

    def leaf(self, h: Any, g: Any, p: Any, mu: Any, nu: Any) -> Any:
        direction, mu, nu = super().leaf(h, g, mu, nu)
        # Biases and gains are not scale-invariant: the authors' code projects only arrays with two
        # or more axes.
        if p.ndim < 2 or not p.size:
            return direction + h.weight_decay * p, mu, nu
        # The projection is per output if the outputs' weights are invariant, else per leaf, as in
        # the authors' code. Outputs are the last axis in JAX, and the first in PyTorch.
        outputs = _Across(p, g, tuple(range(p.ndim - 1)))
        whole = _Across(p, g, tuple(range(p.ndim)))
        by_output, by_leaf = outputs.is_invariant(h.delta), whole.is_invariant(h.delta)
        tangent = jnp.where(by_output, outputs.tangent(direction), whole.tangent(direction))
        either = by_output | by_leaf
        ratio = jnp.where(either, h.wd_ratio, jnp.ones_like(h.wd_ratio))
        new = jnp.where(either, tangent, direction)
        return new + h.weight_decay * ratio * p, mu, nu


class _Across:
    """Weights and their gradient as vectors over some axes."""

    def __init__(self, p: jax.Array, g: jax.Array, axes: tuple[int, ...]) -> None:
        self.axes = axes
        # Unit vectors are used, because products of small numbers would underflow.
        self.unit = p / nonzero(axis_norms(p, axes))
        self.gradient = g / nonzero(axis_norms(g, axes))

    def along(self, x: jax.Array) -> jax.Array:
        """Component along the weights, in the real inner product."""
        product = jnp.real(jnp.conj(self.unit) * x)
        return jnp.sum(product, axis=self.axes, keepdims=True)

    def is_invariant(self, delta: jax.Array) -> jax.Array:
        """Whether all gradients are nearly orthogonal to their weights."""
        cosines = jnp.abs(self.along(self.gradient))
        length = self.unit.size // cosines.size
        # Random vectors of n elements have cosines around 1 / sqrt(n) (Heo et al., 2021).
        return jnp.max(cosines) < delta / jnp.sqrt(jnp.asarray(length, delta.dtype))

    def tangent(self, x: jax.Array) -> jax.Array:
        """`x` without its component along the weights."""
        return x - self.along(x) * self.unit


@recipe
def adamp(
    learning_rate: ScalarOrSchedule,
    b1: Scalar = 0.9,
    b2: Scalar = 0.999,
    eps: Scalar = 1e-8,
    weight_decay: ScalarOrSchedule = 0.0,
    delta: Scalar = 0.1,
    wd_ratio: Scalar = 0.1,
    nesterov: bool = False,
    mu_dtype: Any = None,
) -> Chain:
    r"""AdamP: AdamW without the growth of scale-invariant weights.

    .. math:: u_t = -\eta_t \left(\Pi_{\theta_t}\!\left(\frac{\hat\mu_t}
              {\sqrt{\hat\nu_t} + \epsilon}\right) + r_t\, \lambda_t\, \theta_t\right)

    where :math:`\Pi` removes the component along the weights, and :math:`r_t < 1`, if the weights
    are scale-invariant; see `scale_by_adamp`. To decay only some leaves, see `param_groups`.

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        b1: Decay rate of :math:`\mu`, the moving average of the gradient.
        b2: Decay rate of :math:`\nu`, the moving average of the squared gradient.
        eps: :math:`\epsilon`, added to the root.
        weight_decay: :math:`\lambda`, a number or a separate `Schedule`.
        delta: The largest scaled cosine between gradient and weights regarded as scale-invariant.
        wd_ratio: The factor of the weight decay of scale-invariant weights.
        nesterov: Whether to use Nesterov momentum.
        mu_dtype: Storage dtype of the mean; by default the dtype of the params, at least float32.

    Returns:
        A chain of `scale_by_adamp` and `scale_by_learning_rate`, with the slots `mu` and `nu`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.adamp(0.1)
        >>> params = {"w": jnp.ones(2)}
        >>> updates, state = tx.update({"w": jnp.ones(2)}, tx.init(params), params)
        >>> fnopt.apply_updates(params, updates)
        {'w': Array([0.9, 0.9], dtype=float32)}

    Reference:
        Heo et al., 2020, arXiv:2006.08217.
    """
    numbers = (b1, b2, eps, weight_decay, delta, wd_ratio)
    direction = scale_by_adamp(*numbers, nesterov, mu_dtype)
    return descend(direction, learning_rate)

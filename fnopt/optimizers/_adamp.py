"""AdamP: Adam with steps orthogonal to scale-invariant weights."""

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

    with the bias-corrected averages :math:`\hat\mu_t` and :math:`\hat\nu_t` of `adam`. Weights
    before a normalization layer are scale-invariant, so their gradient is orthogonal to the
    weights. The largest cosine of all outputs (indices of the last axis) tests this per output. If
    this test fails, the cosine of the whole leaf is tested. :math:`n` is the number of weights of
    an output or of the leaf. Leaves with fewer than two axes are never projected.

    Args:
        b1: :math:`\beta_1`, decay rate of :math:`\mu`, the moving average of the gradient.
        b2: :math:`\beta_2`, decay rate of :math:`\nu`, the moving average of the squared gradient.
        eps: :math:`\epsilon`, added outside the square root.
        weight_decay: :math:`\lambda`, the decoupled weight decay; a number or a `Schedule`.
        delta: :math:`\delta`, the bound on :math:`\sqrt n \lvert\cos\rvert` below which weights are
            treated as scale-invariant.
        wd_ratio: :math:`r`, the factor of the weight decay of scale-invariant weights.
        nesterov: Whether to use Nesterov momentum.
        mu_dtype: Storage dtype of `mu`; None uses the wider of float32 and the params' dtype.

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
        """Scalars of Adam, with the Nesterov weights of the authors' code."""
        numbers = adam_scalars(h, t)
        # Mean and gradient have the bias correction of step t, unlike in Nadam.
        if self.nesterov:
            mean = numbers["mean"]
            numbers |= {"mean": mean * h.b1, "gradient": mean * (1 - h.b1)}
        return numbers

    def leaf(self, h: Any, g: Any, p: Any, mu: Any, nu: Any) -> Any:
        direction, mu, nu = super().leaf(h, g, mu, nu)
        # As in the authors' code, biases and gains aren't projected: they aren't scale-invariant.
        if p.ndim < 2 or not p.size:
            return direction + h.weight_decay * p, mu, nu
        # As in the authors' code, the projection is per output if the weights of all outputs are
        # invariant, otherwise per leaf. In JAX, outputs are the last axis; in PyTorch, the first.
        outputs = _Projection(p, g, tuple(range(p.ndim - 1)))
        leaf = _Projection(p, g, tuple(range(p.ndim)))
        per_output, per_leaf = outputs.is_invariant(h.delta), leaf.is_invariant(h.delta)
        tangent = jnp.where(
            per_output, outputs.remove_radial(direction), leaf.remove_radial(direction)
        )
        is_invariant = per_output | per_leaf
        ratio = jnp.where(is_invariant, h.wd_ratio, jnp.ones_like(h.wd_ratio))
        direction = jnp.where(is_invariant, tangent, direction)
        return direction + h.weight_decay * ratio * p, mu, nu


class _Projection:
    """Projection orthogonal to vectors of weights, which extend over some axes of a leaf."""

    def __init__(self, p: jax.Array, g: jax.Array, axes: tuple[int, ...]) -> None:
        self.axes = axes
        # Unit vectors, because products of small numbers could underflow.
        self.unit = p / nonzero(axis_norms(p, axes))
        self.gradient = g / nonzero(axis_norms(g, axes))

    def radial_component(self, x: jax.Array) -> jax.Array:
        """Component of `x` along the weights, in the real inner product."""
        product = jnp.real(jnp.conj(self.unit) * x)
        return jnp.sum(product, axis=self.axes, keepdims=True)

    def is_invariant(self, delta: jax.Array) -> jax.Array:
        """Whether all gradient vectors are nearly orthogonal to their weight vectors."""
        cosines = jnp.abs(self.radial_component(self.gradient))
        length = self.unit.size // cosines.size
        # Random vectors of n elements have cosines around 1 / sqrt(n) (Heo et al., 2020).
        return jnp.max(cosines) < delta / jnp.sqrt(jnp.asarray(length, delta.dtype))

    def remove_radial(self, x: jax.Array) -> jax.Array:
        """Subtract from `x` its component along the weights."""
        return x - self.radial_component(x) * self.unit


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
    r"""AdamP: AdamW with steps orthogonal to scale-invariant weights.

    .. math:: u_t = -\eta_t \left(\Pi_{\theta_t}\!\left(\frac{\hat\mu_t}
              {\sqrt{\hat\nu_t} + \epsilon}\right) + r_t\, \lambda_t\, \theta_t\right)

    with Adam's bias-corrected averages :math:`\hat\mu` and :math:`\hat\nu`.
    If the weights are scale-invariant, :math:`\Pi` subtracts the component along the weights, and
    :math:`r_t = r`; otherwise, :math:`\Pi` is the identity, and :math:`r_t = 1`. `scale_by_adamp`
    describes the test. To exclude leaves from weight decay, use `param_groups`.

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        b1: :math:`\beta_1`, decay rate of :math:`\mu`, the moving average of the gradient.
        b2: :math:`\beta_2`, decay rate of :math:`\nu`, the moving average of the squared gradient.
        eps: :math:`\epsilon`, added outside the square root.
        weight_decay: :math:`\lambda`, the decoupled weight decay; a number or a `Schedule`.
        delta: The bound on the scaled cosine between weights and gradient below which weights are
            treated as scale-invariant; see `scale_by_adamp`.
        wd_ratio: :math:`r`, the factor of the weight decay of scale-invariant weights.
        nesterov: Whether to use Nesterov momentum.
        mu_dtype: Storage dtype of `mu`; None uses the wider of float32 and the params' dtype.

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

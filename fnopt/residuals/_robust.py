"""Robust losses of residuals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import Value, hyper, static
from fnopt.errors import accepts_args, explain_jax_errors, where


class RobustLoss(Value):
    r"""Base class of the costs :math:`\tfrac12 c^2 \rho(r^2 / c^2)` of a residual, `c` = `scale`.

    A subclass defines :math:`\rho`, with :math:`\rho(0) = 0` and :math:`\rho'(0) = 1`, so that
    small residuals have the same cost as in least squares. JAX differentiates :math:`\rho`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> class capped(fnopt.residuals.RobustLoss):
        ...     def rho(self, z):
        ...         return jnp.tanh(z)
        >>> print(capped().rho(jnp.asarray([0.0, 9.0])).round(4))
        [0. 1.]
    """

    def rho(self, z: jax.Array) -> jax.Array:
        """The loss `rho(z)` of `z = (r / scale) ** 2`, elementwise, for `z >= 0`."""
        raise NotImplementedError(f"{type(self).__name__} must define rho(self, z)")

    @property
    def size(self) -> Any:
        """Scale of the loss; 1 for a loss without a scale."""
        return getattr(self, "scale", 1.0)


class soft_l1(RobustLoss):
    r"""Smooth absolute value: quadratic for small residuals, linear for large residuals.

    .. math:: \rho(z) = 2 (\sqrt{1 + z} - 1)

    Args:
        scale: The residual at which the loss changes from quadratic to linear.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> print(fnopt.residuals.soft_l1().rho(jnp.asarray([0.0, 3.0])))
        [0. 2.]

    Reference:
        Charbonnier et al. (1994), Two deterministic half-quadratic regularization algorithms.
    """

    scale: float | jax.Array = hyper(default=1.0, gt=0, infinite=True)

    def rho(self, z: jax.Array) -> jax.Array:
        """The loss `rho(z)` of the squared, scaled residual `z = (r / scale) ** 2`."""
        return 2 * z / (1 + jnp.sqrt(1 + z))  # without the cancellation of the formula


class huber(RobustLoss):
    r"""Huber's loss: quadratic up to `scale`, linear beyond.

    .. math:: \rho(z) = \begin{cases} z & z \le 1 \\ 2 \sqrt{z} - 1 & z > 1 \end{cases}

    Args:
        scale: The largest residual with full weight, in units of the residuals.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> print(fnopt.residuals.huber().rho(jnp.asarray([0.5, 9.0])))
        [0.5 5. ]

    Reference:
        Huber (1964), Robust estimation of a location parameter.
    """

    scale: float | jax.Array = hyper(default=1.0, gt=0, infinite=True)

    def rho(self, z: jax.Array) -> jax.Array:
        """The loss `rho(z)` of the squared, scaled residual `z = (r / scale) ** 2`."""
        beyond = z > 1
        root = jnp.sqrt(jnp.where(beyond, z, jnp.ones_like(z)))
        return jnp.where(beyond, 2 * root - 1, z)


class cauchy(RobustLoss):
    r"""Cauchy's loss, which grows logarithmically, so distant outliers have little influence.

    .. math:: \rho(z) = \ln(1 + z)

    The loss isn't convex. A fit may have several minima, so the initial guess matters.

    Args:
        scale: The residual above which the influence decreases, in units of the residuals.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> print(fnopt.residuals.cauchy().rho(jnp.asarray([0.0, 1.0])).round(4))
        [0.     0.6931]

    Reference:
        Black and Anandan (1996), The robust estimation of multiple motions.
    """

    scale: float | jax.Array = hyper(default=1.0, gt=0, infinite=True)

    def rho(self, z: jax.Array) -> jax.Array:
        """The loss `rho(z)` of the squared, scaled residual `z = (r / scale) ** 2`."""
        return jnp.log1p(z)


class arctan(RobustLoss):
    r"""Bounded loss: an outlier costs at most :math:`\tfrac{\pi}{4}` times the squared scale.

    .. math:: \rho(z) = \arctan(z)

    The loss isn't convex. A fit may have several minima, so the initial guess matters.

    Args:
        scale: The residual above which the influence decreases, in units of the residuals.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> print(fnopt.residuals.arctan().rho(jnp.asarray([0.0, 1.0])).round(4))
        [0.     0.7854]
    """

    scale: float | jax.Array = hyper(default=1.0, gt=0, infinite=True)

    def rho(self, z: jax.Array) -> jax.Array:
        """The loss `rho(z)` of the squared, scaled residual `z = (r / scale) ** 2`."""
        return jnp.arctan(z)


class tukey(RobustLoss):
    r"""Tukey's biweight: residuals beyond `scale` have no influence.

    .. math:: \rho(z) = \begin{cases} \tfrac13 \left( 1 - (1 - z)^3 \right) & z \le 1 \\
        \tfrac13 & z > 1 \end{cases}

    The loss isn't convex, and its gradient is zero beyond `scale`. Use an initial guess near the
    solution, for example the solution of a fit with :class:`huber`.

    Args:
        scale: The residual above which data are ignored. 4.685 standard deviations keep 95 %
            of the efficiency of least squares on normal data.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> print(fnopt.residuals.tukey().rho(jnp.asarray([0.0, 1.0, 9.0])).round(4))
        [0.     0.3333 0.3333]

    Reference:
        Beaton and Tukey (1974), The fitting of power series, meaning polynomials, illustrated on
        band-spectroscopic data.
    """

    scale: float | jax.Array = hyper(default=1.0, gt=0, infinite=True)

    def rho(self, z: jax.Array) -> jax.Array:
        """The loss `rho(z)` of the squared, scaled residual `z = (r / scale) ** 2`."""
        t = jnp.minimum(z, jnp.ones_like(z))
        return t * (1 - t * (1 - t / 3))  # = (1 - (1 - t)^3) / 3, without its cancellation


class barron(RobustLoss):
    r"""Barron's family of losses: squares, soft L1, Cauchy, Geman-McClure, Welsch and others.

    .. math:: \rho(z) = \frac{2 b}{\alpha}
        \left( \left( \frac{z}{b} + 1 \right)^{\alpha / 2} - 1 \right), \qquad b = |\alpha - 2|

    and its limits: :math:`\alpha = 2` gives least squares, 1 soft L1, 0 Cauchy (:math:`2 \ln(1 + z
    / 2)`), -2 Geman-McClure, :math:`-\infty` Welsch (:math:`2 - 2 e^{-z/2}`). The loss isn't convex
    for :math:`\alpha < 1`.

    Args:
        alpha: The shape, at most 2. A smaller shape reduces the influence of outliers.
        scale: The residual at which the loss stops being quadratic, in units of the residuals.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> print(fnopt.residuals.barron(alpha=1.0).rho(jnp.asarray([0.0, 3.0])))
        [0. 2.]

    Reference:
        Barron (2019), A general and adaptive robust loss function, arXiv:1701.03077 (there
        without the factor 2).
    """

    alpha: float | jax.Array = hyper(default=1.0, le=2, infinite=True)
    scale: float | jax.Array = hyper(default=1.0, gt=0, infinite=True)

    def rho(self, z: jax.Array) -> jax.Array:
        """The loss `rho(z)` of the squared, scaled residual `z = (r / scale) ** 2`."""
        alpha = jnp.asarray(self.alpha, z.dtype)
        # At alpha = 2 another branch is selected, but z / 0 would still make the derivative NaN; so
        # would the infinite alpha of Welsch's loss below.
        b = jnp.maximum(2 - alpha, jnp.asarray(jnp.finfo(z.dtype).eps, z.dtype))
        welsch = ~jnp.isfinite(alpha)
        b = jnp.where(welsch, jnp.ones_like(b), b)
        half = jnp.where(welsch, jnp.ones_like(alpha), alpha) / 2
        general = b * _powered(jnp.log1p(z / b), half)
        squares = alpha >= 2
        return jnp.where(welsch, -2 * _expm1(-z / 2), jnp.where(squares, z, general))


@jax.custom_jvp
def _expm1(x: jax.Array) -> jax.Array:
    return jnp.expm1(x)


@_expm1.defjvp
def _expm1_slope(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> Any:
    # JAX's derivative, the value plus one, has no correct digits for a far outlier.
    return _expm1(*primals), jnp.exp(*primals) * tangents[0]


def _powered(t: jax.Array, a: jax.Array) -> jax.Array:
    r""":math:`(e^{a t} - 1) / a`, which is `t` for `a = 0`."""
    small = jnp.abs(a) < jnp.asarray(jnp.finfo(a.dtype).eps, a.dtype)
    safe = jnp.where(small, jnp.ones_like(a), a)
    # To first order in a, so that the derivative with respect to a is correct too.
    return jnp.where(small, t + a * t * t / 2, _expm1(safe * t) / safe)


class custom_loss(RobustLoss):
    r"""Make a loss from a function :math:`\rho(z)` of the scaled squares :math:`z = r^2 / c^2`.

    Options of a fit convert a function to a `custom_loss` with a scale of 1. JAX differentiates
    the function. As in SciPy, the function may return :math:`\rho, \rho', \rho''`, as an array of
    shape `[3, m]` or three arrays.

    Args:
        fn: `fn(z)` for `z` of shape `[m]`, elementwise and written with `jax.numpy`; returns an
            array of the same shape, or three. If :math:`\rho(0) = 0` and :math:`\rho'(0) = 1`,
            small residuals have the same cost as in least squares.
        scale: The residual :math:`c` above which the loss isn't quadratic, in units of the
            residuals: SciPy's `f_scale`.

    Raises:
        ValueError: During the fit, if `fn` returns another shape.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> y = jnp.asarray([1.0, 1.1, 0.9, 9.0])
        >>> fit = fnopt.least_squares(lambda p: p - y, jnp.zeros(()), loss=lambda z: jnp.log1p(z))
        >>> print(fit.params.round(2))
        1.04
    """

    fn: Callable[[jax.Array], Any] = static()
    scale: float | jax.Array = hyper(default=1.0, gt=0, infinite=True)

    def rho(self, z: jax.Array) -> jax.Array:
        """The loss `rho(z)` of the squared, scaled residual `z = (r / scale) ** 2`."""
        if not accepts_args(self.fn, z):
            raise TypeError(
                f"{where()}loss: the function can't be called as loss(z), expected a "
                "function of the scaled squares alone. Let it close over other values."
            )
        with explain_jax_errors("loss", "the function", is_another=True):
            given = self.fn(z)
        if isinstance(given, (tuple, list)):
            given = jnp.stack(jnp.broadcast_arrays(*given))
        if jnp.shape(given) == z.shape:
            return jnp.asarray(given, z.dtype)
        if jnp.shape(given) != (3, *z.shape):
            raise ValueError(
                f"{where()}loss: the function returned shape {jnp.shape(given)} for z of shape "
                f"{z.shape}, expected the same, or {(3, *z.shape)} for rho and its two derivatives."
            )
        start = jax.lax.stop_gradient(z)
        value, slope, curvature = (jnp.asarray(part, z.dtype) for part in self.fn(start))
        step = z - start  # zero, with a nonzero derivative that selects the user's derivatives
        return value + slope * step + curvature * jnp.square(step) / 2


NAMES = {cls.__name__: cls for cls in (soft_l1, huber, cauchy, arctan, tukey, barron)}


def robust_slopes(loss: RobustLoss, z: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    r"""Compute the loss and its first two derivatives, :math:`\rho, \rho', \rho''`, elementwise.

    Args:
        loss: The loss.
        z: Scaled squares, of shape `[m]`.

    Returns:
        Three arrays of shape `[m]`.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.residuals import huber, robust_slopes
        >>> print([f"{float(v[0]):.4f}" for v in robust_slopes(huber(), jnp.asarray([4.0]))])
        ['3.0000', '0.5000', '-0.0625']
    """
    unit = jnp.ones_like(z)

    def value_and_slope(z: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jax.jvp(loss.rho, (z,), (unit,))

    (rho, d1), (_, d2) = jax.jvp(value_and_slope, (z,), (unit,))
    return rho, d1, d2


def named_loss(name: str, scale: Any = 1.0) -> RobustLoss | None:
    """Return the loss with SciPy's name; None for `'linear'`.

    Args:
        name: `'linear'`, `'soft_l1'`, `'huber'`, `'cauchy'`, `'arctan'`, or another loss of fnopt.
        scale: The scale of the loss, SciPy's `f_scale`.

    Returns:
        The loss.

    Raises:
        ValueError: If no loss has this name.

    Example:
        >>> from fnopt.residuals import named_loss
        >>> named_loss("cauchy", 0.1)
        cauchy(scale=0.1)
    """
    if name == "linear":
        return None
    if name not in NAMES:
        raise ValueError(f"loss = {name!r}, expected one of {['linear', *NAMES]}.")
    return NAMES[name](scale=scale)

"""Robust losses, which limit the influence of outliers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import Value, hyper, static
from fnopt.errors import accepts_args, explain_jax_errors, where


class RobustLoss(Value):
    r"""Base class of robust losses: the cost of a residual is :math:`\tfrac12 c^2 \rho(r^2 / c^2)`.

    :math:`c` is the attribute `scale`. A subclass defines :math:`\rho` with :math:`\rho(0) = 0` and
    :math:`\rho'(0) = 1`. Small residuals then have the same cost as in least squares. JAX
    differentiates :math:`\rho`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> class capped(fnopt.residuals.RobustLoss):
        ...     def rho(self, z):
        ...         return jnp.tanh(z)
        >>> print(capped().rho(jnp.asarray([0.0, 9.0])).round(4))
        [0. 1.]
    """

    def rho(self, z: jax.Array) -> jax.Array:
        """Evaluate the loss `rho(z)` elementwise, for `z = (r / scale) ** 2`."""
        raise NotImplementedError(
            f"{type(self).__name__} doesn't define rho, expected a method rho(self, z)."
        )

    @property
    def size(self) -> Any:
        """Scale of the loss, which is 1 if the class has no `scale`."""
        return getattr(self, "scale", 1.0)


class soft_l1(RobustLoss):
    r"""Smooth absolute value, quadratic for small residuals and linear for large residuals.

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
        """Evaluate the loss elementwise at `z = (r / scale) ** 2`."""
        return 2 * z / (1 + jnp.sqrt(1 + z))  # sqrt(1 + z) - 1 would cancel for small z


class huber(RobustLoss):
    r"""Huber's loss, quadratic up to `scale` and linear for larger residuals.

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
        """Evaluate the loss elementwise at `z = (r / scale) ** 2`."""
        is_linear = z > 1
        # The derivative of the square root at 0 is infinite, and infinity times 0 is NaN.
        root = jnp.sqrt(jnp.where(is_linear, z, jnp.ones_like(z)))
        return jnp.where(is_linear, 2 * root - 1, z)


class cauchy(RobustLoss):
    r"""Cauchy's loss, which grows logarithmically, so that large outliers have little influence.

    .. math:: \rho(z) = \ln(1 + z)

    The loss isn't convex. The cost may have several minima, so the result depends on the initial
    guess.

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
        """Evaluate the loss elementwise at `z = (r / scale) ** 2`."""
        return jnp.log1p(z)


class arctan(RobustLoss):
    r"""Bounded loss, at most :math:`\tfrac{\pi}{4}` times the squared scale for any outlier.

    .. math:: \rho(z) = \arctan(z)

    The loss isn't convex. The cost may have several minima, so the result depends on the initial
    guess.

    Args:
        scale: The residual above which the influence decreases, in units of the residuals.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> print(fnopt.residuals.arctan().rho(jnp.asarray([0.0, 1.0])).round(4))
        [0.     0.7854]
    """

    scale: float | jax.Array = hyper(default=1.0, gt=0, infinite=True)

    def rho(self, z: jax.Array) -> jax.Array:
        """Evaluate the loss elementwise at `z = (r / scale) ** 2`."""
        return jnp.arctan(z)


class tukey(RobustLoss):
    r"""Tukey's biweight loss, constant for residuals above `scale`.

    .. math:: \rho(z) = \begin{cases} \tfrac13 \left( 1 - (1 - z)^3 \right) & z \le 1 \\
        \tfrac13 & z > 1 \end{cases}

    The loss isn't convex, and residuals above `scale` have a zero gradient. Use an initial guess
    near the solution, for example the solution of a fit with :class:`huber`.

    Args:
        scale: The residual above which a datum has no influence. For normally distributed errors,
            a scale of 4.685 standard deviations has 95 % of the efficiency of least squares.

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
        """Evaluate the loss elementwise at `z = (r / scale) ** 2`."""
        t = jnp.minimum(z, jnp.ones_like(z))
        return t * (1 - t * (1 - t / 3))  # (1 - (1 - t)^3) / 3 without cancellation for small t


class barron(RobustLoss):
    r"""Barron's family of losses, which contains soft L1, Cauchy, Geman-McClure and Welsch losses.

    .. math:: \rho(z) = \frac{2 b}{\alpha}
        \left( \left( \frac{z}{b} + 1 \right)^{\alpha / 2} - 1 \right), \qquad b = |\alpha - 2|

    and the limits of this formula. The loss is least squares for :math:`\alpha = 2`, soft L1 for 1,
    Cauchy for 0, Geman-McClure for -2, and Welsch for :math:`-\infty`. For :math:`\alpha = 0`,
    :math:`\rho(z) = 2 \ln(1 + z / 2)`, and for :math:`-\infty`, :math:`\rho(z) = 2 - 2 e^{-z/2}`.
    The loss isn't convex for :math:`\alpha < 1`.

    Args:
        alpha: The shape parameter, at most 2. A smaller value reduces the influence of outliers.
        scale: The residual above which the loss isn't quadratic, in units of the residuals.

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
        """Evaluate the loss elementwise at `z = (r / scale) ** 2`."""
        alpha = jnp.asarray(self.alpha, z.dtype)
        # `where` selects another branch for alpha = 2 and for the infinite alpha of Welsch's loss.
        # Without finite substitutes, the derivative of the branch not selected would be NaN.
        b = jnp.maximum(2 - alpha, jnp.asarray(jnp.finfo(z.dtype).eps, z.dtype))
        welsch = ~jnp.isfinite(alpha)
        b = jnp.where(welsch, jnp.ones_like(b), b)
        exponent = jnp.where(welsch, jnp.ones_like(alpha), alpha) / 2
        general = b * _box_cox(jnp.log1p(z / b), exponent)
        squares = alpha >= 2
        return jnp.where(welsch, -2 * _expm1(-z / 2), jnp.where(squares, z, general))


@jax.custom_jvp
def _expm1(x: jax.Array) -> jax.Array:
    return jnp.expm1(x)


@_expm1.defjvp
def _expm1_slope(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> Any:
    # JAX's derivative of expm1 is expm1(x) + 1, which cancels to 0 for a large outlier.
    return _expm1(*primals), jnp.exp(*primals) * tangents[0]


def _box_cox(t: jax.Array, a: jax.Array) -> jax.Array:
    r"""Box-Cox transformation of :math:`e^t`: :math:`(e^{a t} - 1) / a`, and `t` for `a = 0`."""
    small = jnp.abs(a) < jnp.asarray(jnp.finfo(a.dtype).eps, a.dtype)
    safe = jnp.where(small, jnp.ones_like(a), a)
    # The term of first order in `a` makes the derivative with respect to `a` correct.
    return jnp.where(small, t + a * t * t / 2, _expm1(safe * t) / safe)


class custom_loss(RobustLoss):
    r"""Make a loss from a function :math:`\rho(z)` of the scaled squares :math:`z = r^2 / c^2`.

    A function that is passed as the `loss` of a fit becomes a `custom_loss`. JAX differentiates the
    function. As in SciPy, the function may also return :math:`\rho, \rho', \rho''`, as an array of
    shape `[3, m]` or as three arrays.

    Args:
        fn: An elementwise function of `z`, of shape `[m]`, in `jax.numpy`. If :math:`\rho(0) = 0`
            and :math:`\rho'(0) = 1`, small residuals have the same cost as in least squares.
        scale: The residual :math:`c` above which the loss isn't quadratic, in units of the
            residuals (`f_scale` in SciPy).

    Raises:
        TypeError: During the fit, if `fn` can't be called with one argument.
        ValueError: During the fit, if `fn` returns another shape than `[m]` or `[3, m]`.

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
        """Evaluate the loss elementwise at `z = (r / scale) ** 2`."""
        if not accepts_args(self.fn, z):
            raise TypeError(
                f"{where()}loss: the function can't be called as loss(z), expected a "
                "function of the scaled squares alone. Let it close over other values."
            )
        with explain_jax_errors("loss", "the function", is_another=True):
            result = self.fn(z)
        if isinstance(result, (tuple, list)):
            result = jnp.stack(jnp.broadcast_arrays(*result))
        if jnp.shape(result) == z.shape:
            return jnp.asarray(result, z.dtype)
        if jnp.shape(result) != (3, *z.shape):
            raise ValueError(
                f"{where()}loss: the function returned shape {jnp.shape(result)} for z of shape "
                f"{z.shape}, expected the same shape, or {(3, *z.shape)} for rho and its two "
                "derivatives."
            )
        # A Taylor polynomial with the user's derivatives: `step` is 0, and its derivative is 1.
        start = jax.lax.stop_gradient(z)
        value, slope, curvature = (jnp.asarray(part, z.dtype) for part in self.fn(start))
        step = z - start
        return value + slope * step + curvature * jnp.square(step) / 2


NAMES = {cls.__name__: cls for cls in (soft_l1, huber, cauchy, arctan, tukey, barron)}


def robust_slopes(loss: RobustLoss, z: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    r"""Evaluate :math:`\rho, \rho'` and :math:`\rho''` of a loss, elementwise.

    Args:
        loss: The loss.
        z: The scaled squares :math:`r^2 / c^2`, of shape `[m]`.

    Returns:
        The loss and its first two derivatives, each of shape `[m]`.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.residuals import huber, robust_slopes
        >>> print([f"{float(v[0]):.4f}" for v in robust_slopes(huber(), jnp.asarray([4.0]))])
        ['3.0000', '0.5000', '-0.0625']
    """
    ones = jnp.ones_like(z)  # the loss is elementwise, so one JVP returns all derivatives

    def value_and_slope(z: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jax.jvp(loss.rho, (z,), (ones,))

    (rho, d1), (_, d2) = jax.jvp(value_and_slope, (z,), (ones,))
    return rho, d1, d2


def named_loss(name: str, scale: Any = 1.0) -> RobustLoss | None:
    """Make the loss with SciPy's name.

    Args:
        name: `'linear'`, `'soft_l1'`, `'huber'`, `'cauchy'`, `'arctan'`, or another loss of fnopt.
        scale: The scale of the loss (`f_scale` in SciPy).

    Returns:
        The loss; None for least squares.

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

"""Cost of a vector of residuals whose blocks have different losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import Value, static
from fnopt.errors import leaves_with_names, where
from fnopt.residuals._prefix import broadcast_prefix
from fnopt.residuals._robust import RobustLoss, custom_loss, named_loss, robust_slopes
from fnopt.sharding import any_row, psum_rows

# Least curvature of a loss relative to its slope. Triggs et al. (2000) and Ceres replace a
# curvature that isn't positive by the slope (1 here). With a tiny curvature, params that only an
# outlier determines take long steps, which reduce the progress of all others. Measured: 540 fits
# with 15 % of outliers took 12,058 evaluations with 0.05, 10,510 with 0.3, 8,885 with 0.6 and
# 11,601 with 1, with as many correct solutions; `python -m benchmarks robust_fits` has such fits.
_FLOOR = 0.6
# A residual above this many times the scale of its loss is an outlier. Its cost is linear, and so
# large that it hides the costs of the others (two of float32's seven digits).
_FAR = 100.0


class _Squares(RobustLoss):
    """Least squares: a loss without a scale."""

    @property
    def size(self) -> float:
        return float("inf")

    def rho(self, z: jax.Array) -> jax.Array:
        return z


class RobustCost(Value):
    r"""The cost :math:`f = \sum_i \tfrac12 c_i^2 \rho_i(r_i^2 / c_i^2)` of a residual vector.

    Args:
        losses: A loss, or None for squares, for each block of the vector.
        sizes: Number of residuals of each block.
        unit: Factor of the scales of the losses, equal to the factor of the residuals.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.residuals import RobustCost, huber
        >>> print(RobustCost((huber(), None), (1, 1)).cost(jnp.asarray([3.0, 3.0])))
        7.0
    """

    losses: tuple[RobustLoss | None, ...]
    sizes: tuple[int, ...] = static()
    unit: float | jax.Array = 1.0

    def clipped(self, r: jax.Array) -> jax.Array:
        """Absolute residuals, clipped at the scale of the loss."""
        return self._map(lambda loss, c, r: jnp.minimum(jnp.abs(r), c), r)

    def in_unit(self, unit: jax.Array) -> RobustCost:
        """Return the cost for residuals multiplied by a number."""
        return RobustCost(self.losses, self.sizes, unit * self.unit)

    def cost(self, r: jax.Array) -> jax.Array:
        """The cost; infinite if a residual isn't finite."""
        return _finite_sum(self._map(_costs, r), r, jnp.inf)

    def clipped_cost(self, r: jax.Array) -> jax.Array:
        """Cost with each residual clipped to a hundred times the scale of its loss.

        Without clipping, the rounding error of a huge residual would exceed the cost of the other
        residuals.
        """

        def cut(loss: RobustLoss, c: jax.Array, r: jax.Array) -> jax.Array:
            return jnp.where(jnp.isfinite(r), jnp.clip(r, -_FAR * c, _FAR * c), r)

        return self.cost(self._map(cut, r))

    def cost_of_squares(self, squares: jax.Array) -> jax.Array:
        """Compute the cost from squared residuals."""
        costs = self._map(lambda loss, c, s: _unscaled(loss, c, s / (c * c), s), squares)
        return jnp.asarray(0.5, squares.dtype) * psum_rows(jnp.sum(costs))

    def reduction(
        self, before: jax.Array, after: jax.Array, pulled: jax.Array | None = None
    ) -> jax.Array:
        r"""Actual reduction of the cost between two residuals; minus infinity if not finite.

        Args:
            before: The residuals at the point, of shape `[m]`.
            after: The residuals at the end of a step `p`.
            pulled: The slopes of the costs along the step, :math:`\rho' r\, (J p)`, if known. The
                slopes replace the reductions of distant outliers, whose cost loses too many digits
                to rounding.
        """
        rows = (before, after) if pulled is None else (before, after, pulled)
        return _finite_sum(self._map(_reductions, *rows), after, -jnp.inf)

    def corrections(self, r: jax.Array, floor: float = _FLOOR) -> tuple[jax.Array, jax.Array]:
        r"""Factors of residuals and Jacobian rows that match the cost to second order.

        .. math:: \hat r = \frac{\rho'}{\sqrt w}\, r, \qquad \hat J = \sqrt w\, J, \qquad
            w = \max(\rho' + 2 z \rho'', \delta \rho')

        Then :math:`\hat J^T \hat r` is the exact gradient of the cost, and :math:`\hat J^T \hat J`
        its Gauss-Newton matrix with the curvature of the loss. The lower bound :math:`\delta \rho'`
        keeps the matrix positive semidefinite if this curvature is negative, and bounds the factor
        of the residuals.

        Args:
            r: The residuals, of shape `[m]`.
            floor: The fraction :math:`\delta`.

        Returns:
            The two factors, each of shape `[m]`.

        Reference:
            Triggs et al. (2000), Bundle adjustment: a modern synthesis, section 4.3.
        """
        slope, curvature = self._map(_slopes, r)
        w = jnp.maximum(curvature, jnp.asarray(floor, r.dtype) * slope)
        # The curvature of a linear loss is rounding error. A compiler may round it differently in
        # two computations, so no decision must depend on it.
        curved = w > jnp.asarray(16 * jnp.finfo(r.dtype).eps, r.dtype) * slope
        root = jnp.sqrt(jnp.where(curved, w, jnp.ones_like(w)))
        zero = jnp.zeros_like(w)
        return jnp.where(curved, slope / root, zero), jnp.where(curved, root, zero)

    def corrected(self, r: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], jax.Array]:
        r"""The function with value :math:`\hat r` and Jacobian :math:`\hat J`.

        The factors are treated as constants, so the second derivative along a direction is
        :math:`\sqrt w\, r''_{vv}`, as a step by :math:`\hat J` requires.
        """

        def function(x: jax.Array) -> jax.Array:
            value = r(x)
            fixed = jax.lax.stop_gradient(value)
            a, b = self.corrections(fixed)
            return a * fixed + b * (value - fixed)

        return function

    def _map(self, fn: Callable[..., Any], *vectors: jax.Array) -> Any:
        """Apply `fn(loss, scale, *parts)` to every block."""
        parts, start = [], 0
        for given, size in zip(self.losses, self.sizes, strict=True):
            loss = _Squares() if given is None else given
            c = jnp.asarray(self.unit * loss.size, vectors[0].dtype)
            parts.append(fn(loss, c, *(v[start : start + size] for v in vectors)))
            start += size
        return jax.tree.map(lambda *blocks: jnp.concatenate(blocks), *parts)


def _finite_sum(terms: jax.Array, r: jax.Array, otherwise: float) -> jax.Array:
    """Return half the sum over all rows; `otherwise` if the sum or a residual isn't finite."""
    total = jnp.asarray(0.5, r.dtype) * psum_rows(jnp.sum(terms))
    finite = jnp.isfinite(total) & ~any_row(~jnp.isfinite(r))
    return jnp.where(finite, total, jnp.asarray(otherwise, r.dtype))


def _scaled_square(c: jax.Array, r: jax.Array) -> tuple[jax.Array, jax.Array]:
    r"""Return the square of a clipped, scaled residual, and the ratio of clipping.

    A residual beyond :math:`\epsilon^{-1.6}` scales is clipped, because the square of a much larger
    residual would overflow.
    """
    most = jnp.asarray(jnp.finfo(r.dtype).eps ** -1.6, r.dtype)
    size = jnp.abs(r / c)
    share = jnp.where(size > most, most / size, jnp.ones_like(size))
    return jnp.square(jnp.clip(r / c, -most, most)), share


def _costs(loss: RobustLoss, c: jax.Array, r: jax.Array) -> jax.Array:
    return _unscaled(loss, c, _scaled_square(c, r)[0], jnp.square(r))


def _unscaled(loss: RobustLoss, c: jax.Array, z: jax.Array, squares: jax.Array) -> jax.Array:
    r"""Compute :math:`c^2 \rho(z)`; the square itself if it is far below :math:`c^2`."""
    # For such a z, c^2 may be out of range and z may underflow.
    below = z < jnp.asarray(jnp.finfo(z.dtype).eps, z.dtype)
    return jnp.where(below, squares, jnp.where(below, jnp.ones_like(c), c * c) * loss.rho(z))


def _slopes(loss: RobustLoss, c: jax.Array, r: jax.Array) -> tuple[jax.Array, jax.Array]:
    r"""Slope :math:`\rho'` and curvature :math:`\rho' + 2 z \rho''`."""
    z, share = _scaled_square(c, r)
    _, d1, d2 = robust_slopes(loss, z)
    # Where the square was clipped, the slope is that of a linear loss, relative to r.
    return share * d1, share * (d1 + 2 * z * d2)


def _reductions(
    loss: RobustLoss,
    c: jax.Array,
    r: jax.Array,
    after: jax.Array,
    pulled: jax.Array | None = None,
) -> jax.Array:
    r"""Return twice the cost reduction of every residual, from `pulled` for distant outliers.

    :math:`r^2 - r_+^2 = (r - r_+)(r + r_+)` keeps all digits of the residuals.
    For a loss and nearby residuals, the product with the slope at the midpoint keeps the digits,
    too. Its relative error is :math:`(z - z_+)^2`; the error of a difference of costs is
    :math:`\epsilon / (z - z_+)`.
    """
    z, z_after = _scaled_square(c, r)[0], _scaled_square(c, after)[0]
    fall = (r - after) * (r + after)
    near = jnp.abs(z - z_after) <= jnp.asarray(jnp.finfo(r.dtype).eps ** (1 / 3), r.dtype) * (1 + z)
    slope = robust_slopes(loss, jnp.where(near, (z + z_after) / 2, z))[1]
    falls = jnp.where(near, fall * slope, c * c * (loss.rho(z) - loss.rho(z_after)))
    if pulled is None:
        return falls
    return jnp.where(near & (jnp.abs(r) > _FAR * c), -2 * pulled, falls)


def robust_cost(loss: Any, residuals: Any) -> RobustCost | None:
    """Assign losses to the blocks of the residuals.

    Args:
        loss: A loss, its name, its function, or None for least squares; or a tree of losses that is
            a prefix of the residuals, such as a list of losses for a list of residual functions.
        residuals: The residuals, or their shapes and dtypes.

    Returns:
        The cost; None if all losses are least squares.

    Raises:
        TypeError: If a loss has another type.
        ValueError: If the tree isn't a prefix of the residuals, or no loss has this name.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.residuals import huber, robust_cost
        >>> robust_cost([huber(), None], [jnp.ones(3), {"a": jnp.ones(2)}]).sizes
        (3, 2)
    """
    values = broadcast_prefix(loss, residuals, "loss", is_leaf=lambda x: isinstance(x, RobustLoss))
    losses = tuple(map(as_loss, values))
    if all(value is None for value in losses):
        return None
    leaves = [leaf for _, leaf in leaves_with_names(residuals)[0]]
    sizes = [leaf.size * (1 + jnp.issubdtype(leaf.dtype, jnp.complexfloating)) for leaf in leaves]
    return RobustCost(losses, tuple(map(int, sizes)))


def as_loss(loss: Any, scale: Any = 1.0) -> RobustLoss | None:
    """Convert a name or a function to a loss with this scale; None for squares."""
    if isinstance(loss, str):
        return named_loss(loss, scale)
    if loss is None or isinstance(loss, RobustLoss):
        return loss
    if callable(loss) and not isinstance(loss, type):
        return custom_loss(loss, scale)
    hint = " Did you forget to call it?" if isinstance(loss, type) else ""
    raise TypeError(
        f"{where()}loss = {loss!r}, expected a robust loss such as "
        "fnopt.residuals.huber(scale=1.0), the name of one, a function rho(z), or None for plain "
        f"squares.{hint}"
    )

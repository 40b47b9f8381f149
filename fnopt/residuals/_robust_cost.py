"""Robust cost of a residual vector, whose blocks may have different losses."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import Value, static
from fnopt.errors import leaves_with_names, where
from fnopt.residuals._prefix import broadcast_prefix
from fnopt.residuals._robust import RobustLoss, custom_loss, named_loss, robust_slopes
from fnopt.sharding import any_row, psum_rows

# Lower bound of a loss's curvature, relative to the slope. Triggs et al. (2000) and Ceres replace a
# curvature that isn't positive by the slope (1 here). With a tiny curvature, params that only an
# outlier determines take long steps, which slow down the other params. 540 fits with 15 % of
# outliers took 12,058 evaluations with 0.05, 10,510 with 0.3, 8,885 with 0.6 and 11,601 with 1. The
# number of correct solutions was equal. `python -m benchmarks robust_fits` has similar fits.
_FLOOR = 0.6
# Ratio of residual to scale above which a residual is a large outlier. With a linear loss, the
# cost of a large outlier is over 100 times the cost of another residual. In their sum, the other
# residuals then lose two of float32's seven digits.
_FAR = 100.0


class _Squares(RobustLoss):
    """The loss of least squares, which has no scale."""

    @property
    def size(self) -> float:
        return float("inf")

    def rho(self, z: jax.Array) -> jax.Array:
        return z


class RobustCost(Value):
    r"""The cost :math:`f = \sum_i \tfrac12 c_i^2 \rho_i(r_i^2 / c_i^2)` of a residual vector.

    Args:
        losses: The loss of each block of the vector; None for least squares.
        sizes: Number of residuals of each block.
        unit: The factor by which the residuals are multiplied; the scales of the losses are
            multiplied by it too.

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
        """Absolute values of the residuals, clipped at the scale of their loss."""
        return self._map(lambda loss, c, r: jnp.minimum(jnp.abs(r), c), r)

    def in_unit(self, unit: jax.Array) -> RobustCost:
        """Return the cost of residuals that are multiplied by a number."""
        return RobustCost(self.losses, self.sizes, unit * self.unit)

    def cost(self, r: jax.Array) -> jax.Array:
        """Evaluate the cost, which is infinite if a residual isn't finite."""
        return _finite_sum(self._map(_costs, r), r, jnp.inf)

    def clipped_cost(self, r: jax.Array) -> jax.Array:
        """Evaluate the cost with each residual clipped to a hundred times the scale of its loss.

        Without clipping, the rounding error of the cost of a huge residual would exceed the cost of
        the other residuals.
        """

        def clip(loss: RobustLoss, c: jax.Array, r: jax.Array) -> jax.Array:
            return jnp.where(jnp.isfinite(r), jnp.clip(r, -_FAR * c, _FAR * c), r)

        return self.cost(self._map(clip, r))

    def cost_of_squares(self, squares: jax.Array) -> jax.Array:
        """Evaluate the cost from squared residuals."""
        costs = self._map(lambda loss, c, s: _unscaled(loss, c, s / (c * c), s), squares)
        return jnp.asarray(0.5, squares.dtype) * psum_rows(jnp.sum(costs))

    def reduction(
        self, before: jax.Array, after: jax.Array, pulled: jax.Array | None = None
    ) -> jax.Array:
        r"""Actual reduction of the cost by a step.

        The reduction is minus infinity if the cost after the step isn't finite.

        Args:
            before: The residuals before the step, of shape `[m]`.
            after: The residuals after the step `p`.
            pulled: The directional derivatives :math:`\rho' r\, (J p)` of the costs. They replace
                the cost differences of large outliers, which lose too many digits to rounding.
        """
        rows = (before, after) if pulled is None else (before, after, pulled)
        return _finite_sum(self._map(_reductions, *rows), after, -jnp.inf)

    def weight_rows(self, J: jax.Array, r: jax.Array) -> jax.Array:
        """Multiply the rows of the Jacobian by the square roots of the losses' curvatures."""
        return J * self.corrections(r, floor=0.0)[1][:, None]

    def corrections(self, r: jax.Array, floor: float = _FLOOR) -> tuple[jax.Array, jax.Array]:
        r"""Factors of residuals and Jacobian rows for the Gauss-Newton model of the cost.

        .. math:: \hat r = \frac{\rho'}{\sqrt w}\, r, \qquad \hat J = \sqrt w\, J, \qquad
            w = \max(\rho' + 2 z \rho'', \delta \rho')

        Then :math:`\hat J^T \hat r` is the exact gradient of the cost. The matrix
        :math:`\hat J^T \hat J` is the Gauss-Newton matrix with the curvature of the loss. The lower
        bound :math:`\delta \rho'` of the curvature keeps this matrix positive semidefinite and
        bounds the factor of the residuals.

        Args:
            r: The residuals, of shape `[m]`.
            floor: The lower bound :math:`\delta` of the curvature relative to the slope.

        Returns:
            The factors of the residuals and of the Jacobian rows, each of shape `[m]`.

        Reference:
            Triggs et al. (2000), Bundle adjustment: a modern synthesis, section 4.3.
        """
        slope, curvature = self._map(_slopes, r)
        w = jnp.maximum(curvature, jnp.asarray(floor, r.dtype) * slope)
        # The curvature of a linear loss is rounding error, of one machine epsilon of the slope on a
        # CPU. XLA may round it differently in two computations, so it must not decide about a
        # residual.
        curved = w > jnp.asarray(16 * jnp.finfo(r.dtype).eps, r.dtype) * slope
        root = jnp.sqrt(jnp.where(curved, w, jnp.ones_like(w)))
        zero = jnp.zeros_like(w)
        return jnp.where(curved, slope / root, zero), jnp.where(curved, root, zero)

    def corrected(self, r: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], jax.Array]:
        r"""Make the function with value :math:`\hat r` and Jacobian :math:`\hat J`.

        The factors are treated as constants, so the second derivative along a direction is
        :math:`\sqrt w\, r''_{vv}`. Geodesic acceleration needs this derivative.
        """

        def corrected_fn(x: jax.Array) -> jax.Array:
            value = r(x)
            constant = jax.lax.stop_gradient(value)
            a, b = self.corrections(constant)
            return a * constant + b * (value - constant)

        return corrected_fn

    def _map(self, fn: Callable[..., Any], *vectors: jax.Array) -> Any:
        """Apply `fn(loss, scale, *blocks)` to every block, and concatenate the results."""
        parts, start = [], 0
        for loss_or_none, size in zip(self.losses, self.sizes, strict=True):
            loss = _Squares() if loss_or_none is None else loss_or_none
            c = jnp.asarray(self.unit * loss.size, vectors[0].dtype)
            parts.append(fn(loss, c, *(v[start : start + size] for v in vectors)))
            start += size
        return jax.tree.map(lambda *blocks: jnp.concatenate(blocks), *parts)


def _finite_sum(terms: jax.Array, r: jax.Array, otherwise: float) -> jax.Array:
    """Return half the sum of the terms, or `otherwise` if the sum or a residual isn't finite."""
    total = jnp.asarray(0.5, r.dtype) * psum_rows(jnp.sum(terms))
    finite = jnp.isfinite(total) & ~any_row(~jnp.isfinite(r))
    return jnp.where(finite, total, jnp.asarray(otherwise, r.dtype))


def _scaled_square(c: jax.Array, r: jax.Array) -> tuple[jax.Array, jax.Array]:
    r"""Return the square of the clipped residual `r / c`, and the ratio of clipped to original.

    A ratio above the cube root of the dtype's largest number is clipped. The second derivative of a
    linear loss contains the cube of the ratio, which would overflow. The cost of such a residual
    already hides the digits of all other costs.
    """
    limit = jnp.asarray(2.0 ** (jnp.finfo(r.dtype).maxexp // 3), r.dtype)
    size = jnp.abs(r / c)
    ratio = jnp.where(size > limit, limit / size, jnp.ones_like(size))
    return jnp.square(jnp.clip(r / c, -limit, limit)), ratio


def _costs(loss: RobustLoss, c: jax.Array, r: jax.Array) -> jax.Array:
    return _unscaled(loss, c, _scaled_square(c, r)[0], jnp.square(r))


def _unscaled(loss: RobustLoss, c: jax.Array, z: jax.Array, squares: jax.Array) -> jax.Array:
    r"""Compute :math:`c^2 \rho(z)`, or the square itself if `z` is below machine epsilon."""
    # Below machine epsilon, rho(z) = z to rounding error. The product could be inf * 0 = NaN,
    # because c^2 may overflow.
    is_square = z < jnp.asarray(jnp.finfo(z.dtype).eps, z.dtype)
    c_squared = jnp.where(is_square, jnp.ones_like(c), c * c)
    return jnp.where(is_square, squares, c_squared * loss.rho(z))


def _slopes(loss: RobustLoss, c: jax.Array, r: jax.Array) -> tuple[jax.Array, jax.Array]:
    r"""Slope :math:`\rho'` and curvature :math:`\rho' + 2 z \rho''` of the loss."""
    z, ratio = _scaled_square(c, r)
    _, d1, d2 = robust_slopes(loss, z)
    # The ratio extends the loss linearly in r beyond the clipped residual.
    return ratio * d1, ratio * (d1 + 2 * z * d2)


def _reductions(
    loss: RobustLoss,
    c: jax.Array,
    r: jax.Array,
    after: jax.Array,
    pulled: jax.Array | None = None,
) -> jax.Array:
    r"""Compute twice the cost reduction of every residual.

    `pulled` replaces the cost differences of large outliers. The product :math:`(r - r_+)(r + r_+)`
    avoids the cancellation of :math:`r^2 - r_+^2`. For a short step, this product times
    :math:`\rho'` at the midpoint is used. The relative error of this formula is :math:`(z -
    z_+)^2`. The difference of two losses has the relative error :math:`\epsilon / (z - z_+)`. The
    two errors are equal at :math:`z - z_+ = \epsilon^{1/3}`.
    """
    z, z_after = _scaled_square(c, r)[0], _scaled_square(c, after)[0]
    squares = (r - after) * (r + after)
    tolerance = jnp.asarray(jnp.finfo(r.dtype).eps ** (1 / 3), r.dtype) * (1 + z)
    is_short = jnp.abs(z - z_after) <= tolerance
    slope = robust_slopes(loss, jnp.where(is_short, (z + z_after) / 2, z))[1]
    reductions = jnp.where(is_short, squares * slope, c * c * (loss.rho(z) - loss.rho(z_after)))
    if pulled is None:
        return reductions
    return jnp.where(is_short & (jnp.abs(r) > _FAR * c), -2 * pulled, reductions)


def robust_cost(loss: Any, residuals: Any) -> RobustCost | None:
    """Make the robust cost that assigns losses to the leaves of the residuals.

    Args:
        loss: A loss, the name of a loss, a function `rho(z)`, or None for least squares. A
            tree of losses must be a prefix of the residuals, such as a list of losses for a list of
            residual functions.
        residuals: The residuals, or their shapes and dtypes.

    Returns:
        The cost; None if all losses are least squares.

    Raises:
        TypeError: If a loss has another type.
        ValueError: If the tree isn't a prefix of the residuals, no loss has this name, or the scale
            of a loss doesn't broadcast to the residuals.

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
    for one_loss, size in zip(losses, sizes, strict=True):
        _check_shapes(one_loss, int(size))
    return RobustCost(losses, tuple(map(int, sizes)))


def _check_shapes(loss: RobustLoss | None, size: int) -> None:
    """Raise an error if a hyper-parameter of a loss doesn't broadcast to the residuals."""
    fields = () if loss is None else dataclasses.fields(loss)
    for name in (field.name for field in fields if field.metadata.get("hyper")):
        value = getattr(loss, name)
        if jnp.shape(value) not in {(), (1,), (size,)}:
            raise ValueError(
                f"{where()}loss: {name} has shape {jnp.shape(value)}, expected () for one number "
                f"or {(size,)} for one number per residual."
            )


def as_loss(loss: Any, scale: Any = 1.0) -> RobustLoss | None:
    """Convert a name or a function to a loss with a scale, or return None for least squares."""
    if isinstance(loss, str):
        return named_loss(loss, scale)
    if loss is None or isinstance(loss, RobustLoss):
        return loss
    if callable(loss) and not isinstance(loss, type):
        return custom_loss(loss, scale)
    hint = " Did you forget to call it?" if isinstance(loss, type) else ""
    raise TypeError(
        f"{where()}loss = {loss!r}, expected a robust loss such as "
        "fnopt.residuals.huber(scale=1.0), the name of a loss, a function rho(z), or None for "
        f"least squares.{hint}"
    )

"""The cost of a vector of residuals whose blocks have losses of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import Value, any_row, leaves_with_names, row_total, static, where
from fnopt.residuals._custom_loss import custom_loss
from fnopt.residuals._prefix import broadcast_prefix
from fnopt.residuals._robust import RobustLoss, named_loss, robust_slopes

# Least curvature of a residual's loss, in units of its slope. By the true one of outliers, which is
# next to nothing, the params that only they determine go far too far, and so hold up all others.
_FLOOR = 0.3
_STILL = 1e-3  # of a residual, by which it hardly moves
_FELT = 100.0  # times its loss's scale: as that a residual counts at most, and is an outlier


class resized(RobustLoss):
    """A loss with another scale.

    Args:
        loss: The loss.
        scale: The scale that counts.
    """

    loss: RobustLoss
    scale: jax.Array

    def rho(self, z: jax.Array) -> jax.Array:
        """The loss of the scaled square."""
        return self.loss.rho(z)


class RobustCost(Value):
    r"""The cost :math:`f = \sum_i \tfrac12 c_i^2 \rho_i(r_i^2 / c_i^2)` of a residual vector.

    Args:
        losses: A loss, or None for plain squares, for each block of the vector.
        sizes: How many residuals each block has.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.residuals import RobustCost, huber
        >>> print(RobustCost((huber(), None), (1, 1)).cost(jnp.asarray([3.0, 3.0])))
        7.0
    """

    losses: tuple[RobustLoss | None, ...]
    sizes: tuple[int, ...] = static()

    def felt(self, r: jax.Array) -> jax.Array:
        """The size of residuals as far as they pull: no more than the scale of their loss."""

        def size(loss: RobustLoss | None, r: jax.Array) -> jax.Array:
            if loss is None:
                return jnp.abs(r)
            return jnp.minimum(jnp.abs(r), jnp.asarray(loss.size, r.dtype))

        return self._map(size, r)

    def in_unit(self, unit: jax.Array) -> RobustCost:
        """The cost of residuals that are multiplied by a number: its scales are, too."""

        def scaled(loss: RobustLoss | None) -> RobustLoss | None:
            return None if loss is None else resized(loss, unit * loss.size)

        return RobustCost(tuple(map(scaled, self.losses)), self.sizes)

    def cost(self, r: jax.Array) -> jax.Array:
        """The cost; infinite where a residual isn't finite."""
        half = jnp.asarray(0.5, r.dtype)
        total = half * row_total(jnp.sum(self._map(_costs, r)))
        finite = jnp.isfinite(total) & ~any_row(~jnp.isfinite(r))
        return jnp.where(finite, total, jnp.asarray(jnp.inf, r.dtype))

    def felt_cost(self, r: jax.Array) -> jax.Array:
        """The cost in which no residual counts as more than a hundred times its loss's scale.

        What an outlier costs beyond that only hides what the others do: its pull is constant, or
        less, and digits of costs as large show nothing else.
        """

        def cut(loss: RobustLoss | None, r: jax.Array) -> jax.Array:
            if loss is None:
                return r
            most = jnp.asarray(_FELT, r.dtype) * jnp.asarray(loss.size, r.dtype)
            return jnp.where(jnp.isfinite(r), jnp.clip(r, -most, most), r)

        return self.cost(self._map(cut, r))

    def cost_of_squares(self, squares: jax.Array) -> jax.Array:
        """The cost of residuals whose squares are known."""
        total = row_total(jnp.sum(self._map(_costs_of_squares, squares)))
        return jnp.asarray(0.5, squares.dtype) * total

    def reduction(
        self, before: jax.Array, after: jax.Array, pulled: jax.Array | None = None
    ) -> jax.Array:
        r"""By how much the cost falls from one residual to another; minus infinity if not finite.

        Args:
            before: The residuals at the point, of shape `[m]`.
            after: Those at the end of a step `p`.
            pulled: The slopes of their costs along the step, :math:`\rho' r\, (J p)`, if known.
                Outliers that are far out count by these, as they do in the gradient: of what their
                cost changes by, rounding leaves few digits.
        """
        half = jnp.asarray(0.5, before.dtype)
        falls = self._map(_reductions, before, after)
        if pulled is not None:
            still = jnp.abs(after - before) < jnp.abs(before) * _STILL
            falls = jnp.where(self._map(_is_far, before) & still, -2 * pulled, falls)
        total = half * row_total(jnp.sum(falls))
        finite = jnp.isfinite(total) & ~any_row(~jnp.isfinite(after))
        return jnp.where(finite, total, jnp.asarray(-jnp.inf, before.dtype))

    def corrections(self, r: jax.Array, floor: float = _FLOOR) -> tuple[jax.Array, jax.Array]:
        r"""The factors of residuals and rows of the Jacobian that match the cost to second order.

        .. math:: \hat r = \frac{\rho'}{\sqrt w}\, r, \qquad \hat J = \sqrt w\, J, \qquad
            w = \max(\rho' + 2 z \rho'', \delta \rho')

        Then :math:`\hat J^T \hat r` is the exact gradient of the cost, and :math:`\hat J^T \hat J`
        its Gauss-Newton matrix with the loss's own curvature. Where that is negative, or nearly,
        it is kept at a fraction of the slope: the matrix stays positive semidefinite, and
        no residual is blown up by a division by next to nothing.

        Args:
            r: The residuals, of shape `[m]`.
            floor: The fraction :math:`\delta`.

        Returns:
            The two factors, each of shape `[m]`.

        Reference:
            Triggs et al. (2000), Bundle adjustment: a modern synthesis, section 4.3.
        """
        slope = self._map(lambda loss, r: _slopes(loss, r)[0], r)
        curvature = self._map(lambda loss, r: _slopes(loss, r)[1], r)
        w = jnp.maximum(curvature, jnp.asarray(floor, r.dtype) * slope)
        # Of a straight line's curvature only rounding is left. A compiler may round it differently
        # where it computes it twice, so no decision must hang on that.
        alive = w > jnp.asarray(16 * jnp.finfo(r.dtype).eps, r.dtype) * slope
        root = jnp.sqrt(jnp.where(alive, w, jnp.ones_like(w)))
        zero = jnp.zeros_like(w)
        return jnp.where(alive, slope / root, zero), jnp.where(alive, root, zero)

    def corrected(self, r: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], jax.Array]:
        r"""The function whose value is :math:`\hat r` and whose Jacobian is :math:`\hat J`.

        The factors count as constants, so its second derivative along a direction is
        :math:`\sqrt w\, r''_{vv}`, which is what a step by :math:`\hat J` needs.
        """

        def function(x: jax.Array) -> jax.Array:
            value = r(x)
            held = jax.lax.stop_gradient(value)
            a, b = self.corrections(held)
            return a * held + b * (value - held)

        return function

    def _map(self, fn: Callable[..., jax.Array], *vectors: jax.Array) -> jax.Array:
        """Applies `fn(loss, *parts)` to every block."""
        parts, start = [], 0
        for loss, size in zip(self.losses, self.sizes, strict=True):
            parts.append(fn(loss, *(v[start : start + size] for v in vectors)))
            start += size
        return jnp.concatenate(parts)


def _scaled_square(loss: RobustLoss, r: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The scale, and the squares in its unit: of what is far beyond it, one that is in range."""
    c, most = jnp.asarray(loss.size, r.dtype), _most(r.dtype)
    return c, jnp.square(jnp.clip(r / c, -most, most))


def _most(dtype: Any) -> jax.Array:
    """The most times its scale that a residual counts: no other has digits beside such a one."""
    return jnp.asarray(jnp.finfo(dtype).eps ** -1.6, dtype)


def _is_far(loss: RobustLoss | None, r: jax.Array) -> jax.Array:
    """Whether residuals are so far beyond the scale of their loss that their cost is a line."""
    if loss is None:
        return jnp.zeros(r.shape, bool)
    return jnp.abs(r) > jnp.asarray(_FELT, r.dtype) * jnp.asarray(loss.size, r.dtype)


def _costs(loss: RobustLoss | None, r: jax.Array) -> jax.Array:
    if loss is None:
        return jnp.square(r)
    c, z = _scaled_square(loss, r)
    return _unscaled(loss, c, z, jnp.square(r))


def _costs_of_squares(loss: RobustLoss | None, squares: jax.Array) -> jax.Array:
    if loss is None:
        return squares
    c = jnp.asarray(loss.size, squares.dtype)
    return _unscaled(loss, c, squares / (c * c), squares)


def _unscaled(loss: RobustLoss, c: jax.Array, z: jax.Array, squares: jax.Array) -> jax.Array:
    r""":math:`c^2 \rho(z)`, which is the square itself where that is far below :math:`c^2`."""
    below = z < jnp.asarray(jnp.finfo(z.dtype).eps, z.dtype)  # c^2 may be out of range, z be 0
    return jnp.where(below, squares, jnp.where(below, jnp.ones_like(c), c * c) * loss.rho(z))


def _slopes(loss: RobustLoss | None, r: jax.Array) -> tuple[jax.Array, jax.Array]:
    r"""Slope :math:`\rho'` and curvature :math:`\rho' + 2 z \rho''`."""
    if loss is None:
        return jnp.ones_like(r), jnp.ones_like(r)
    c, z = _scaled_square(loss, r)
    _, d1, d2 = robust_slopes(loss, z)
    # Where the square was cut the slope is that of a straight line: it goes with r.
    size, most = jnp.abs(r / c), _most(r.dtype)
    cut = jnp.where(size > most, most / size, jnp.ones_like(size))
    return cut * d1, cut * (d1 + 2 * z * d2)


def _reductions(loss: RobustLoss | None, r: jax.Array, after: jax.Array) -> jax.Array:
    r"""Twice the fall of every residual's cost.

    :math:`r^2 - r_+^2 = (r - r_+)(r + r_+)` keeps the digits that the residuals themselves have.
    For a loss, so does the slope in the middle times that, where the two are near.
    """
    if loss is None:
        return (r - after) * (r + after)
    c, z = _scaled_square(loss, r)
    _, z_after = _scaled_square(loss, after)
    fall = (r - after) * (r + after)
    near = jnp.abs(z - z_after) <= jnp.asarray(jnp.finfo(r.dtype).eps ** 0.4, r.dtype) * (1 + z)
    middle = jnp.where(near, (z + z_after) / 2, z)
    slope = robust_slopes(loss, middle)[1]
    return jnp.where(near, fall * slope, c * c * (loss.rho(z) - loss.rho(z_after)))


def robust_cost(loss: Any, residuals: Any) -> RobustCost | None:
    """Lays losses along the residuals.

    Args:
        loss: A loss, its name, its function, or None for plain squares; or a tree of these like
            the residuals, or like their top: a list of losses for a list of residual functions.
        residuals: The residuals, or their shapes and dtypes.

    Returns:
        The cost; None if all of it is plain squares.

    Raises:
        TypeError: If a loss is none.
        ValueError: If the tree doesn't fit, or there is no loss of that name.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.residuals import huber, robust_cost
        >>> robust_cost([huber(), None], [jnp.ones(3), {"a": jnp.ones(2)}]).sizes
        (3, 2)
    """
    values = broadcast_prefix(loss, residuals, "loss", is_leaf=lambda x: isinstance(x, RobustLoss))
    losses = tuple(_checked(value) for value in values)
    if all(value is None for value in losses):
        return None
    leaves = [leaf for _, leaf in leaves_with_names(residuals)[0]]
    sizes = [leaf.size * (1 + jnp.issubdtype(leaf.dtype, jnp.complexfloating)) for leaf in leaves]
    return RobustCost(losses, tuple(map(int, sizes)))


def _checked(loss: Any) -> RobustLoss | None:
    if isinstance(loss, str):
        return named_loss(loss)
    if loss is None or isinstance(loss, RobustLoss):
        return loss
    if callable(loss) and not isinstance(loss, type):
        return custom_loss(loss)
    hint = " Did you forget to call it?" if isinstance(loss, type) else ""
    raise TypeError(
        f"{where()}loss = {loss!r}, expected a robust loss such as "
        "fnopt.residuals.huber(scale=1.0), the name of one, a function rho(z), or None for plain "
        f"squares.{hint}"
    )

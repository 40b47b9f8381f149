"""Scaling of the params and residuals of each fit, so that their squares are in range."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.core import Tracer

from fnopt.curves.batched._data import BatchData, FitUnits
from fnopt.linear import divide
from fnopt.numerics import floor_power_of_two
from fnopt.residuals import RobustCost

# float32 numbers between _ORDINARY and its inverse aren't scaled, because products of four such
# numbers are in range, for example the square of a derivative. Larger residuals are scaled to
# _LARGE, smaller residuals to _SMALL. A param with an initial guess of zero isn't scaled. The ratio
# of derivatives to residuals may then be as far from 1 as the data. The squares of derivatives and
# residuals are in range for data from 2**-108 to 2**96.
_ORDINARY, _SMALL, _LARGE = 2.0**20, 2.0**-36, 2.0**48


def needs_units(data: BatchData, losses: RobustCost | None) -> bool:
    """Whether fits need scaling.

    In float32, fits need scaling if the numbers are traced or a number isn't ordinary. In float64,
    fits are never scaled, because squares of numbers between 1e-154 and 1e154 are in range.
    """
    if data.x0.dtype == jnp.float64:
        return False
    if any(isinstance(a, Tracer) for a in jax.tree.leaves((data, losses))):
        return True
    return bool(_has_other_scales(data, losses))


@jax.jit
def _has_other_scales(data: BatchData, losses: RobustCost | None) -> jax.Array:
    """Whether a scale isn't 1."""
    units = _scales(data, losses)
    return jnp.any(units.params != 1) | jnp.any(units.residuals != 1)


def scale_fits(data: BatchData, losses: RobustCost | None) -> BatchData:
    """Scale initial guesses, data and bounds by powers of two, which is exact.

    In float32, squares overflow above 1.8e19 and underflow below 1e-19. A parameter is scaled by
    its initial guess. The residuals are scaled by the magnitude of the data, or by the scale of the
    loss if it is smaller.
    """
    # The scales cancel in the results, so they need no derivative.
    units = lax.stop_gradient(_scales(data, losses))
    x0, box = jax.tree.map(lambda a: a / units.params, (data.x0, data.box))
    return data._replace(x0=x0, own=data.own._replace(units=units), box=box)


def _scales(data: BatchData, losses: RobustCost | None) -> FitUnits:
    size, points = jnp.abs(data.x0), data.points
    params = jnp.where(_is_ordinary(size), jnp.ones_like(size), floor_power_of_two(size))
    y = jnp.abs(points.y.astype(size.dtype))
    if points.sigma is not None:
        y = y / points.sigma.astype(size.dtype)
    if losses is not None:
        y = jax.vmap(losses.clipped)(y.reshape(y.shape[0], -1)).reshape(y.shape)
    mask = jnp.isfinite(y) if points.mask is None else jnp.isfinite(y) & points.mask
    largest = jnp.max(jnp.where(mask, y, jnp.zeros_like(y)), axis=tuple(range(1, y.ndim)))
    target = jnp.where(largest > 1, jnp.full_like(largest, _LARGE), jnp.full_like(largest, _SMALL))
    residuals = divide(target, floor_power_of_two(largest))
    return FitUnits(params, jnp.where(_is_ordinary(largest), jnp.ones_like(largest), residuals))


def _is_ordinary(size: jax.Array) -> jax.Array:
    """Whether magnitudes need no scaling, or can't be scaled because they are 0 or not finite."""
    is_moderate = (size >= 1 / _ORDINARY) & (size <= _ORDINARY)
    return is_moderate | (size <= 0) | ~jnp.isfinite(size)

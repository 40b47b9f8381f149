"""Scaling of the params and residuals of a fit that keeps their squares in range."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.core import Tracer

from fnopt.curves.batched._data import BatchData, FitUnits
from fnopt.linear import divide
from fnopt.numerics import floor_power_of_two
from fnopt.residuals import RobustCost

# float32 values between _ORDINARY and its inverse aren't scaled, because products of four such
# numbers are in range, for example the square of a derivative. Other values are scaled to _SMALL or
# _LARGE. A param with an initial guess of zero isn't scaled, so derivatives may differ from the
# residuals by as large a factor as the data from 1. The squares of both are in range for data from
# 2**-108 to 2**96.
_ORDINARY, _SMALL, _LARGE = 2.0**20, 2.0**-36, 2.0**48


def needs_units(data: BatchData, losses: RobustCost | None) -> bool:
    """Whether fits need scaling: in float32, unless the numbers are concrete and in range.

    In float64, squares of numbers between 1e-154 and 1e154 are in range.
    """
    if data.x0.dtype == jnp.float64:
        return False
    if any(isinstance(a, Tracer) for a in jax.tree.leaves((data, losses))):
        return True
    return bool(_has_units(data, losses))


@jax.jit
def _has_units(data: BatchData, losses: RobustCost | None) -> jax.Array:
    units = _units(data, losses)
    return jnp.any(units.params != 1) | jnp.any(units.residuals != 1)


def in_units(data: BatchData, losses: RobustCost | None) -> BatchData:
    """Scale initial guesses, data and bounds by powers of two, which is exact.

    In float32 squares overflow beyond 1.8e19 and underflow below 1e-19. The scale of a parameter is
    its initial guess. The scale of the residuals is the magnitude of the data, or the scale of the
    loss if this is smaller.
    """
    # The scales cancel in the results, so no derivative goes through them.
    units = lax.stop_gradient(_units(data, losses))
    x0, box = jax.tree.map(lambda a: a / units.params, (data.x0, data.box))
    return data._replace(x0=x0, own=data.own._replace(units=units), box=box)


def _units(data: BatchData, losses: RobustCost | None) -> FitUnits:
    size, points = jnp.abs(data.x0), data.points
    params = jnp.where(_is_ordinary(size), jnp.ones_like(size), floor_power_of_two(size))
    y = jnp.abs(points.y.astype(size.dtype))
    if points.sigma is not None:
        y = y / points.sigma.astype(size.dtype)
    if losses is not None:
        y = jax.vmap(losses.clipped)(y.reshape(y.shape[0], -1)).reshape(y.shape)
    counts = jnp.isfinite(y) if points.mask is None else jnp.isfinite(y) & points.mask
    most = jnp.max(jnp.where(counts, y, jnp.zeros_like(y)), axis=tuple(range(1, y.ndim)))
    far = jnp.where(most > 1, jnp.full_like(most, _LARGE), jnp.full_like(most, _SMALL))
    unit = divide(far, floor_power_of_two(most))
    return FitUnits(params, jnp.where(_is_ordinary(most), jnp.ones_like(most), unit))


def _is_ordinary(size: jax.Array) -> jax.Array:
    inside = (size >= 1 / _ORDINARY) & (size <= _ORDINARY)
    return inside | (size <= 0) | ~jnp.isfinite(size)

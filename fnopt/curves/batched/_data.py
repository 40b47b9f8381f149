"""Arrays of a batch of fits, separated into arrays of each fit and shared arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from fnopt.curves._curve_data import as_floating, read, warn_if_coarse
from fnopt.errors import leaf_text, leaves_with_names
from fnopt.numerics import broadcasts_to, default_float, per_row
from fnopt.residuals import Box, as_vector
from fnopt.sharding import explicit_spec, replicate, reshard_to, varying_axes

NAME = "curve_fit_batch"


class FitUnits(NamedTuple):
    """Scales of the params and residuals of every fit."""

    params: jax.Array  # [fits, n], the params divided by the scaled params
    residuals: jax.Array  # [fits], the scaled residuals divided by the residuals


class Points(NamedTuple):
    """Data of one fit or of all fits, where None is a field without data or in another object."""

    x: Any
    y: Any = None
    sigma: jax.Array | None = None
    mask: jax.Array | None = None
    units: FitUnits | None = None
    fixed: jax.Array | None = None  # [fits, n], mask of the params that are fixed by equal bounds


class BatchData(NamedTuple):
    """Arrays of a batch of fits."""

    x0: jax.Array  # [fits, n], the initial guesses
    shared: Points  # data that all fits share
    own: Points  # data of each fit, with a leading axis
    box: Box | None  # bounds of shape [fits, n]

    def fit(self, row: Callable[[jax.Array], Any]) -> BatchData:
        """Select one fit with a function `row` that selects its entries from an array."""
        return jax.tree.map(row, self._replace(shared=Points(None)))._replace(shared=self.shared)

    @property
    def points(self) -> Points:
        """The data of all fits together with the shared data."""
        return merge_points(self.shared, self.own)


def one_fit(data: BatchData) -> tuple[tuple[Any, ...], Points]:
    """Params and data of one fit, as arguments for tracing.

    The arguments are `jax.ShapeDtypeStruct`, or arrays of the first fit if arrays vary over mesh
    axes, because a `ShapeDtypeStruct` doesn't contain these axes.
    """

    def row(a: jax.Array) -> Any:
        return a[0] if varying_axes(a) else jax.ShapeDtypeStruct(a.shape[1:], a.dtype)

    fit, n = data.fit(row), data.x0.shape[1]
    if isinstance(fit.x0, jax.ShapeDtypeStruct):
        return (jax.ShapeDtypeStruct((), fit.x0.dtype),) * n, fit.points
    return tuple(fit.x0), fit.points


def checked_y(y: Any) -> jax.Array:
    """Check the data and convert them to an array of shape `[fits, ...]`."""
    data = read(y, "y", NAME)
    y = as_floating(data)
    if y.ndim < 2 or 0 in y.shape[1:]:
        raise ValueError(
            f"{NAME}: y has shape {y.shape}, expected [fits, points] with at least one point. "
            "For a single fit, use fnopt.curve_fit."
        )
    if jnp.iscomplexobj(y):
        raise TypeError(
            f"{NAME}: y is {y.dtype}, expected real data. Concatenate the real and the imaginary "
            "parts along the points."
        )
    warn_if_coarse(_first_fit(data), y.dtype, "y", NAME)
    return y


def _first_fit(data: Any) -> Any:
    """Data of the first fit, which represent all fits in a check, or None for JAX arrays."""
    return data[:1] if isinstance(data, np.ndarray) else None


def split_points(
    x: Any, y: jax.Array, sigma: Any, mask: Any, x_per_fit: bool
) -> tuple[Points, Points]:
    """Check the data, and separate shared data from data with a leading axis of fits."""
    data = read(x, "x", NAME) if hasattr(x, "__array__") else x
    x = jax.tree.map(jnp.asarray, as_vector(data))
    if x_per_fit:
        _check_leading_axis(x, y.shape[0], "x")
    if isinstance(x, jax.Array):
        warn_if_coarse(_first_fit(data) if x_per_fit else data, default_float(), "x", NAME)
    if sigma is not None:
        sigma = _check_broadcasts(as_floating(read(sigma, "sigma", NAME)), y, "sigma")
        _check_positive(sigma)
    if mask is not None:
        mask = _check_broadcasts(_as_mask(read(mask, "mask", NAME)), y, "mask")
    if sigma is not None and (isinstance(sigma, Tracer) or np.any(np.isinf(np.asarray(sigma)))):
        used = sigma != jnp.inf
        mask = used if mask is None else mask & used
    shared, own = Points(x), Points(None, y)
    if x_per_fit:
        shared, own = Points(None), Points(x, y)
    for name, value in {"sigma": sigma, "mask": mask}.items():
        if value is None:
            continue
        if value.ndim == y.ndim and value.shape[0] == y.shape[0]:
            own = own._replace(**{name: value})
        else:
            has_fit_axis = value.ndim == y.ndim  # an axis of length 1, which broadcasts to all fits
            shared = shared._replace(**{name: value[0] if has_fit_axis else value})
    return jax.tree.map(replicate, shared), jax.tree.map(_shard_fits_only, own)


def _shard_fits_only(x: jax.Array) -> jax.Array:
    """Replicate all axes except the first, so that each device has all points of a fit."""
    return reshard_to(x, (*explicit_spec(x)[:1], *(None,) * (x.ndim - 1)))


def _check_leading_axis(tree: Any, fits: int, what: str) -> None:
    for path, leaf in leaves_with_names(tree)[0]:
        if jnp.ndim(leaf) == 0 or leaf.shape[0] != fits:
            raise ValueError(
                f"{NAME}: {what}: {leaf_text(path)} has shape {jnp.shape(leaf)}, expected a "
                f"leading axis of length {fits}, with one entry for each fit."
            )


def _check_broadcasts(a: jax.Array, y: jax.Array, what: str) -> jax.Array:
    if not broadcasts_to(a.shape, y.shape):
        raise ValueError(
            f"{NAME}: {what} has shape {a.shape}, expected a shape that broadcasts to y's "
            f"{y.shape}: {y.shape[1:]} (shared by all fits), {y.shape} (one array per "
            f"fit) or {(y.shape[0], *(1,) * (y.ndim - 1))} (one scalar per fit)."
        )
    return a


def _check_positive(sigma: jax.Array) -> None:
    is_traced = isinstance(sigma, Tracer)
    if jnp.iscomplexobj(sigma) or not (is_traced or np.all(np.asarray(sigma) > 0)):
        raise ValueError(
            f"{NAME}: sigma contains values that are not positive, expected standard deviations "
            "> 0. Use mask to exclude points."
        )


def _as_mask(mask: Any) -> jax.Array:
    mask = jnp.asarray(mask)
    if mask.dtype != jnp.bool_:
        raise TypeError(
            f"{NAME}: mask is {mask.dtype}, expected a bool array, which is True for valid points."
        )
    return mask


def merge_points(shared: Points, own: Points) -> Points:
    """Combine shared arrays with the arrays of one fit or of all fits."""
    fields = {name: value for name, value in own._asdict().items() if value is not None}
    return shared._replace(**fields)


def fill_masked(points: Points) -> Points:
    """Replace each masked point of a fit by a copy of a valid point.

    Masked points may be NaN. Their derivatives would then be NaN, even after a multiplication by 0.
    """
    y = points.y
    if points.mask is None:
        return points
    mask = jnp.broadcast_to(points.mask, y.shape)

    def fill(a: jax.Array) -> jax.Array:
        if a.shape[: mask.ndim] != mask.shape:
            return a
        rows = a.reshape(mask.size, *a.shape[mask.ndim :])
        row_mask = per_row(jnp.ravel(mask), rows)
        return jnp.where(row_mask, rows, rows[jnp.argmax(mask)]).reshape(a.shape)

    x, y, sigma = jax.tree.map(fill, (points.x, y, points.sigma))
    return points._replace(x=x, y=y, sigma=sigma)

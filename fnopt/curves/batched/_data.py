"""The arrays of many fits: the arrays of each fit, and the arrays that all fits share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from fnopt.curves._curve_data import as_floating, read, warn_if_coarse
from fnopt.errors import leaf_text, leaves_with_names
from fnopt.numerics import default_float, per_row
from fnopt.residuals import Box, as_vector
from fnopt.sharding import explicit_spec, replicate, reshard_to, varying_axes

NAME = "curve_fit_batch"


class FitUnits(NamedTuple):
    """Scale factors of every fit; None without scaling."""

    params: jax.Array  # [fits, n], factors from scaled params to params
    residuals: jax.Array  # [fits], factors of the residuals


class Points(NamedTuple):
    """Data of curve fits; a missing field is None."""

    x: Any
    y: Any = None
    sigma: jax.Array | None = None
    mask: jax.Array | None = None
    units: FitUnits | None = None


class BatchData(NamedTuple):
    """The arrays of many fits."""

    x0: jax.Array  # [fits, n], the initial guesses
    shared: Points  # data that all fits share
    own: Points  # data of each fit, with a leading axis
    box: Box | None  # bounds of shape [fits, n]

    def fit(self, row: Callable[[jax.Array], Any]) -> BatchData:
        """Return the arrays of one fit; `row` selects the fit's entries from an array."""
        return jax.tree.map(row, self._replace(shared=Points(None)))._replace(shared=self.shared)

    @property
    def points(self) -> Points:
        """Return the points of a fit, from the arrays of this fit and the shared arrays."""
        return joined(self.shared, self.own)


def one_fit(data: BatchData) -> tuple[tuple[Any, ...], Points]:
    """Return placeholders for the numbers and points of one fit, for tracing functions.

    If arrays vary over devices, which shapes don't show, the first fit is returned.
    """

    def row(a: jax.Array) -> Any:
        return a[0] if varying_axes(a) else jax.ShapeDtypeStruct(a.shape[1:], a.dtype)

    fit, n = data.fit(row), data.x0.shape[1]
    if isinstance(fit.x0, jax.ShapeDtypeStruct):
        return (jax.ShapeDtypeStruct((), fit.x0.dtype),) * n, fit.points
    return tuple(fit.x0), fit.points


def checked_y(y: Any) -> jax.Array:
    """Check the data and convert them to an array of shape `[fits, ...]`."""
    given = read(y, "y", NAME)
    y = as_floating(given)
    if y.ndim < 2 or 0 in y.shape[1:]:
        raise ValueError(
            f"{NAME}: y has shape {y.shape}, expected [fits, points] with at least one point. "
            "For a single fit use fnopt.curve_fit."
        )
    if jnp.iscomplexobj(y):
        raise TypeError(
            f"{NAME}: y is {y.dtype}, expected real data. Stack real and imaginary part as points."
        )
    warn_if_coarse(_first(given), y.dtype, "y", NAME)
    return y


def _first(given: Any) -> Any:
    """Return the first fit's data on the host, as an example for all fits."""
    return given[:1] if isinstance(given, np.ndarray) else None


def split(x: Any, y: jax.Array, sigma: Any, mask: Any, x_per_fit: bool) -> tuple[Points, Points]:
    """Separate data that all fits share from the data of each fit (with a leading axis)."""
    given = read(x, "x", NAME) if hasattr(x, "__array__") else x
    x = jax.tree.map(jnp.asarray, as_vector(given))
    if x_per_fit:
        _check_leading(x, y.shape[0], "x")
    if isinstance(x, jax.Array):
        warn_if_coarse(_first(given) if x_per_fit else given, default_float(), "x", NAME)
    if sigma is not None:
        sigma = _check_broadcasts(as_floating(sigma), y, "sigma")
        _check_positive(sigma)
    if mask is not None:
        mask = _check_broadcasts(_as_mask(mask), y, "mask")
    shared, own = Points(x), Points(None, y)
    if x_per_fit:
        shared, own = Points(None), Points(x, y)
    for name, value in {"sigma": sigma, "mask": mask}.items():
        if value is None:
            continue
        if value.ndim == y.ndim and value.shape[0] == y.shape[0]:
            own = own._replace(**{name: value})
        else:
            lead = value.ndim == y.ndim  # a leading axis of length one
            shared = shared._replace(**{name: value[0] if lead else value})
    # Sharded along the leading axis at most, so that each device has all points of a fit.
    whole = lambda x: reshard_to(x, (*explicit_spec(x)[:1], *(None,) * (x.ndim - 1)))  # noqa: E731
    return jax.tree.map(replicate, shared), jax.tree.map(whole, own)


def _check_leading(tree: Any, fits: int, what: str) -> None:
    for path, leaf in leaves_with_names(tree)[0]:
        if jnp.ndim(leaf) == 0 or leaf.shape[0] != fits:
            raise ValueError(
                f"{NAME}: {what}: {leaf_text(path)} has shape {jnp.shape(leaf)}, expected a "
                f"leading axis of length {fits}, one entry for each fit."
            )


def _check_broadcasts(a: jax.Array, y: jax.Array, what: str) -> jax.Array:
    try:
        fits = np.broadcast_shapes(a.shape, y.shape) == y.shape
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(
            f"{NAME}: {what} has shape {a.shape}, expected a shape that broadcasts to y's "
            f"{y.shape}: {y.shape[1:]} (shared by all fits), {y.shape} (one array per "
            f"fit) or {(y.shape[0], *(1,) * (y.ndim - 1))} (one scalar per fit)."
        )
    return a


def _check_positive(sigma: jax.Array) -> None:
    if not isinstance(sigma, Tracer) and not np.all(np.asarray(sigma) > 0):
        raise ValueError(
            f"{NAME}: sigma holds values that are not positive, expected standard "
            "deviations > 0. Exclude points by mask."
        )


def _as_mask(mask: Any) -> jax.Array:
    mask = jnp.asarray(mask)
    if mask.dtype != jnp.bool_:
        raise TypeError(f"{NAME}: mask is {mask.dtype}, expected bool: True for the points to fit.")
    return mask


def joined(shared: Points, own: Points) -> Points:
    """Combine the arrays of one fit and the shared arrays."""
    given = {name: value for name, value in own._asdict().items() if value is not None}
    return shared._replace(**given)


def filled(points: Points) -> Points:
    """Replace each masked point of a fit by a valid point.

    Masked points may be NaN, and the derivative at a NaN isn't zero.
    """
    y, given = points.y, points.mask
    if given is None:
        return points
    mask = jnp.broadcast_to(given, y.shape)

    def fill(a: jax.Array) -> jax.Array:
        if a.shape[: mask.ndim] != mask.shape:
            return a
        rows = a.reshape(mask.size, *a.shape[mask.ndim :])
        counts = per_row(jnp.ravel(mask), rows)
        return jnp.where(counts, rows, rows[jnp.argmax(mask)]).reshape(a.shape)

    x, y, sigma = jax.tree.map(fill, (points.x, y, points.sigma))
    return points._replace(x=x, y=y, sigma=sigma)

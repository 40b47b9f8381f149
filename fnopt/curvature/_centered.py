"""Centered log-derivatives of a wave function at samples, as a linear operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.curvature._batch_jacobian import batch_jacobian
from fnopt.errors import leaf_text, leaves_with_names, type_text
from fnopt.numerics import is_inexact, per_row


class CenteredJacobian:
    r"""The rows :math:`X_s = \sqrt{w_s} (O_s - \bar O)` of the log-derivatives `O` of an amplitude.

    .. math:: O_{s\theta} = \frac{\partial \log \psi_\theta(s)}{\partial \theta}, \qquad
              \bar O = \sum_s w_s O_s

    Complex numbers are represented as pairs of real numbers. The real and imaginary parts of a
    complex param are two params, and the two parts of a complex row are two rows. The real Gram
    matrix leads to the same solution as the complex matrix. If the function is holomorphic,
    :math:`X^\top X` represents the complex matrix :math:`S = X^\dagger X`; otherwise it represents
    the real part of :math:`S`.

    Args:
        log_amplitude_fn: `log_psi(params, sample)`, a real or complex scalar, of ONE sample.
        params: The params, real or complex.
        samples: Arrays with a leading axis of `n` samples.
        weights: Weight of each sample, `[n]`; `None` for equal weights.
        dtype: The dtype of factorizations in the sample space.
        method: As in `batch_jacobian`.
        chunk_size: As in `batch_jacobian`.
        axis_name: As in `batch_jacobian`.
        name: The public function that the user called, for messages.
    """

    def __init__(
        self,
        log_amplitude_fn: Callable[[Any, Any], jax.Array],
        params: Any,
        samples: Any,
        weights: Any,
        *,
        dtype: Any,
        method: str,
        chunk_size: int | None,
        axis_name: Any,
        name: str,
    ) -> None:
        _check_params(params, name)
        self._params, self.dtype = params, dtype

        def amplitude(split: Any, sample: Any) -> Any:
            value = log_amplitude_fn(_join_parts(split, params), sample)
            if not hasattr(value, "dtype") or jnp.shape(value) or not is_inexact(value):
                raise TypeError(
                    f"{name}: log_amplitude_fn(params, sample) returned {type_text(value)}, "
                    "expected a real or complex scalar, the logarithm of the amplitude of ONE "
                    "sample."
                )
            return value

        options = {"method": method, "chunk_size": chunk_size, "axis_name": axis_name}
        self.J = batch_jacobian(amplitude, **options)(_split(params), samples)
        # Record the Jacobian before any loop: a tracer cached inside a loop would leak out of it.
        _ = self.J.vector
        ((self.count, self.width),) = self.J.sizes
        self.rows: int = self.count * self.width
        w = jnp.ones(self.count, dtype) if weights is None else self._real(weights, name, "weights")
        # A negative weight becomes NaN, so that the error shows in the result; zero would hide it.
        w = jnp.where(w >= 0, w, jnp.full_like(w, jnp.nan))
        # A power of two scales the weights without rounding and keeps their sum finite. A division
        # by the largest weight may fail: XLA multiplies by the reciprocal, which underflows.
        scale = jnp.asarray(2.0 ** (-jnp.finfo(dtype).maxexp // 2), dtype)
        w = w * jnp.where(jnp.max(w) > 1, scale, jnp.ones_like(scale))
        self.weights = w / jnp.sum(w)
        """Weights of all devices' samples, `[n]`, with sum 1; NaN if a weight is negative."""

    def mean(self, values: jax.Array) -> jax.Array:
        """Weighted mean of `[n, ...]` over samples; samples of weight zero are ignored."""
        w = per_row(self.weights, values)
        return jnp.sum(jnp.where(w > 0, w * values, jnp.zeros_like(values)), axis=0)

    def energies(self, values: Any, name: str) -> jax.Array:
        """Local energies as `[n, k]`; for a real amplitude, only their real parts."""
        parts = [self._real(jnp.real(values), name, "local_energies")]
        if self.width == 2:
            parts.append(self._real(jnp.imag(values), name, "local_energies"))
        return jnp.stack(parts, axis=1)

    def center(self, values: jax.Array) -> jax.Array:
        r"""Compute :math:`\sqrt{w_s} (v_s - \bar v)`, `[n k]`, from `[n, k]` or `[n k]`."""
        rows = values.reshape(self.count, self.width)
        root = jnp.sqrt(self.weights)[:, None]
        deviations = rows - self.mean(rows)
        return jnp.where(root > 0, root * deviations, jnp.zeros_like(deviations)).reshape(-1)

    def gram(self) -> jax.Array:
        r"""The Gram matrix :math:`X X^\top`, `[n k, n k]`."""
        K = self.J.gram().astype(self.dtype)
        # X = C J with the linear map `center`, so the columns and the rows of J J^T are centered.
        return jax.vmap(self.center)(jax.vmap(self.center, 1, 1)(K))

    def times_gram(self, x: jax.Array) -> jax.Array:
        """Product of the Gram matrix with a vector, by a backward and a forward pass."""
        return self._push(self._pull(x))

    def mv(self, direction: Any) -> jax.Array:
        """Product `X v` with a tree like the params, `[n k]`."""
        return self._push(_split(direction))

    def rmv(self, a: jax.Array) -> Any:
        r"""Product :math:`X^\top a`, a tree like the params."""
        return _join_parts(self._pull(a), self._params)

    def _push(self, split: Any) -> jax.Array:
        product = self.J.flatten(self.J.parts(self.J.mv(split)))
        return self.center(product.astype(self.dtype))

    def _pull(self, a: jax.Array) -> Any:
        rows = a.reshape(self.count, self.width)
        root = jnp.sqrt(self.weights)[:, None]
        # The transpose of `center`.
        weighted = root * rows - self.weights[:, None] * jnp.sum(root * rows, axis=0)
        return self.J.rmv(weighted.reshape(-1))

    def _real(self, values: Any, name: str, what: str) -> jax.Array:
        values = jnp.asarray(values)
        values = values.astype(self.dtype)
        if values.ndim == 1:
            values = self.J.flatten([values[:, None]])
        if values.shape != (self.count,):
            raise ValueError(
                f"{name}: {what} has shape {values.shape}, expected ({self.count},), one number "
                "per sample of the batch."
            )
        return values


def _split(tree: Any) -> Any:
    """Split complex leaves into their real and imaginary parts."""
    return jax.tree.map(lambda x: (jnp.real(x), jnp.imag(x)) if jnp.iscomplexobj(x) else x, tree)


def _join_parts(split: Any, like: Any) -> Any:
    """Invert `_split`; `like` determines which leaves are complex."""
    return jax.tree.map(
        lambda x, part: jax.lax.complex(*part) if jnp.iscomplexobj(x) else part, like, split
    )


def _check_params(params: Any, name: str) -> None:
    for path, leaf in leaves_with_names(params)[0]:
        if not hasattr(leaf, "dtype") or not is_inexact(leaf):
            raise TypeError(
                f"{name}: {leaf_text(path)} of the params is {type_text(leaf)}, expected a real or "
                "complex floating array."
            )

"""The Jacobian of a model in SciPy's spelling, `jac(x, a, b, ...)`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import written_for_jax
from fnopt.curves._boxed import Boxed
from fnopt.solvers import SCHEMES


def residual_jacobian(jac: Any, passing: str, matrix: bool) -> Callable[..., jax.Array] | None:
    """The Jacobian of the residuals, `(p, x, y) -> J`, from that of the model.

    Args:
        jac: `jac(x, a, b, ...)` of shape `[m, n]`, or what stands for none.
        passing: How the model takes the params; numbers in a row are expected.
        matrix: Whether the residuals are laid end to end, for a covariance matrix.

    Returns:
        The function; None if there is no `jac`.
    """
    if not callable(jac):
        if jac not in (None, *SCHEMES):
            raise ValueError(f"curve_fit: jac = {jac!r}, expected a function jac(x, a, b, ...).")
        return None
    if passing != "numbers":
        raise ValueError("curve_fit: jac is given, but p0 is a tree; expected numbers in a row.")

    def jacobian(p: jax.Array, positions: Boxed, y: jax.Array) -> jax.Array:
        with written_for_jax("curve_fit", "jac", is_another=True):
            J: Any = jac(positions.opened(), *p)
            J = jnp.asarray(J.toarray() if hasattr(J, "toarray") else J)  # SciPy's sparse matrices
        if J.shape != (y.size, p.size):
            raise ValueError(
                f"curve_fit: jac returned shape {J.shape}, expected {(y.size, p.size)}."
            )
        J = J.astype(y.dtype)
        return J if matrix else J.reshape(*y.shape, p.size)

    return jacobian

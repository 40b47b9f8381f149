"""A Jacobian that is known by its products."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from fnopt.jacobians._flat import value_and_jacobian
from fnopt.jacobians._vectors import VectorFunction, cheaper_mode, vector_function
from fnopt.sharding import pvary_like


class JacobianOperator:
    """The Jacobian of a function at a point as a linear map, which is never formed.

    It is traced at its first product and kept, so it lives within one `jax.jit`, or outside.

    Args:
        fn: A function of the params.
        params: Where to take it.
        mode: How `matrix` forms it.
        chunk_size: How many passes `matrix` makes at once.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> p = {"a": jnp.asarray([1.0, 2.0]), "b": jnp.float32(3.0)}
        >>> J = fnopt.jacobians.JacobianOperator(lambda p: p["a"] * p["b"], p)
        >>> J.shape, J.mv({"a": jnp.zeros(2), "b": jnp.float32(1.0)})
        ((2, 3), Array([1., 2.], dtype=float32))
    """

    def __init__(
        self,
        fn: Callable[[Any], Any],
        params: Any,
        mode: str = "auto",
        chunk_size: int | None = None,
    ) -> None:
        self._fn = fn
        self._mode = mode
        self._chunk_size = chunk_size
        self._flat: VectorFunction = vector_function(fn, params, "jacobian")
        self._params = self._flat.params

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of outputs and of parameters; a complex output counts twice."""
        return self._flat.m, self._flat.x.size

    def mv(self, tangent: Any) -> Any:
        """The product `J v`.

        Args:
            tangent: `v`, a tree like the params.

        Returns:
            A tree like the outputs.
        """
        return self._push(pvary_like(tangent, self._params))

    def rmv(self, cotangent: Any) -> Any:
        """The product `J^T w`.

        Args:
            cotangent: `w`, a tree like the outputs.

        Returns:
            A tree like the params.
        """
        return self._pull(pvary_like(cotangent, self._params))[0]

    def matrix(self) -> jax.Array:
        """The Jacobian as an array of shape `[m, n]`."""
        flat = self._flat
        mode = cheaper_mode(self._mode, flat)
        return value_and_jacobian(flat.fn, flat.x, flat.m, mode, self._chunk_size)[1]

    @functools.cached_property
    def _push(self) -> Callable[[Any], Any]:
        return jax.linearize(self._fn, self._params)[1]

    @functools.cached_property
    def _pull(self) -> Callable[[Any], Any]:
        return jax.vjp(self._fn, self._params)[1]

    def __repr__(self) -> str:
        return f"JacobianOperator(shape={self.shape})"

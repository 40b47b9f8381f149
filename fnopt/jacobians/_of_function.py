"""Jacobian of a function with respect to its params, as a tree, a matrix or a linear operator."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

from fnopt.core import check_same_tree
from fnopt.errors import check_choice, check_chunk_size, check_function, count_text
from fnopt.jacobians._flat import (
    VectorFunction,
    cheaper_mode,
    jacobian_mode,
    value_and_jacobian,
    vector_function,
)
from fnopt.sharding import pvary_like


class JacobianOperator:
    """Jacobian of a function at a point, as a linear operator without a matrix.

    The first product traces and stores the linear map. Make and use an operator in the same
    `jax.jit`, or use it eagerly.

    Args:
        fn: A function of the params.
        params: The point.
        mode: The mode of differentiation of :meth:`matrix`.
        chunk_size: Number of tangents or cotangents that :meth:`matrix` propagates at once.

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
        """The number of outputs, where a complex output counts twice, and the number of params."""
        return self._flat.m, self._flat.x.size

    def mv(self, tangent: Any) -> Any:
        """Multiply the Jacobian by a vector.

        Args:
            tangent: The vector, a tree like the params.

        Returns:
            The product, a tree like the outputs.
        """
        check_same_tree(tangent, self._params, "JacobianOperator.mv: vectors", "the params")
        # Inside shard_map, a tangent must vary over the same mesh axes as the params.
        return self._push(pvary_like(tangent, self._params))

    def rmv(self, cotangent: Any) -> Any:
        """Multiply the transpose of the Jacobian by a vector.

        Args:
            cotangent: The vector, a tree like the outputs.

        Returns:
            The product, a tree like the params.
        """
        outputs, pull = self._outputs_and_pull
        check_same_tree(cotangent, outputs, "JacobianOperator.rmv: vectors", "the outputs")
        return pull(pvary_like(cotangent, self._params))[0]

    def matrix(self) -> jax.Array:
        """Compute the Jacobian as an array of shape `[m, n]`."""
        flat = self._flat
        mode = cheaper_mode(self._mode, flat)
        return value_and_jacobian(flat.fn, flat.x, flat.m, mode, self._chunk_size)[1]

    @functools.cached_property
    def _push(self) -> Callable[[Any], Any]:
        return jax.linearize(self._fn, self._params)[1]

    @functools.cached_property
    def _outputs_and_pull(self) -> tuple[Any, Callable[[Any], Any]]:
        return jax.vjp(self._fn, self._params)

    def __repr__(self) -> str:
        return f"JacobianOperator(shape={self.shape})"


FORMS = ("tree", "matrix", "operator")


def jacobian(
    fn: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    *,
    form: str = "tree",
    mode: str = "auto",
    chunk_size: int | None = None,
) -> Callable[..., Any]:
    r"""Compute the Jacobian of the outputs of a function with respect to its params.

    .. math:: J_{ij} = \frac{\partial f_i}{\partial \theta_j}

    Forward mode takes one pass for each of the `n` params. Reverse mode takes one pass for each of
    the `m` outputs. The number of simultaneous passes is limited to save memory.

    Args:
        fn: `fn(params, ...)` returns an array, or a pytree of arrays, real or complex.
        argnums: The positional arguments to differentiate, as in `jax.jacobian`.
        form: `'tree'` returns the same tree as `jax.jacobian`; `'matrix'` concatenates outputs and
            params; `'operator'` returns a linear operator.
        mode: `'forward'`, `'reverse'`, or `'auto'` for the mode with fewer passes. A function with
            a `custom_vjp` has no forward mode, so `'auto'` chooses reverse mode.
        chunk_size: Number of simultaneous passes; by default all if there are at most 256, else 64.

    Returns:
        A function of the arguments of `fn` that returns the Jacobian in the chosen form:

        - `'tree'`: a tree like the outputs whose leaves are trees like the params. The arrays have
          the shape `output.shape + param.shape` and the dtype of the output.
        - `'matrix'`: an array of shape `[m, n]` in the params' common dtype (at least float32). A
          complex output has rows for its real part, then rows for its imaginary part.
        - `'operator'`: a :class:`JacobianOperator`.

    Raises:
        TypeError: If params or outputs aren't floating, or params are complex.
        ValueError: If an option has an unknown value.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> def model(p, x):
        ...     return p["a"] * x + p["b"]
        >>> p, x = {"a": jnp.float32(2.0), "b": jnp.float32(1.0)}, jnp.asarray([1.0, 5.0])
        >>> fnopt.jacobian(model)(p, x)["a"]
        Array([1., 5.], dtype=float32)
        >>> fnopt.jacobian(model, form="matrix")(p, x)
        Array([[1., 1.],
               [5., 1.]], dtype=float32)
        >>> J = fnopt.jacobian(model, form="operator")(p, x)
        >>> {name: float(v) for name, v in J.rmv(jnp.asarray([1.0, 1.0])).items()}
        {'a': 6.0, 'b': 2.0}
    """
    check_function(fn, "fn", "jacobian", "Pass a function, as in jacobian(f).")
    check_choice(form, FORMS, "form", "jacobian")
    jacobian_mode(mode, 1, 1, "jacobian: mode")
    chunk_size = check_chunk_size(chunk_size, "jacobian")

    def jacobian_fn(*args: Any, **kwargs: Any) -> Any:
        params_fn, params = _bind_other_args(fn, argnums, args, kwargs)
        if form == "operator":
            return JacobianOperator(params_fn, params, mode, chunk_size)
        return tree_or_matrix(params_fn, params, mode, chunk_size, form, "jacobian")

    return jacobian_fn


def tree_or_matrix(
    fn: Callable[[Any], Any], params: Any, mode: str, chunk_size: int | None, form: str, name: str
) -> Any:
    """Compute the Jacobian of a function of the params, as a tree or as a matrix."""
    flat = vector_function(fn, params, name)
    mode = cheaper_mode(mode, flat)
    _, J = value_and_jacobian(flat.fn, flat.x, flat.m, mode, chunk_size)
    return J if form == "matrix" else flat.tree(J)


def _bind_other_args(
    fn: Callable[..., Any], argnums: int | Sequence[int], args: tuple[Any, ...], kwargs: Any
) -> tuple[Callable[[Any], Any], Any]:
    """Return a function of the differentiated arguments alone, and their values."""
    is_single = isinstance(argnums, int)
    positions = (argnums,) if is_single else tuple(argnums)
    if not positions or any(not -len(args) <= i < len(args) for i in positions):
        raise ValueError(
            f"jacobian: argnums is {argnums}, expected indices of the "
            f"{count_text(len(args), 'positional argument')}."
        )

    def params_fn(params: Any) -> Any:
        new_args = list(args)
        for i, value in zip(positions, (params,) if is_single else params, strict=True):
            new_args[i] = value
        return fn(*new_args, **kwargs)

    values = tuple(args[i] for i in positions)
    return params_fn, values[0] if is_single else values

"""Per-example Jacobians, for example for least squares with neural networks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from fnopt.errors import (
    check_batch,
    check_chunk_size,
    check_function,
    explain_example_errors,
    leaf_text,
    leaves_with_names,
)
from fnopt.jacobians._flat import blocks, check_real, checked_outputs, jacobian_mode, lacks_forward
from fnopt.jacobians._ravel import RealVector, ravel, real_vector
from fnopt.numerics import compute_dtype, scan_chunks
from fnopt.sharding import pvary_like, replicate_for_batch, reshard_like

_NAME = "per_example_jacobian"
_SHARED = "Pass arrays that all examples share as keyword arguments."
Carry = TypeVar("Carry")


def per_example_jacobian(
    fn: Callable[..., Any], *, mode: str = "auto", chunk_size: int | None = None
) -> PerExampleJacobian:
    r"""Compute the Jacobian of a function of one example, for every example of a batch.

    .. math:: J_i = \frac{\partial f(\theta, x_i)}{\partial \theta}, \qquad i = 1, \dots, b

    The outputs for an example don't depend on other examples. With `k` outputs per example, `k`
    reverse passes over the batch compute all `b k` rows of the Jacobian. The Jacobian of a function
    of the whole batch takes `b k` passes.

    Pass the result as `jac` to `least_squares` if the residuals are mapped over examples:
    `least_squares(jax.vmap(fn, (None, 0)), params, args=(batch,), jac=per_example_jacobian(fn))`.

    Args:
        fn: `fn(params, example, ...)` for ONE example returns an array, or a pytree of arrays.
        mode: `'reverse'` takes one pass per output of an example, `'forward'` one pass per param;
            `'auto'` chooses the mode with fewer passes.
        chunk_size: Number of examples that are differentiated at once, which bounds the memory of
            activations; `None` for all. `least_squares` with normal equations (`'cholesky'`) then
            sums `J^T J` over chunks and never forms `J`, unless `sigma` is a matrix. The solution
            has no covariance in this case.

    Returns:
        A function `(params, batch, ...)` that returns a tree like the outputs, whose leaves are
        trees like the params, with arrays of shape `[b, *output.shape, *param.shape]`. All
        positional arguments after the params have a leading axis of `b` examples. All examples
        share the keyword arguments.

    Raises:
        TypeError: If params or outputs aren't floating, or params are complex.
        ValueError: If the example axes disagree or are empty, or an option is invalid.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> def residual(w, example):
        ...     x, y = example
        ...     return jnp.tanh(w @ x) - y
        >>> batch = (jnp.asarray([[1.0, 2.0], [3.0, 4.0]]), jnp.zeros(2))
        >>> fnopt.per_example_jacobian(residual)(jnp.zeros(2), batch)
        Array([[1., 2.],
               [3., 4.]], dtype=float32)
    """
    check_function(fn, "fn", _NAME, f"Pass a function, as in {_NAME}(f).")
    jacobian_mode(mode, 1, 1, f"{_NAME}: mode")
    return PerExampleJacobian(fn, mode, check_chunk_size(chunk_size, _NAME))


@dataclasses.dataclass(frozen=True)
class PerExampleJacobian:
    """Function that computes per-example Jacobians, or folds over chunks of their rows.

    Args:
        fn: The function of params and one example.
        mode: `'auto'`, `'forward'` or `'reverse'`.
        chunk_size: Number of examples that are differentiated at once; `None` for all.
    """

    fn: Callable[..., Any]
    mode: str
    chunk_size: int | None

    def __call__(self, params: Any, *batch: Any, **shared: Any) -> Any:
        """Compute the Jacobians as a tree of blocks."""
        size, layout, rows_fn = self._prepare(params, batch, shared)

        def example_blocks(example: Any) -> Any:
            return blocks(layout.unflatten, rows_fn(example))

        def body(carry: None, chunk: Any) -> tuple[None, Any]:
            return carry, jax.vmap(example_blocks)(chunk)

        return scan_chunks(body, None, batch, size, self.chunk_size)[1]

    def fold(
        self,
        step: Callable[[Carry, jax.Array, Any], Carry],
        carry: Carry,
        params: Any,
        batch: tuple[Any, ...],
        along: Any,
    ) -> Carry:
        """Fold a function over the rows of the Jacobian, chunk by chunk.

        Args:
            step: `step(carry, J, parts)` returns the next carry. `J` has shape `[rows, n]`, for the
                concatenated params. `parts` contains a vector of shape `[rows]` for each tree of
                `along`.
            carry: The initial carry.
            params: The params.
            batch: The batched arguments.
            along: A tuple of trees like the outputs of the batch.

        Returns:
            The final carry.
        """
        size, layout, rows_fn = self._prepare(params, batch, {})

        def body(carry: Carry, chunk: Any) -> tuple[Carry, None]:
            examples, trees = chunk
            parts = tuple(jnp.ravel(jax.vmap(layout.flatten)(tree)) for tree in trees)
            J = jax.vmap(lambda example: _rows_matrix(rows_fn(example), layout.size))(examples)
            return step(carry, J.reshape(-1, J.shape[-1]), parts), None

        return scan_chunks(body, carry, (batch, along), size, self.chunk_size)[0]

    def _prepare(
        self, params: Any, batch: tuple[Any, ...], shared: dict[str, Any]
    ) -> tuple[int, RealVector, Callable[[Any], Any]]:
        """Check the arguments, and prepare the evaluation of rows.

        The result is the batch size, the layout of the outputs of one example, and the function
        from an example to its rows.
        """
        check_real(params, _NAME)
        size = check_batch(_named_leaves(batch), _NAME, _SHARED)
        params, shared = replicate_for_batch((params, shared), batch)
        # Inside shard_map, each device differentiates its own rows.
        params = pvary_like(params, batch)

        def evaluate(params: Any, example: Any) -> Any:
            return self.fn(params, *example, **shared)

        example = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), batch)
        with explain_example_errors(_NAME, example, params):
            outputs = jax.eval_shape(evaluate, params, example)
        checked_outputs(outputs, _NAME)
        x, _ = ravel(params)
        layout = real_vector(outputs, x.dtype)
        mode = jacobian_mode(self.mode, layout.size, x.size)
        if (self.mode, mode) == ("auto", "forward") and lacks_forward(evaluate, params, example):
            mode = "reverse"
        return size, layout, _rows_function(evaluate, layout, params, mode)


def _rows_matrix(rows: Any, k: int) -> jax.Array:
    """Concatenate a tree of rows `[k, *param]` to a matrix `[k, n]`."""
    parts = [leaf.reshape(k, -1) for leaf in jax.tree.leaves(rows)]
    dtype = compute_dtype(*(part.dtype for part in parts))
    return jnp.concatenate([part.astype(dtype) for part in parts], axis=1)


def _rows_function(
    fn: Callable[[Any, Any], Any], layout: RealVector, params: Any, mode: str
) -> Callable[[Any], Any]:
    """Make the function from an example to its Jacobian rows.

    The rows are a tree like the params, with leaves of shape `[k, *param]`.
    """
    x, unravel = ravel(params, "params")

    def by_rows(example: Any) -> Any:
        # Differentiation with respect to a raveled vector would add a concatenation and a split.
        value, pull = jax.vjp(lambda p: layout.flatten(fn(p, example)), params)
        units = pvary_like(jnp.eye(layout.size, dtype=value.dtype), value)
        return jax.vmap(lambda e: pull(reshard_like(e, value))[0])(units)

    def by_columns(example: Any) -> Any:
        _, push = jax.linearize(lambda p: layout.flatten(fn(p, example)), params)
        units = pvary_like(jnp.eye(x.size, dtype=x.dtype), x)
        columns = jax.vmap(lambda v: push(unravel(v)), out_axes=1)(units)
        return jax.vmap(unravel)(columns)

    return by_rows if mode == "reverse" else by_columns


def _named_leaves(batch: tuple[Any, ...]) -> list[tuple[str, Any]]:
    return [
        (f"argument {i + 1}, {leaf_text(path)}", leaf)
        for i, part in enumerate(batch)
        for path, leaf in leaves_with_names(part)[0]
    ]

"""One Jacobian per example: what least squares needs of a network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import RealVector, jacobian_mode, leaves_with_names, ravel, real_vector, shown
from fnopt.gradients._checks import check_batch
from fnopt.gradients._chunks import checked_chunk_size, scan_chunks
from fnopt.gradients._vectors import blocks, check_real, checked_outputs

_NAME = "per_example_jacobian"


def per_example_jacobian(
    fn: Callable[..., Any], *, mode: str = "auto", chunk_size: int | None = None
) -> Callable[..., Any]:
    r"""The Jacobian of the outputs for every example with respect to the params.

    .. math:: J_i = \frac{\partial f(\theta, x_i)}{\partial \theta}, \qquad i = 1, \dots, b

    The outputs for an example depend on no other example, so `k` backward passes over the batch
    give all `b k` rows of the Jacobian, with `k` the number of outputs of ONE example; that is
    what makes it cheaper than the Jacobian of the batch as a whole.

    It is what `least_squares` takes as `jac` where the residuals are mapped over examples:
    `least_squares(jax.vmap(fn, (None, 0)), params, args=(batch,), jac=per_example_jacobian(fn))`.

    Args:
        fn: `fn(params, example, ...)` for ONE example returns an array, or a pytree of arrays.
        mode: `'reverse'` makes a pass for each output of an example, `'forward'` one for each
            param; `'auto'` takes the fewer.
        chunk_size: How many examples are differentiated at once, which bounds the memory of
            activations; `None` for all.

    Returns:
        A function `(params, batch, ...)` that returns a tree like the outputs of trees like the
        params, of arrays of shape `[b, *output.shape, *param.shape]`. All arguments after the
        params have a leading axis of `b` examples; keyword arguments are shared.

    Raises:
        TypeError: If params or outputs aren't floating, or params are complex.
        ValueError: If the example axes disagree or are empty, or an option makes no sense.

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
    jacobian_mode(mode, 1, 1, f"{_NAME}: mode")
    chunk_size = checked_chunk_size(chunk_size, _NAME)

    def jacobian_fn(params: Any, *batch: Any, **shared: Any) -> Any:
        check_real(params, _NAME)
        size = check_batch(_named_leaves(batch), _NAME)

        def one(params: Any, example: Any) -> Any:
            return fn(params, *example, **shared)

        example = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), batch)
        outputs = checked_outputs(jax.eval_shape(one, params, example), _NAME)
        laid = real_vector(outputs, ravel(params)[0].dtype)
        rows = _rows_of(one, laid, params, mode)

        def body(carry: None, chunk: Any) -> tuple[None, Any]:
            return carry, jax.vmap(lambda example: blocks(laid.unflatten, rows(example)))(chunk)

        return scan_chunks(body, None, batch, size, chunk_size)[1]

    return jacobian_fn


def _rows_of(
    fn: Callable[[Any, Any], Any], laid: RealVector, params: Any, mode: str
) -> Callable[[Any], Any]:
    """The function from an example to a tree like the params, of its rows `[k, *param]`."""
    x, unravel = ravel(params, "params")

    def by_rows(example: Any) -> Any:
        # By the leaves and not by the vector: what is never laid end to end need not be cut up.
        value, pull = jax.vjp(lambda p: laid.flatten(fn(p, example)), params)
        return jax.vmap(lambda e: pull(e)[0])(jnp.eye(laid.size, dtype=value.dtype))

    def by_columns(example: Any) -> Any:
        _, push = jax.linearize(lambda p: laid.flatten(fn(p, example)), params)
        columns = jax.vmap(lambda v: push(unravel(v)), out_axes=1)(jnp.eye(x.size, dtype=x.dtype))
        return jax.vmap(unravel)(columns)

    return by_rows if jacobian_mode(mode, laid.size, x.size) == "reverse" else by_columns


def _named_leaves(batch: tuple[Any, ...]) -> list[tuple[str, Any]]:
    return [
        (f"argument {i + 1}, {shown(path)}", leaf)
        for i, part in enumerate(batch)
        for path, leaf in leaves_with_names(part)[0]
    ]

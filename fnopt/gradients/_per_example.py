"""Per-example gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from fnopt.core import check_chunk_size, scan_chunks
from fnopt.gradients._loss import ExampleLoss


def per_example_grads(
    loss_fn: Callable[..., Any],
    *,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    batch_argnums: int | Sequence[int] | None = None,
    chunk_size: int | None = None,
) -> Callable[..., Any]:
    r"""The gradient of the loss of every example, not summed over the batch.

    .. math:: g_i = \nabla_\theta\, \ell(\theta, x_i), \qquad i = 1, \dots, n

    The loss takes ONE example and can be any JAX function, with any layers.

    Args:
        loss_fn: `loss_fn(params, example, ...) -> scalar`, or `(scalar, aux)` with `has_aux`.
        argnums: Which positional arguments to differentiate, as in `jax.grad`.
        has_aux: Whether `loss_fn` returns `(value, aux)`.
        batch_argnums: Which positional arguments have a leading example axis on every leaf. By
            default all that come after the last of `argnums`. The others, and every keyword
            argument, are passed to all examples unchanged.
        chunk_size: How many examples to differentiate at once, which bounds the memory of
            activations; the result is the same. It need not divide the batch, but a remainder
            costs a copy of the result. `None` for all.

    Returns:
        A function `(params, batch, ..., key=None)` -> the gradients: a tree like `params` whose
        leaves have a leading axis of `n` examples, in the dtype of the params (a tuple of trees
        for a sequence `argnums`). With `has_aux`, `(gradients, aux)`, with the example axis in
        front of every leaf of `aux` too. If `key` is given, example `i` calls the loss with
        `key=jax.random.fold_in(key, i)`, independent of the chunk size.

    Raises:
        TypeError: If a parameter isn't floating, or the loss doesn't return a real scalar.
        ValueError: If the example axes disagree or are empty, or an option makes no sense.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.gradients import per_example_grads
        >>> def loss(w, example):
        ...     x, y = example
        ...     return 0.5 * (x @ w - y) ** 2
        >>> batch = (jnp.array([[1.0, 2.0], [3.0, 4.0]]), jnp.array([1.0, -1.0]))
        >>> per_example_grads(loss)(jnp.zeros(2), batch).tolist()
        [[-1.0, -2.0], [3.0, 4.0]]
    """
    spec = ExampleLoss(loss_fn, argnums, batch_argnums, has_aux, "per_example_grads")
    return _per_example_grads(spec, chunk_size, with_value=False)


def value_and_per_example_grads(
    loss_fn: Callable[..., Any],
    *,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    batch_argnums: int | Sequence[int] | None = None,
    chunk_size: int | None = None,
) -> Callable[..., Any]:
    r"""The loss and the gradient of every example.

    As `per_example_grads`, with the values beside the gradients.

    Args:
        loss_fn: `loss_fn(params, example, ...) -> scalar`, or `(scalar, aux)` with `has_aux`.
        argnums: Which positional arguments to differentiate, as in `jax.grad`.
        has_aux: Whether `loss_fn` returns `(value, aux)`.
        batch_argnums: Which positional arguments have a leading example axis; by default all
            after the last of `argnums`.
        chunk_size: How many examples to differentiate at once; `None` for all.

    Returns:
        A function `(params, batch, ..., key=None)` -> `(losses, gradients)`, or
        `((losses, aux), gradients)` with `has_aux`; `losses` has shape `[n]`.

    Raises:
        TypeError: If a parameter isn't floating, or the loss doesn't return a real scalar.
        ValueError: If the example axes disagree or are empty, or an option makes no sense.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.gradients import value_and_per_example_grads
        >>> losses, grads = value_and_per_example_grads(lambda w, x: w * x**2)(
        ...     jnp.float32(3.0), jnp.array([1.0, 2.0])
        ... )
        >>> losses.tolist(), grads.tolist()
        ([3.0, 12.0], [1.0, 4.0])
    """
    spec = ExampleLoss(loss_fn, argnums, batch_argnums, has_aux, "value_and_per_example_grads")
    return _per_example_grads(spec, chunk_size, with_value=True)


def _per_example_grads(
    spec: ExampleLoss, chunk_size: int | None, with_value: bool
) -> Callable[..., Any]:
    chunk_size = check_chunk_size(chunk_size, spec.name)

    def grads_fn(*args: Any, key: Any = None, **kwargs: Any) -> Any:
        bound = spec.bind(args, kwargs, key)
        grad = jax.vmap(jax.value_and_grad(bound.loss, has_aux=True), (None, 0))

        def body(carry: None, chunk: Any) -> tuple[None, Any]:
            return carry, grad(bound.params, chunk)

        with bound.on_its_mesh():
            _, outputs = scan_chunks(body, None, bound.batch, bound.size, chunk_size)
        (losses, aux), grads = outputs
        return spec.outputs(losses, aux, grads, with_value)

    return grads_fn

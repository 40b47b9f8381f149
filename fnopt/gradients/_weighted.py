"""Gradients of weighted sums of losses, and an identity function that scales gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.errors import accepts_args, check_choice, check_chunk_size, count_text
from fnopt.gradients._loss import BoundLoss, ExampleLoss, check_weights
from fnopt.gradients._sums import REDUCTIONS, like_params, zero_sums
from fnopt.numerics import compute_dtype, scan_chunks
from fnopt.sharding import psum, pvary_like, reshard_like


def weighted_grad(
    loss_fn: Callable[..., Any],
    *,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    batch_argnums: int | Sequence[int] | None = None,
    reduction: str = "sum",
    chunk_size: int | None = None,
    axis_name: Any = None,
) -> Callable[..., Any]:
    r"""Compute the gradient of a weighted sum of the examples' losses.

    .. math:: g = \sum_{i=1}^n w_i \nabla_\theta\, \ell(\theta, x_i)
              \qquad\text{or}\qquad \frac1n \sum_{i=1}^n w_i \nabla_\theta\, \ell(\theta, x_i)

    The weights are the cotangents of one backward pass over the batch, so the cost equals the cost
    of an unweighted gradient. The result is differentiable with respect to the weights, for
    influence functions, data reweighting and meta-learning. An example with a non-finite gradient
    makes the result NaN, even if its weight is zero.

    Args:
        loss_fn: `loss_fn(params, example, ...) -> scalar` for ONE example, or `(scalar, aux)`.
        argnums: The positional arguments to differentiate, as in `jax.grad`.
        has_aux: Whether `loss_fn` returns `(value, aux)`.
        batch_argnums: The positional arguments with a leading example axis; by default all
            arguments after the last of `argnums`.
        reduction: `'sum'`, or `'mean'`, which divides by the number of examples (not by the sum
            of the weights).
        chunk_size: Number of examples to differentiate at once; gradients are accumulated over
            chunks in float32 or wider. `None` for all.
        axis_name: Inside `jax.shard_map` (or `jax.vmap` with a name), the named axis along which
            the batch is sharded, or several axes. Sums then cover all devices, and all devices get
            the same result. `None` sums over the examples of this call.

    Returns:
        A function `(params, batch, ..., weights, key=None)` -> the gradient, a tree like `params`;
        or `(gradient, aux)` with `has_aux`, where `aux` has a leading example axis. The last
        positional argument, `weights`, is a real, bool or integer array of shape `[n]`.

    Raises:
        TypeError: If a parameter isn't floating, or the loss doesn't return a real scalar.
        ValueError: If the weights' shape isn't `[n]`, or the example axes disagree or are empty.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.gradients import weighted_grad
        >>> x, weights = jnp.array([1.0, 2.0, 3.0]), jnp.array([1.0, 0.5, 0.0])
        >>> float(weighted_grad(lambda w, x: w * x)(jnp.float32(0.0), x, weights))
        2.0
    """
    spec = ExampleLoss(loss_fn, argnums, batch_argnums, has_aux, "weighted_grad")
    return _weighted_grad(spec, reduction, chunk_size, axis_name, with_value=False)


def value_and_weighted_grad(
    loss_fn: Callable[..., Any],
    *,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    batch_argnums: int | Sequence[int] | None = None,
    reduction: str = "sum",
    chunk_size: int | None = None,
    axis_name: Any = None,
) -> Callable[..., Any]:
    r"""Compute the loss of every example, and the gradient of the weighted sum of the losses.

    See `weighted_grad`. The losses are returned without weights; the gradient is the gradient of
    `weights @ losses`.

    Args:
        loss_fn: `loss_fn(params, example, ...) -> scalar` for ONE example, or `(scalar, aux)`.
        argnums: The positional arguments to differentiate, as in `jax.grad`.
        has_aux: Whether `loss_fn` returns `(value, aux)`.
        batch_argnums: The positional arguments with a leading example axis; by default all
            arguments after the last of `argnums`.
        reduction: `'sum'`, or `'mean'`, which divides by the number of examples.
        chunk_size: Number of examples to differentiate at once; `None` for all.
        axis_name: As in `weighted_grad`.

    Returns:
        A function `(params, batch, ..., weights, key=None)` -> `(losses, gradient)`, or
        `((losses, aux), gradient)` with `has_aux`; `losses` has shape `[n]`.

    Raises:
        TypeError: If a parameter isn't floating, or the loss doesn't return a real scalar.
        ValueError: If the weights' shape isn't `[n]`, or the example axes disagree or are empty.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.gradients import value_and_weighted_grad
        >>> x, weights = jnp.array([1.0, 2.0, 3.0]), jnp.array([1.0, 0.5, 0.0])
        >>> losses, grad = value_and_weighted_grad(lambda w, x: w * x)(jnp.float32(2.0), x, weights)
        >>> losses.tolist(), float(grad)
        ([2.0, 4.0, 6.0], 2.0)
    """
    spec = ExampleLoss(loss_fn, argnums, batch_argnums, has_aux, "value_and_weighted_grad")
    return _weighted_grad(spec, reduction, chunk_size, axis_name, with_value=True)


def _weighted_grad(
    spec: ExampleLoss, reduction: str, chunk_size: int | None, axis_name: Any, with_value: bool
) -> Callable[..., Any]:
    check_choice(reduction, REDUCTIONS, "reduction", spec.name)
    chunk_size = check_chunk_size(chunk_size, spec.name)

    def grad_fn(*args: Any, key: Any = None, **kwargs: Any) -> Any:
        _check_has_weights(spec, args, kwargs, key)
        bound = spec.bind(args[:-1], kwargs, key, axis_name)
        weights = check_weights(args[-1], bound.size, spec.name)
        size = bound.size * psum(1, axis_name)
        scale = 1 / size if reduction == "mean" else 1.0
        with bound.mesh_context():
            losses, aux, sums = _weighted_sum(bound, weights, scale, chunk_size)
            sums = like_params(psum(sums, axis_name), bound.given)
        return spec.outputs(losses, aux, sums, with_value)

    return grad_fn


def _check_has_weights(
    spec: ExampleLoss, args: tuple[Any, ...], kwargs: dict[str, Any], key: Any
) -> None:
    count, key_kwarg = len(args), {} if key is None else {"key": key}
    shared = {name: value for name, value in kwargs.items() if name != "weights"} | key_kwarg
    missing = count < 1 or (count < 3 and spec.batch_argnums is None)
    if not accepts_args(spec.fn, *args[:-1], **kwargs, **key_kwarg):
        # If the loss accepts all of `args`, none of them are weights.
        missing |= accepts_args(spec.fn, *args, **shared)
    if missing:
        raise TypeError(
            f"{spec.name}: got {count_text(count, 'positional argument')}, expected (params, "
            "batch, ..., weights). Pass one weight per example, of shape [n], as the last "
            "positional argument."
        )


def _weighted_sum(
    bound: BoundLoss, weights: jax.Array, scale: float, chunk_size: int | None
) -> tuple[jax.Array, Any, Any]:
    def add_chunk(sums: Any, chunk: tuple[Any, jax.Array]) -> tuple[Any, Any]:
        examples, w = chunk
        # With the weights as cotangents of the losses, one backward pass computes the weighted sum.
        losses, pullback, aux = jax.vjp(
            lambda params: jax.vmap(bound.loss, (None, 0))(params, examples),
            bound.params,
            has_aux=True,
        )
        # Weights are scaled before they are rounded to the dtype of the losses, not rounded twice.
        w = w.astype(compute_dtype(losses.dtype)) * scale
        w = pvary_like(w.astype(losses.dtype), losses)
        (grads,) = pullback(reshard_like(w, losses))
        sums = jax.tree.map(lambda total, grad: total + grad.astype(total.dtype), sums, grads)
        return sums, (losses, aux)

    carry = zero_sums(bound.params)
    sums, (losses, aux) = scan_chunks(
        add_chunk, carry, (bound.batch, weights), bound.size, chunk_size
    )
    return losses, aux, sums


# `custom_jvp`, because JAX transposes its linear rule, so that forward and reverse mode work.
@jax.custom_jvp
def _scale_cotangent(x: jax.Array, scale: jax.Array) -> jax.Array:
    del scale
    return x


@_scale_cotangent.defjvp
def _scale_cotangent_jvp(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    x, scale = primals
    return x, tangents[0] * scale.astype(tangents[0].dtype)


def scale_gradient(inputs: Any, scale: Any) -> Any:
    r"""Return the inputs unchanged and multiply their gradient by a number.

    .. math:: y = x, \qquad \frac{\partial L}{\partial x} = s\, \frac{\partial L}{\partial y}

    Zero stops the gradient; a negative number reverses its sign (Ganin and Lempitsky, 2014,
    arXiv:1409.7495). Forward-mode derivatives are scaled in the same way.

    Args:
        inputs: A tree of floating or complex arrays.
        scale: :math:`s`, a number, which may be traced. The derivative with respect to `scale` is
            zero.

    Returns:
        The same tree.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from fnopt.gradients import scale_gradient
        >>> jax.grad(lambda x: jnp.sum(scale_gradient(x, -0.5) ** 2))(jnp.ones(2))
        Array([-1., -1.], dtype=float32)
    """

    def scale_leaf(x: Any) -> jax.Array:
        x = jnp.asarray(x)
        # The JVP rule ignores the tangent of the scale, so the scale is explicitly a constant.
        return _scale_cotangent(x, jax.lax.stop_gradient(jnp.asarray(scale, x.real.dtype)))

    return jax.tree.map(scale_leaf, inputs)

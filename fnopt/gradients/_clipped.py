"""Sums of gradients that are clipped example by example."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import compute_dtype, global_norm
from fnopt.gradients._checks import check_choice, check_clip_norm
from fnopt.gradients._chunks import checked_chunk_size, scan_chunks
from fnopt.gradients._loss import BoundLoss, ExampleLoss
from fnopt.gradients._methods import check_method, chosen_chunk_size
from fnopt.gradients._sums import REDUCTIONS, like_params, zero_sums


class ExampleInfo(NamedTuple):
    """What is known about every example after its gradient was taken.

    Attributes:
        loss: The loss of every example, `[n]`.
        norm: The global norm of every example's gradient before clipping, `[n]`, at least
            float32. A value that isn't finite says which example has a bad gradient.
        aux: What the loss returned beside its value, with a leading example axis; else `None`.
    """

    loss: jax.Array
    norm: jax.Array
    aux: Any = None


def clipped_grad(
    loss_fn: Callable[..., Any],
    clip_norm: Any,
    *,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    batch_argnums: int | Sequence[int] | None = None,
    reduction: str = "sum",
    method: str = "auto",
    chunk_size: int | None = None,
) -> Callable[..., Any]:
    r"""The sum of the examples' gradients, each clipped to a global norm first.

    .. math:: g = \sum_{i=1}^n g_i \min\Bigl(1, \frac{C}{\lVert g_i \rVert}\Bigr),
              \qquad g_i = \nabla_\theta\, \ell(\theta, x_i)

    No single example moves the sum by more than `C`, up to rounding: what robust training and
    differentially private SGD build on. Noise and accounting are not part of it. An example whose
    gradient isn't finite makes the sum not finite; `info.norm` says which one it was.

    Args:
        loss_fn: `loss_fn(params, example, ...) -> scalar` for ONE example, or `(scalar, aux)`.
        clip_norm: The largest norm `C` > 0 of one example's gradient; a number or a scalar array,
            which may be traced. Infinity doesn't clip.
        argnums: Which positional arguments to differentiate; the norm is over all of them.
        has_aux: Whether `loss_fn` returns `(value, aux)`; `aux` is then in the info.
        batch_argnums: Which positional arguments have a leading example axis; by default all
            after the last of `argnums`.
        reduction: `'sum'`, or `'mean'`, which divides by the number of examples.
        method: `'vmap'` takes all gradients at once, `'chunked'` bounds the memory, `'auto'`
            takes the whole batch where its gradients are small, and chunks otherwise.
        chunk_size: How many examples to take at once; `None` lets the size of the params decide.

    Returns:
        A function `(params, batch, ..., key=None)` -> `(gradient, info)`. The gradient is like the
        params (summed in float32 or wider), `info` is an `ExampleInfo` with the loss and the norm
        of every example.

    Raises:
        TypeError: If a parameter isn't floating, or the loss doesn't return a real scalar.
        ValueError: If the example axes disagree or are empty, or an option makes no sense.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.gradients import clipped_grad
        >>> x = jnp.array([[3.0, 4.0], [0.0, 1.0]])
        >>> grad, info = clipped_grad(lambda w, x: w @ x, 2.5)(jnp.zeros(2), x)
        >>> grad.tolist(), info.norm.tolist()
        ([1.5, 3.0], [5.0, 1.0])

    Reference:
        Abadi et al., 2016, "Deep Learning with Differential Privacy", arXiv:1607.00133.
    """
    spec = ExampleLoss(loss_fn, argnums, batch_argnums, has_aux, "clipped_grad")
    check_clip_norm(clip_norm, spec.name)
    check_choice(reduction, REDUCTIONS, "reduction", spec.name)
    chunk_size = checked_chunk_size(chunk_size, spec.name)
    check_method(method, chunk_size, spec.name)

    def grad_fn(*args: Any, key: Any = None, **kwargs: Any) -> tuple[Any, ExampleInfo]:
        bound = spec.bind(args, kwargs, key)
        chunk = chosen_chunk_size(method, chunk_size, bound.params, bound.size)
        sums, info = _clipped_sum(bound, clip_norm, chunk)
        if reduction == "mean":
            sums = jax.tree.map(lambda total: total / bound.size, sums)
        return spec.like_argnums(like_params(sums, bound.params)), info

    return grad_fn


def _clipped_sum(
    bound: BoundLoss, clip_norm: Any, chunk_size: int | None
) -> tuple[Any, ExampleInfo]:
    def one(example: Any) -> tuple[Any, ExampleInfo]:
        (loss, aux), grads = jax.value_and_grad(bound.loss, has_aux=True)(bound.params, example)
        return grads, ExampleInfo(loss, global_norm(grads), aux)

    def body(sums: Any, chunk: Any) -> tuple[Any, ExampleInfo]:
        grads, info = jax.vmap(one)(chunk)
        return _add_scaled(sums, clip_factors(info.norm, clip_norm), grads), info

    return scan_chunks(body, zero_sums(bound.params), bound.batch, bound.size, chunk_size)


def clip_factors(norms: jax.Array, clip_norm: Any) -> jax.Array:
    """`min(1, clip_norm / norm)`, with a finite derivative where the norm is zero."""
    limit = jnp.asarray(clip_norm).astype(norms.dtype)
    over = norms > limit
    one = jnp.ones((), norms.dtype)
    return jnp.where(over, limit / jnp.where(over, norms, one), one)


def _add_scaled(sums: Any, factors: jax.Array, grads: Any) -> Any:
    """Adds `sum_i factors[i] * grads[i]` to the sums."""

    def add(total: jax.Array, grad: jax.Array) -> jax.Array:
        # A matrix product, because XLA's reduction over a leading axis is 60x slower on a CPU; at
        # the highest precision, or an accelerator would round the factors to fewer digits.
        dtype = compute_dtype(grad.dtype)
        product = jnp.tensordot(
            factors.astype(dtype), grad.astype(dtype), axes=1, precision=jax.lax.Precision.HIGHEST
        )
        return total + product

    return jax.tree.map(add, sums, grads)

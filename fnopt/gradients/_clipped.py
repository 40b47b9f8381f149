"""Sums of gradients that are clipped example by example."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import global_norm
from fnopt.gradients._checks import check_choice, check_clip_norm
from fnopt.gradients._chunks import checked_chunk_size, scan_chunks
from fnopt.gradients._loss import BoundLoss, ExampleLoss
from fnopt.gradients._methods import Way, check_method, choose
from fnopt.gradients._sums import REDUCTIONS, like_params, weighted_total, zero_sums
from fnopt.gradients.ghost import Ghost


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
        method: `'ghost'` finds where each param enters and computes norms from activations and
            cotangents, without forming the gradients of matrices that are large beside them
            (`ghost_report` shows which); `'vmap'` takes all gradients at once; `'chunked'` takes
            them chunk by chunk. `'auto'` is `'ghost'` where that stores less for an example than
            its gradient, else `'chunked'`.
        chunk_size: How many examples to take at once; `None` lets the sizes decide.

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
        sums, info = _clipped_sum(bound, clip_norm, choose(method, chunk_size, bound))
        if reduction == "mean":
            sums = jax.tree.map(lambda total: total / bound.size, sums)
        return spec.like_argnums(like_params(sums, bound.params)), info

    return grad_fn


def _clipped_sum(bound: BoundLoss, clip_norm: Any, way: Way) -> tuple[Any, ExampleInfo]:
    chunk_sum = _by_ghost(way.ghost) if way.ghost else _by_vmap(bound)

    def body(sums: Any, chunk: Any) -> tuple[Any, ExampleInfo]:
        total, info = chunk_sum(chunk, lambda norms: clip_factors(norms, clip_norm))
        return jax.tree.map(jnp.add, sums, total), info

    return scan_chunks(body, zero_sums(bound.params), bound.batch, bound.size, way.chunk_size)


ChunkSum = Callable[[Any, Callable[[jax.Array], jax.Array]], tuple[Any, ExampleInfo]]
"""The weighted sum of a chunk's gradients, where the weights are a function of their norms."""


def _by_vmap(bound: BoundLoss) -> ChunkSum:
    def one(example: Any) -> tuple[Any, ExampleInfo]:
        (loss, aux), grads = jax.value_and_grad(bound.loss, has_aux=True)(bound.params, example)
        return grads, ExampleInfo(loss, global_norm(grads), aux)

    def chunk_sum(chunk: Any, factors: Any) -> tuple[Any, ExampleInfo]:
        grads, info = jax.vmap(one)(chunk)
        weights = factors(info.norm)
        return jax.tree.map(lambda g: weighted_total(weights, g), grads), info

    return chunk_sum


def _by_ghost(ghost: Ghost) -> ChunkSum:
    def chunk_sum(chunk: Any, factors: Any) -> tuple[Any, ExampleInfo]:
        measured = ghost.measure(chunk)
        loss, aux = measured.loss_and_aux
        norms = measured.norms()
        return measured.weighted_sum(factors(norms)), ExampleInfo(loss, norms, aux)

    return chunk_sum


def clip_factors(norms: jax.Array, clip_norm: Any) -> jax.Array:
    """`min(1, clip_norm / norm)`, with a finite derivative where the norm is zero."""
    limit = jnp.asarray(clip_norm).astype(norms.dtype)
    over = norms > limit
    one = jnp.ones((), norms.dtype)
    return jnp.where(over, limit / jnp.where(over, norms, one), one)

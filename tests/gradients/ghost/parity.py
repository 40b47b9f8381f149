"""Compare ghost norms and weighted sums with `jax.vmap(jax.grad)`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import global_norm
from fnopt.errors import check_chunk_size
from fnopt.gradients._loss import BoundLoss, ExampleLoss
from fnopt.gradients._sums import weighted_total, zero_sums
from fnopt.gradients.ghost._trace import Ghost, trace_ghost
from fnopt.numerics import scan_chunks


class Parity(NamedTuple):
    """The differences between `method='ghost'` and `jax.vmap(jax.grad)`.

    Attributes:
        norm_error: `|norm - naive norm| / naive norm` of every example, `[n]`.
        grad_error: Tree like the params: the largest error of an entry of a weighted sum of
            gradients, divided by the sum of the norms of these gradients.
    """

    norm_error: jax.Array
    grad_error: Any

    @property
    def worst(self) -> jax.Array:
        """The largest of all errors; NaN if an error is NaN."""
        return jnp.max(jnp.stack([self.norm_error.max(), *jax.tree.leaves(self.grad_error)]))


def ghost_parity(
    loss_fn: Callable[..., Any],
    *,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    batch_argnums: int | Sequence[int] | None = None,
    chunk_size: int | None = 8,
) -> Callable[..., Parity]:
    """Return a function that compares norms and weighted sums with `jax.vmap(jax.grad)`.

    Args:
        loss_fn: The loss of one example.
        argnums: Which positional arguments to differentiate.
        has_aux: Whether `loss_fn` returns `(scalar, aux)`.
        batch_argnums: Which positional arguments have a leading example axis.
        chunk_size: Number of examples to differentiate at once.

    Returns:
        A function `(params, batch, ..., key=None) -> Parity`. In float32, `worst` is a few times
        1e-7, and up to 1e-5 if the terms of an example's gradient nearly cancel.
    """
    spec = ExampleLoss(loss_fn, argnums, batch_argnums, has_aux, "ghost_parity")
    chunk_size = check_chunk_size(chunk_size, spec.name)

    def parity_fn(*args: Any, key: Any = None, **kwargs: Any) -> Parity:
        bound = spec.bind(args, kwargs, key)
        norms, total = _reduced(bound, _measured(trace_ghost(bound)), chunk_size)
        naive_norms, naive_total = _reduced(bound, _naive(bound), chunk_size)
        norm_error = _relative(jnp.abs(norms - naive_norms), naive_norms)
        scale = jnp.sum(naive_norms)
        grad_error = jax.tree.map(
            lambda a, b: _relative(jnp.max(jnp.abs(a - b), initial=0.0), scale), total, naive_total
        )
        return Parity(norm_error, spec.like_argnums(grad_error))

    return parity_fn


Reduced = Callable[[Any, jax.Array], tuple[jax.Array, Any]]
"""`fn(chunk, weights)`, which returns the norms and the weighted sum of the gradients."""


def _reduced(bound: BoundLoss, fn: Reduced, chunk_size: int | None) -> tuple[jax.Array, Any]:
    def body(sums: Any, chunk: Any) -> tuple[Any, jax.Array]:
        norms, total = fn(*chunk)
        return jax.tree.map(jnp.add, sums, total), norms

    # With equal weights, permuted examples would have the same sum.
    weights = jnp.linspace(0.5, 1.0, bound.size, dtype=jnp.float32)
    batch = (bound.batch, weights)
    sums, norms = scan_chunks(body, zero_sums(bound.params), batch, bound.size, chunk_size)
    return norms, sums


def _measured(ghost: Ghost) -> Reduced:
    def fn(chunk: Any, weights: jax.Array) -> tuple[jax.Array, Any]:
        measured = ghost.measure(chunk)
        return measured.norms()[0], measured.weighted_sum([weights] * len(ghost.params))

    return fn


def _naive(bound: BoundLoss) -> Reduced:
    def one(example: Any) -> Any:
        return jax.grad(bound.loss, has_aux=True)(bound.params, example)[0]

    def fn(chunk: Any, weights: jax.Array) -> tuple[jax.Array, Any]:
        grads = jax.vmap(one)(chunk)
        total = jax.tree.map(lambda g: weighted_total(weights, g), grads)
        return jax.vmap(global_norm)(grads), total

    return fn


def _relative(error: jax.Array, scale: jax.Array) -> jax.Array:
    tiny = jnp.finfo(scale.dtype).tiny
    return error.astype(scale.dtype) / jnp.maximum(scale, jnp.asarray(tiny, scale.dtype))

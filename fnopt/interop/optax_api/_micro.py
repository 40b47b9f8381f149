"""Functions of a batch, a part of it at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt import gradients
from fnopt.interop.optax_api._types import AccumulationType


def reshape_batch_axis(tree: Any, microbatch_size: int, axis: int = 0) -> Any:
    """Arrays whose axis of examples is cut into an axis of parts and one of their examples.

    Neighbours go to different parts: part `i` has every `k`-th example from the `i`-th on.
    """

    def leaf(x: Any) -> jax.Array:
        x = jnp.asarray(x)
        new = (*x.shape[:axis], microbatch_size, -1, *x.shape[axis + 1 :])
        return jnp.swapaxes(x.reshape(new), axis, axis + 1)

    return jax.tree.map(leaf, tree)


def microbatch(
    fun: Callable[..., Any],
    argnums: int | Sequence[int],
    microbatch_size: int | None,
    accumulator: Any = AccumulationType.SUM,
    *,
    argnames: str | Sequence[str] = (),
    in_axes: int | Sequence[int] = 0,
    num_real_microbatches: Any = None,
) -> Callable[..., Any]:
    """`fnopt.microbatch` with optax's rules; `in_axes` is one axis for all."""
    _check_whole(num_real_microbatches)
    return gradients.microbatch(
        fun, argnums, microbatch_size, accumulator, argnames=argnames, in_axes=_one(in_axes)
    )


def micro_vmap(
    fun: Callable[..., Any],
    in_axes: int | Sequence[int | None] = 0,
    out_axes: Any = 0,
    *,
    microbatch_size: int | None = None,
    vmap_fn: Callable[..., Any] = jax.vmap,
    accumulator: Any = AccumulationType.CONCAT,
    num_real_microbatches: Any = None,
) -> Callable[..., Any]:
    """`jax.vmap`, a few examples at a time, whose results are put together by a rule."""
    _check_whole(num_real_microbatches)
    if out_axes != 0:
        raise NotImplementedError(f"micro_vmap: out_axes = {out_axes}, expected 0.")

    def mapped(*args: Any) -> Any:
        axes = (in_axes,) * len(args) if isinstance(in_axes, int) else tuple(in_axes)
        batched = [i for i, axis in enumerate(axes) if axis is not None]
        front = [
            x if a is None else jax.tree.map(lambda leaf, a=a: jnp.moveaxis(leaf, a, 0), x)
            for x, a in zip(args, axes, strict=True)
        ]
        each = vmap_fn(fun, tuple(None if a is None else 0 for a in axes), 0)

        def together(*args: Any) -> Any:
            results = each(*args)
            return jax.tree.map(
                lambda rule, tree: jax.tree.map(lambda y: _together(rule, y), tree),
                accumulator,
                results,
            )

        return gradients.microbatch(together, batched, microbatch_size, accumulator)(*front)

    return mapped


class Aux(NamedTuple):
    """What is beside the gradients of the examples, in the order of the examples."""

    values: Any
    metrics: Any
    aux: Any


def micro_grad(
    fun: Callable[..., Any],
    has_aux: bool = False,
    argnums: int | Sequence[int] = 0,
    *,
    batch_argnums: int | Sequence[int] = 1,
    keep_batch_dim: bool = True,
    microbatch_size: int | None = None,
    accumulator: Any = AccumulationType.SUM,
    transform_fn: Callable[[Any], Any] = lambda grads: grads,
    metrics_fn: Callable[[Any], Any] = lambda grads: None,
    num_real_microbatches: Any = None,
) -> Callable[..., tuple[Any, Aux]]:
    """Gradients of single examples, transformed, and put together by a rule.

    `fnopt.clipped_grad` and `fnopt.weighted_grad` do it without forming them.

    Args:
        fun: A function of params and a batch.
        has_aux: Whether it returns something beside its value.
        argnums: What to differentiate with respect to.
        batch_argnums: Which arguments have an axis of examples.
        keep_batch_dim: Whether `fun` sees that axis, of one example, or none.
        microbatch_size: How many examples at once.
        accumulator: How the results of `transform_fn` are put together.
        transform_fn: What is made of an example's gradient.
        metrics_fn: What is told of an example's gradient.
        num_real_microbatches: Only None.

    Returns:
        A function of the same arguments: gradients, and values, metrics and aux by example.
    """
    batched = (batch_argnums,) if isinstance(batch_argnums, int) else tuple(batch_argnums)
    value_and_grad = jax.value_and_grad(fun, argnums, has_aux=has_aux)

    def of_one(*args: Any) -> Any:
        given = list(args)
        for i in batched if keep_batch_dim else ():
            given[i] = jax.tree.map(lambda x: x[None], given[i])
        value, grads = value_and_grad(*given)
        value, aux = value if has_aux else (value, None)
        return transform_fn(grads), Aux(value, metrics_fn(grads), aux)

    def of_batch(*args: Any) -> tuple[Any, Aux]:
        axes = [0 if i in batched else None for i in range(len(args))]
        rules = (accumulator, AccumulationType.CONCAT)
        return micro_vmap(
            of_one,
            axes,
            microbatch_size=microbatch_size,
            accumulator=rules,
            num_real_microbatches=num_real_microbatches,
        )(*args)

    return of_batch


def _together(rule: Any, y: jax.Array) -> jax.Array:
    if rule == AccumulationType.CONCAT:
        return y
    return jnp.sum(y, axis=0) if rule == AccumulationType.SUM else jnp.mean(y, axis=0)


def _one(in_axes: int | Sequence[int]) -> int:
    axes = {in_axes} if isinstance(in_axes, int) else {*in_axes}
    if len(axes) != 1:
        raise ValueError(f"microbatch: in_axes = {in_axes}, expected one axis for all arguments.")
    return axes.pop()


def _check_whole(num_real_microbatches: Any) -> None:
    if num_real_microbatches is not None:
        raise ValueError(
            "num_real_microbatches is given, expected None: all parts are computed. Leave examples "
            "out by weights, as in fnopt.weighted_grad."
        )

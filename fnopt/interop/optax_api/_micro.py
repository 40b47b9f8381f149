"""Functions of one example over a batch, a few examples at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from fnopt.interop.optax_api._accumulate import as_accumulator
from fnopt.interop.optax_api._microbatch import microbatch
from fnopt.interop.optax_api._types import AccumulationType


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
    """`jax.vmap`, a few examples at a time, whose results are put together by a rule.

    Keyword arguments have their examples along the first axis. See `microbatch`.
    """
    if out_axes != 0:
        raise NotImplementedError(f"micro_vmap: out_axes = {out_axes}, expected 0.")

    def mapped(*args: Any, **kwargs: Any) -> Any:
        axes = (in_axes,) * len(args) if isinstance(in_axes, int) else tuple(in_axes)

        def map_and_merge(*args: Any, named: Any) -> Any:
            results = vmap_fn(lambda named, *args: fun(*args, **named), (0, *axes), 0)(named, *args)
            return jax.tree.map(
                lambda rule, tree: as_accumulator(rule, 1, tree).aggregate(tree),
                accumulator,
                results,
            )

        batched = {i: axis for i, axis in enumerate(axes) if axis is not None}
        return microbatch(
            map_and_merge,
            tuple(batched),
            microbatch_size,
            accumulator,
            argnames="named",
            in_axes=(*batched.values(), 0),
            num_real_microbatches=num_real_microbatches,
        )(*args, named=kwargs)

    return mapped


class Aux(NamedTuple):
    """Values, metrics and aux of the examples, in their order."""

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
        num_real_microbatches: How many parts are computed, where not all.

    Returns:
        A function of the same arguments: gradients, and values, metrics and aux by example.
    """
    batched = (batch_argnums,) if isinstance(batch_argnums, int) else tuple(batch_argnums)
    value_and_grad = jax.value_and_grad(fun, argnums, has_aux=has_aux)

    def grad_of_example(*args: Any, **kwargs: Any) -> Any:
        given = list(args)
        for i in batched if keep_batch_dim else ():
            given[i] = jax.tree.map(lambda x: x[None], given[i])
        value, grads = value_and_grad(*given, **kwargs)
        value, aux = value if has_aux else (value, None)
        return transform_fn(grads), Aux(value, metrics_fn(grads), aux)

    def grad_of_batch(*args: Any, **kwargs: Any) -> tuple[Any, Aux]:
        axes = [0 if i in batched else None for i in range(len(args))]
        rules = (accumulator, AccumulationType.CONCAT)
        return micro_vmap(
            grad_of_example,
            axes,
            microbatch_size=microbatch_size,
            accumulator=rules,
            num_real_microbatches=num_real_microbatches,
        )(*args, **kwargs)

    return grad_of_batch

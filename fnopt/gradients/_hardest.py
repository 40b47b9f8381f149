"""The examples with the largest gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.errors import check_choice, check_count
from fnopt.gradients._clip_rule import check_where
from fnopt.gradients._loss import BoundLoss, ExampleLoss, check_not_empty
from fnopt.gradients._moments import totals
from fnopt.gradients._per_example import losses_and_norms
from fnopt.gradients._similarity import alignment_with_others
from fnopt.gradients._strategy import checked_strategy, choose, run_compiled
from fnopt.sharding import all_gather_tree, psum, replicate

CRITERIA = ("norm", "loss", "disagreement")


class HardExamples(NamedTuple):
    """The `k` hardest examples of a batch, sorted by decreasing score.

    Attributes:
        index: Positions of the examples in the batch, int32 `[k]`. If fewer than `k` examples are
            selected, the remaining entries are -1, and the corresponding entries of the other
            fields are undefined.
        score: The scores of the examples, `[k]`.
        loss: The losses of the examples, `[k]`.
        norm: The norms of the examples' gradients, `[k]`.
        aux: The auxiliary output of the loss for these examples; `None` without `has_aux`.
    """

    index: jax.Array
    score: jax.Array
    loss: jax.Array
    norm: jax.Array
    aux: Any = None


def hardest_examples(
    loss_fn: Callable[..., Any],
    k: int,
    *,
    by: str = "norm",
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    batch_argnums: int | Sequence[int] | None = None,
    method: str = "auto",
    chunk_size: int | None = None,
    axis_name: Any = None,
) -> Callable[..., HardExamples]:
    r"""Find the `k` examples with the largest gradient norm, loss or disagreement.

    The score of an example is

    .. math:: \lVert g_i \rVert, \qquad \ell(\theta, x_i) \qquad\text{or}\qquad
              -\cos\Bigl(g_i, \sum_{j \ne i} g_j\Bigr)

    If a model fits most of the data, mislabeled examples have high scores. The batch may be a
    whole data set, because only one chunk of gradients is in memory at a time.

    Args:
        loss_fn: `loss_fn(params, example, ...) -> scalar` for ONE example, or `(scalar, aux)`.
        k: Number of examples to return, from 1 to the size of the whole batch.
        by: `'norm'`, `'loss'` or `'disagreement'`. `'disagreement'` takes a second, forward-mode
            pass. In this pass, an out-of-bounds index of a table refers to the last row, as in
            `jax.jvp`; for norms, such an index refers to no row, as in `jax.grad`.
        argnums: The positional arguments to differentiate; the norm is over all of these arguments.
        has_aux: Whether `loss_fn` returns `(value, aux)`.
        batch_argnums: The positional arguments with a leading example axis; by default all
            after the last of `argnums`.
        method: As in `per_example_norms`.
        chunk_size: Number of examples to process at once; `None` chooses it from the sizes.
        axis_name: Inside `jax.shard_map` (or `jax.vmap` with a name), the named axis along which
            the batch is sharded, or several axes. All devices then receive the hardest examples of
            the whole batch, and `index` is the position in the whole batch.

    Returns:
        A function `(params, batch, ..., key=None, where=None)` -> `HardExamples`. Examples with a
        NaN score come first, and a NaN norm is treated as infinite. For `'disagreement'`, the sum
        omits examples with a non-finite gradient or loss. The bool array `where` of shape `[n]`
        selects examples.

    Raises:
        TypeError: If a parameter isn't floating, or the loss doesn't return a real scalar.
        ValueError: If there are fewer than `k` examples, the example axes disagree, or an option is
            invalid.

    Example:
        >>> from fnopt.gradients import hardest_examples
        >>> x = jnp.array([[3.0, 4.0], [0.0, 1.0], [-6.0, -8.0], [0.0, 2.0]])
        >>> found = hardest_examples(lambda w, x: w @ x, 2)(jnp.zeros(2), x)
        >>> found.index.tolist(), found.norm.tolist()
        ([2, 0], [10.0, 5.0])
    """
    spec = ExampleLoss(loss_fn, argnums, batch_argnums, has_aux, "hardest_examples")
    check_choice(by, CRITERIA, "by", spec.name)
    chunk_size = checked_strategy(method, chunk_size, spec.name)
    check_count(k, "k", spec.name)

    def hardest_fn(*args: Any, key: Any = None, where: Any = None, **kwargs: Any) -> HardExamples:
        bound = spec.bind(args, kwargs, key, axis_name)
        check_not_empty(bound.params, spec.name)
        size = bound.size * psum(1, axis_name)
        if k > size:
            raise ValueError(
                f"{spec.name}: k is {k}, expected at most {size}, the number of examples."
            )
        wanted = check_where(where, bound.size, spec.name)
        options = {"by": by, "method": method, "chunk_size": chunk_size, "axis_name": axis_name}
        return run_compiled(_hardest, bound, wanted, k=k, **options)

    return hardest_fn


def _hardest(
    bound: BoundLoss,
    wanted: jax.Array | None,
    *,
    k: int,
    by: str,
    method: str,
    chunk_size: int | None,
    axis_name: Any,
) -> HardExamples:
    strategy = choose(method, chunk_size, bound)
    if by == "disagreement":
        found = totals(bound, strategy, wanted, skip_nonfinite=True, axis_name=axis_name)
        loss, norm, aux = found.loss, found.norm, found.aux
        score = -alignment_with_others(bound, found, chunk_size)
    else:
        loss, (norm,), aux = losses_and_norms(bound, strategy)
        score = norm if by == "norm" else loss
    known = score, loss, norm, aux
    if axis_name is None:
        return _select_hardest(k, wanted, *known)
    # At most k examples of each device can be among the k hardest of all devices.
    found = _select_hardest(min(k, known[0].size), wanted, *known)
    here = found.index + known[0].size * jax.lax.axis_index(axis_name)
    counts = found.index >= 0
    counts, here, rest = all_gather_tree((counts, here, found[1:]), axis_name)
    found = _select_hardest(k, counts, *rest)
    index = jnp.where(found.index < 0, found.index, here[found.index])
    return found._replace(index=index)


def _select_hardest(
    k: int,
    wanted: jax.Array | None,
    score: jax.Array,
    loss: jax.Array,
    norm: jax.Array,
    aux: Any,
) -> HardExamples:
    # A selection of k of n numbers needs all numbers on every device.
    score, wanted, (loss, norm, aux) = jax.tree.map(
        lambda x: replicate(x, 0), (score, wanted, (loss, norm, aux))
    )
    # An example with a NaN score is the most important for the user.
    order = jnp.where(jnp.isnan(score), jnp.full_like(score, jnp.inf), score)
    wanted = jnp.ones(score.shape, jnp.bool_) if wanted is None else wanted
    # Two sort keys, because a wanted example may have a score of minus infinity.
    order = jnp.lexsort((-order, ~wanted))[:k]
    index = jnp.where(wanted[order], order, jnp.full_like(order, -1)).astype(jnp.int32)
    return HardExamples(index, *jax.tree.map(lambda x: x[order], (score, loss, norm, aux)))

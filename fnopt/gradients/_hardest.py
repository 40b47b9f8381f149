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
from fnopt.gradients._strategy import checked_strategy, choose_strategy, run_compiled
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
            pass. In this pass, an out-of-bounds index of a table selects the last row, as in
            `jax.jvp`. In the first pass, such an index selects no row, as in `jax.grad`. For a loss
            with a `jax.custom_vjp`, the second pass forms the gradients of one chunk at a time.
        argnums: The positional arguments to differentiate; the norm is over all of these arguments.
        has_aux: Whether `loss_fn` returns `(value, aux)`.
        batch_argnums: The positional arguments with a leading example axis; by default all
            arguments after the last of `argnums`.
        method: As in `per_example_norms`.
        chunk_size: Number of examples to process at once; by default chosen for the memory budget.
        axis_name: Inside `jax.shard_map` (or `jax.vmap` with a name), the named axis along which
            the batch is sharded, or several axes. All devices then receive the hardest examples of
            the whole batch, and `index` is the position in the whole batch.

    Returns:
        A function `(params, batch, ..., key=None, where=None)` -> `HardExamples`. A NaN score is
        treated as infinite, so such examples come first. For `'disagreement'`, the sum omits
        examples with a non-finite gradient or loss. The bool array `where` of shape `[n]` selects
        examples.

    Raises:
        TypeError: If a parameter isn't floating, or the loss doesn't return a real scalar.
        ValueError: If there are fewer than `k` examples, the example axes disagree, or an option is
            invalid.

    Example:
        >>> from fnopt.gradients import hardest_examples
        >>> x = jnp.array([[3.0, 4.0], [0.0, 1.0], [-6.0, -8.0], [0.0, 2.0]])
        >>> hardest = hardest_examples(lambda w, x: w @ x, 2)(jnp.zeros(2), x)
        >>> hardest.index.tolist(), hardest.norm.tolist()
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
        mask = check_where(where, bound.size, spec.name)
        options = {"by": by, "method": method, "chunk_size": chunk_size, "axis_name": axis_name}
        return run_compiled(_hardest, bound, mask, k=k, **options)

    return hardest_fn


def _hardest(
    bound: BoundLoss,
    mask: jax.Array | None,
    *,
    k: int,
    by: str,
    method: str,
    chunk_size: int | None,
    axis_name: Any,
) -> HardExamples:
    strategy = choose_strategy(method, chunk_size, bound)
    if by == "disagreement":
        sums = totals(bound, strategy, mask, skip_nonfinite=True, axis_name=axis_name)
        loss, norm, aux = sums.loss, sums.norm, sums.aux
        score = -alignment_with_others(bound, sums, chunk_size)
    else:
        loss, (norm,), aux = losses_and_norms(bound, strategy)
        score = norm if by == "norm" else loss
    if axis_name is None:
        return _select_hardest(k, mask, score, loss, norm, aux)
    # Every device contributes at most k candidates, so that few numbers are gathered.
    local = _select_hardest(min(k, score.size), mask, score, loss, norm, aux)
    position = local.index + score.size * jax.lax.axis_index(axis_name)
    valid = local.index >= 0
    valid, position, fields = all_gather_tree((valid, position, local[1:]), axis_name)
    hardest = _select_hardest(k, valid, *fields)
    index = jnp.where(hardest.index < 0, hardest.index, position[hardest.index])
    return hardest._replace(index=index)


def _select_hardest(
    k: int,
    mask: jax.Array | None,
    score: jax.Array,
    loss: jax.Array,
    norm: jax.Array,
    aux: Any,
) -> HardExamples:
    # A sort needs all scores on every device.
    score, mask, (loss, norm, aux) = jax.tree.map(
        lambda x: replicate(x, 0), (score, mask, (loss, norm, aux))
    )
    # NaN scores come first, because they identify broken examples; a sort would put them last.
    order = jnp.where(jnp.isnan(score), jnp.full_like(score, jnp.inf), score)
    mask = jnp.ones(score.shape, jnp.bool_) if mask is None else mask
    # Two sort keys, because a selected example may also have a score of minus infinity.
    order = jnp.lexsort((-order, ~mask))[:k]
    index = jnp.where(mask[order], order, jnp.full_like(order, -1)).astype(jnp.int32)
    return HardExamples(index, *jax.tree.map(lambda x: x[order], (score, loss, norm, aux)))

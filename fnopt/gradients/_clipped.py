"""Sums of clipped per-example gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.errors import check_choice
from fnopt.gradients._clip_rule import (
    RULES,
    Blocks,
    blocks_of,
    check_limits,
    check_where,
    clip_factors,
)
from fnopt.gradients._loss import BoundLoss, ExampleLoss
from fnopt.gradients._moments import measure
from fnopt.gradients._strategy import Strategy, checked_strategy, choose_strategy, run_compiled
from fnopt.gradients._sums import REDUCTIONS, like_params, zero_sums
from fnopt.numerics import joint_norm, scan_chunks
from fnopt.sharding import psum, reshard_like, sharded_full_like


class ExampleInfo(NamedTuple):
    """The loss, the gradient norm and the clipping of every example.

    Attributes:
        loss: The loss of every example, `[n]`.
        norm: The global norm of every example's gradient before clipping, `[n]`, at least
            float32. A non-finite norm identifies an example with a bad gradient.
        aux: The auxiliary output of the loss, with a leading example axis; `None` without
            `has_aux`.
        parts: If `clip_norm` is a tree, a tree of the same structure with the norms of the clipped
            subtrees, `[n]` each; otherwise None.
    """

    loss: jax.Array
    norm: jax.Array
    aux: Any = None
    parts: Any = None


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
    rule: str = "clip",
    skip_nonfinite: bool = False,
    axis_name: Any = None,
) -> Callable[..., tuple[Any, ExampleInfo]]:
    r"""Clip the gradient of every example by its global norm, and sum the results.

    .. math:: g = \sum_{i=1}^n g_i \min\Bigl(1, \frac{C}{\lVert g_i \rVert}\Bigr),
              \qquad g_i = \nabla_\theta\, \ell(\theta, x_i)

    A single example changes the sum by at most `C`, up to rounding. Robust training and
    differentially private SGD rely on this bound (see `add_noise`). An example with a non-finite
    gradient makes the sum non-finite, unless `skip_nonfinite` is set. `info.norm` identifies such
    an example. In float32, a gradient whose norm exceeds 8e37 times `C` doesn't contribute to the
    sum, because the scale factor underflows.

    Args:
        loss_fn: `loss_fn(params, example, ...) -> scalar` for ONE example, or `(scalar, aux)`.
        clip_norm: The largest norm `C` > 0 of one example's gradient; a number or a scalar array,
            which may be traced. Infinity disables clipping. A tree of such numbers that is a prefix
            of the params, such as `{'encoder': 1.0, 'head': 0.1}`, clips each subtree separately.
        argnums: The positional arguments to differentiate; the norm is over all of these arguments.
        has_aux: Whether `loss_fn` returns `(value, aux)`; `info.aux` then contains `aux`.
        batch_argnums: The positional arguments with a leading example axis; by default all
            arguments after the last of `argnums`.
        reduction: `'sum'`, or `'mean'`, which divides by the number of examples that `where`
            selects (all by default). This number includes examples that `skip_nonfinite` skips. For
            private training, divide the sum by the expected number of examples instead.
        method: `'ghost'` computes norms from activations and cotangents, and forms the gradient of
            a matrix only if this is cheap; `ghost_report` shows the choice. `'vmap'` forms the
            gradients of all examples at once, and `'chunked'` forms the gradients of a chunk at a
            time. `'auto'` is `'ghost'` if the activations and cotangents of an example take less
            memory than the gradient, else `'chunked'`.
        chunk_size: Number of examples to process at once; by default chosen for the memory budget.
        rule: `'clip'` uses the factor above. `'automatic'` scales every gradient by `C / (norm +
            0.01)`; `C` is then a factor of the learning rate and needs no tuning.
        skip_nonfinite: Whether to replace the gradient of an example by zero if its gradient or
            loss isn't finite.
        axis_name: Inside `jax.shard_map` (or `jax.vmap` with a name), the named axis along which
            the batch is sharded, or several axes. Sums then cover all devices, and all devices get
            the same result. `None` sums over the examples of this call.

    Returns:
        A function `(params, batch, ..., key=None, where=None)` -> `(gradient, info)`. The gradient
        has the structure and dtypes of the params; sums are accumulated in float32 or wider. `info`
        is an `ExampleInfo` with the loss and the norm of every example. The bool array `where` of
        shape `[n]` selects examples. Other examples, such as the padding of a batch, don't
        contribute, even if their gradients are NaN.

    Raises:
        TypeError: If a parameter isn't floating, or the loss doesn't return a real scalar.
        ValueError: If the example axes disagree or are empty, or an option is invalid.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.gradients import clipped_grad
        >>> x = jnp.array([[3.0, 4.0], [0.0, 1.0]])
        >>> grad, info = clipped_grad(lambda w, x: w @ x, 2.5)(jnp.zeros(2), x)
        >>> grad.tolist(), info.norm.tolist()
        ([1.5, 3.0], [5.0, 1.0])

    Reference:
        Abadi et al., 2016, "Deep Learning with Differential Privacy", arXiv:1607.00133. Bu et al.,
        2022, "Automatic Clipping: Differentially Private Deep Learning Made Easier and Stronger",
        arXiv:2206.07136.
    """
    spec = ExampleLoss(loss_fn, argnums, batch_argnums, has_aux, "clipped_grad")
    check_limits(clip_norm, spec.name)
    check_choice(reduction, REDUCTIONS, "reduction", spec.name)
    check_choice(rule, RULES, "rule", spec.name)
    options = {
        "reduction": reduction,
        "method": method,
        "chunk_size": checked_strategy(method, chunk_size, spec.name),
        "axis_name": axis_name,
    }

    def grad_fn(
        *args: Any, key: Any = None, where: Any = None, **kwargs: Any
    ) -> tuple[Any, ExampleInfo]:
        bound = spec.bind(args, kwargs, key, axis_name)
        mask = check_where(where, bound.size, spec.name)
        blocks = blocks_of(spec.like_argnums(bound.params), clip_norm, spec.name)
        # The limits may be traced arrays, so they aren't part of the static options.
        clip = Clip(blocks._replace(limits=()), rule, skip_nonfinite)
        grads, info = run_compiled(
            _clip_gradients, bound, mask, blocks.limits, clip=clip, **options
        )
        return spec.like_argnums(grads), info

    return grad_fn


def _clip_gradients(
    bound: BoundLoss,
    mask: jax.Array | None,
    limits: tuple[Any, ...],
    *,
    clip: Clip,
    reduction: str,
    method: str,
    chunk_size: int | None,
    axis_name: Any,
) -> tuple[Any, ExampleInfo]:
    clip = clip._replace(blocks=clip.blocks._replace(limits=limits))
    sums, info = _clipped_sum(bound, mask, clip, choose_strategy(method, chunk_size, bound))
    sums = psum(sums, axis_name)
    if reduction == "mean":
        # The divisor includes skipped examples, because their number depends on private data.
        count = psum(bound.size if mask is None else jnp.sum(mask), axis_name)
        count = jnp.maximum(count, 1)
        sums = jax.tree.map(lambda total: total / jnp.asarray(count, total.dtype), sums)
    return like_params(sums, bound.given), info


class Clip(NamedTuple):
    """Clipping options for the gradient of an example.

    Attributes:
        blocks: Blocks of params that share a scale factor, with their limits.
        rule: The clipping rule.
        skip_nonfinite: Whether non-finite examples are skipped.
    """

    blocks: Blocks
    rule: str
    skip_nonfinite: bool

    def apply(
        self, info: ExampleInfo, norms: Sequence[jax.Array], mask: jax.Array | None
    ) -> tuple[list[jax.Array], jax.Array | None, ExampleInfo]:
        """Compute the scale factors of the examples.

        Returns:
            The scale factors `[n]` per leaf, the mask of the selected examples (`None` for all),
            and `info` with the norms of the blocks.
        """
        if self.skip_nonfinite:
            finite = jnp.isfinite(info.norm) & jnp.isfinite(info.loss)
            mask = finite if mask is None else mask & finite
        weights = [
            clip_factors(n, c, self.rule) for n, c in zip(norms, self.blocks.limits, strict=True)
        ]
        if mask is not None:
            # A select, because the factor of an excluded example may be NaN, and NaN * 0 is NaN.
            weights = [
                jnp.where(reshard_like(mask, w), w, sharded_full_like(w, 0)) for w in weights
            ]
        if self.blocks.is_tree:
            info = info._replace(parts=jax.tree.unflatten(self.blocks.tree, norms))
        return [weights[i] for i in self.blocks.of_leaf], mask, info


def _clipped_sum(
    bound: BoundLoss, mask: jax.Array | None, clip: Clip, strategy: Strategy
) -> tuple[Any, ExampleInfo]:
    measure_chunk, blocks = measure(bound, strategy), clip.blocks.of_leaf

    def add_chunk(sums: Any, chunk: tuple[Any, Any]) -> tuple[Any, ExampleInfo]:
        gradients, mask = measure_chunk(chunk[0], blocks), chunk[1]
        loss, aux = gradients.loss_and_aux
        norms = [*gradients.norms(blocks, len(clip.blocks.limits))]
        info = ExampleInfo(loss, joint_norm(norms), aux)
        weights, mask, info = clip.apply(info, norms, mask)
        gradients = gradients if mask is None else gradients.zero_excluded(mask)
        return jax.tree.map(jnp.add, sums, gradients.weighted_sum(weights)), info

    batch = (bound.batch, mask)
    return scan_chunks(add_chunk, zero_sums(bound.params), batch, bound.size, strategy.chunk_size)

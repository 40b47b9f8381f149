"""The mean and the variance of the gradients of the examples of a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import (
    check_some,
    compute_dtype,
    laid_like,
    over_devices,
    quotient,
    real_dtype,
    scan_chunks,
    sum_of_squares,
)
from fnopt.gradients._alignment import alignment_with_others
from fnopt.gradients._clip_rule import check_where
from fnopt.gradients._loss import BoundLoss, ExampleLoss
from fnopt.gradients._measure import Measured, measure
from fnopt.gradients._methods import Way, checked_way, choose
from fnopt.gradients._sums import like_params, zero_sums


class GradientStatistics(NamedTuple):
    """Statistics of the gradients of `n` examples.

    Attributes:
        mean: The mean gradient, like the params.
        variance: By leaf: the variance summed over all numbers in it, the trace of the covariance
            of one example's gradient; unbiased. NaN where fewer than two examples count.
        snr: By leaf: the signal-to-noise ratio, `|mean|^2 / variance`, where `|mean|^2` is
            estimated without the part that is noise; may be negative if there is hardly a signal.
            Zero for a param that the loss ignores, infinite where all gradients are the same.
        noise_scale: The simple noise scale of all params, `sum(variance) / |mean|^2` with the same
            estimate: the batch size from which on larger batches hardly help.
        loss: The loss of every example, `[n]`.
        norm: The global norm of every example's gradient, `[n]`. A value that isn't finite says
            which example has a bad gradient.
        aux: What the loss returned beside its value; else `None`.
        count: How many examples count, int32.
        alignment: With `alignment=True`: the cosine of the angle between the gradient of every
            example and the mean of those of all others, `[n]`; else `None`.
    """

    mean: Any
    variance: Any
    snr: Any
    noise_scale: jax.Array
    loss: jax.Array
    norm: jax.Array
    aux: Any
    count: jax.Array
    alignment: jax.Array | None = None


def gradient_statistics(
    loss_fn: Callable[..., Any],
    *,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    batch_argnums: int | Sequence[int] | None = None,
    method: str = "auto",
    chunk_size: int | None = None,
    alignment: bool = False,
    skip_nonfinite: bool = False,
    axis_name: Any = None,
) -> Callable[..., GradientStatistics]:
    r"""Mean, variance and signal-to-noise ratio of per-example gradients, in one pass.

    With the mean gradient :math:`g` of :math:`n` examples, for every leaf and for all together:

    .. math:: v = \frac{\sum_i \lVert g_i - g \rVert^2}{n - 1}, \qquad
              s = \lVert g \rVert^2 - \frac vn, \qquad
              \mathrm{snr} = \frac sv, \qquad B_\mathrm{simple} = \frac vs

    No gradient of an example is kept, so it costs little more than the mean gradient. Squares are
    taken around one gradient of each chunk, and chunks are merged by their means, so that a spread
    that is small beside the mean keeps its digits. A second pass (one forward-mode derivative
    along the mean) says which examples disagree with the others:

    .. math:: \mathrm{alignment}_i = \cos\Bigl(g_i, \sum_{j \ne i} g_j\Bigr)

    Args:
        loss_fn: `loss_fn(params, example, ...) -> scalar` for ONE example, or `(scalar, aux)`.
        argnums: Which positional arguments to differentiate.
        has_aux: Whether `loss_fn` returns `(value, aux)`.
        batch_argnums: Which positional arguments have a leading example axis; by default all
            after the last of `argnums`.
        method: As in `per_example_norms`.
        chunk_size: How many examples to take at once; `None` lets the sizes decide.
        alignment: Whether to make the second pass.
        skip_nonfinite: Whether an example with a gradient or a loss that isn't finite is left out
            of all sums. Without it, one such example makes them NaN.
        axis_name: Inside `jax.shard_map` (or `jax.vmap` with a name), the named axis that the batch
            is divided over, or several: sums run over all of its devices, and the result is the
            same on all. `None` for the examples of this call.

    Returns:
        A function `(params, batch, ..., key=None, where=None)` -> `GradientStatistics`. `where`,
        bool `[n]`, says which examples count, whatever is in the others. At least two have to.

    Raises:
        TypeError: If a parameter isn't floating, or the loss doesn't return a real scalar.
        ValueError: If there is a single example, or no param, or the example axes disagree or are
            empty.

    Example:
        >>> from fnopt.gradients import gradient_statistics
        >>> x = jnp.array([[1.0, 0.0], [1.0, 2.0], [1.0, 1.0]])
        >>> found = gradient_statistics(lambda w, x: w @ x)(jnp.zeros(2), x)
        >>> found.mean.tolist(), float(found.variance)
        ([1.0, 1.0], 1.0)

    Reference:
        McCandlish et al., 2018, "An Empirical Model of Large-Batch Training", arXiv:1812.06162.
        Chan, Golub and LeVeque, 1983, "Algorithms for Computing the Sample Variance", The American
        Statistician 37.
    """
    spec = ExampleLoss(loss_fn, argnums, batch_argnums, has_aux, "gradient_statistics")
    chunk_size = checked_way(method, chunk_size, spec.name)

    def statistics_fn(
        *args: Any, key: Any = None, where: Any = None, **kwargs: Any
    ) -> GradientStatistics:
        bound = spec.bind(args, kwargs, key, axis_name)
        check_some(bound.params, spec.name)
        if bound.size * over_devices(1, axis_name) < 2:
            raise ValueError(f"{spec.name}: the batch has 1 example, a variance needs at least 2.")
        wanted = check_where(where, bound.size, spec.name)
        found = totals(bound, choose(method, chunk_size, bound), wanted, skip_nonfinite)
        found = found.of_all_devices(axis_name)
        return _finished(found, bound, spec, alignment, chunk_size)

    return statistics_fn


class Moments(NamedTuple):
    """The first two moments of some gradients.

    Attributes:
        count: How many gradients, int32.
        mean: Their mean, like the params, at least float32; zero of none.
        spread: By leaf: the sum of the squared distances from the mean.
    """

    count: jax.Array
    mean: Any
    spread: list[jax.Array]


class Totals(NamedTuple):
    """Sums over the examples that count, and the figures of every example.

    Attributes:
        moments: Of the gradients that count.
        counts: Which examples count, bool `[n]`; `None` for all.
        loss: The loss of every example, `[n]`.
        norm: The norm of every example's gradient, `[n]`.
        aux: What the loss returned beside its value.
    """

    moments: Moments
    counts: jax.Array | None
    loss: jax.Array
    norm: jax.Array
    aux: Any

    def of_all_devices(self, axis_name: Any) -> Totals:
        """With the moments of the gradients of all devices of a named axis, if there is one."""
        if axis_name is None:
            return self
        return self._replace(moments=_of_all_devices(self.moments, axis_name))


def totals(bound: BoundLoss, way: Way, wanted: jax.Array | None, skip_nonfinite: bool) -> Totals:
    """One pass over the batch."""
    take, leaves = measure(bound, way), jax.tree.leaves(bound.params)

    def body(moments: Moments, chunk: tuple[Any, jax.Array | None]) -> tuple[Moments, Any]:
        seen, counts = take(chunk[0], range(len(leaves))), chunk[1]
        (loss, aux), norm = seen.loss_and_aux, seen.norms()[0]
        if skip_nonfinite:
            finite = jnp.isfinite(norm) & jnp.isfinite(loss)
            counts = finite if counts is None else counts & finite
        return _merged(moments, _moments(seen, counts, loss.shape[0])), (counts, loss, norm, aux)

    none = [jnp.zeros((), real_dtype(compute_dtype(jnp.result_type(p)))) for p in leaves]
    carry = Moments(jnp.zeros((), jnp.int32), zero_sums(bound.params), none)
    moments, outputs = scan_chunks(body, carry, (bound.batch, wanted), bound.size, way.chunk_size)
    return Totals(moments, *outputs)


def _moments(seen: Measured, counts: jax.Array | None, size: int) -> Moments:
    """The moments of a chunk."""
    if counts is not None:
        seen = seen.only(counts)
    counts = jnp.ones(size, jnp.bool_) if counts is None else counts
    count, ones = jnp.sum(counts, dtype=jnp.int32), counts.astype(jnp.float32)
    spread = seen.spread(ones)
    total = seen.weighted_sum([ones] * len(spread))
    return Moments(count, jax.tree.map(lambda t: _over(t, count), total), spread)


def _merged(a: Moments, b: Moments) -> Moments:
    """The moments of two sets of gradients together (Chan, Golub and LeVeque)."""
    count = a.count + b.count
    # Of the first chunk nothing changes: a share of 1, no gap to what was before.
    share = b.count.astype(jnp.float32) / jnp.maximum(count, 1).astype(jnp.float32)
    apart = a.count.astype(jnp.float32) * share

    def moved(x: jax.Array, y: jax.Array) -> jax.Array:
        y = laid_like(y, x)
        return jnp.where(a.count == 0, y, x + (y - x) * share.astype(x.dtype))

    pairs = zip(*map(jax.tree.leaves, (a.mean, b.mean)), strict=True)
    gaps = [_gap(x, y) for x, y in pairs]
    spread = [
        s + t + g * apart.astype(g.dtype) for s, t, g in zip(a.spread, b.spread, gaps, strict=True)
    ]
    return Moments(count, jax.tree.map(moved, a.mean, b.mean), spread)


def _of_all_devices(mine: Moments, axis_name: Any) -> Moments:
    """The moments of the gradients of all devices."""
    count, weighted = jax.lax.psum(
        (mine.count, jax.tree.map(lambda m: m * mine.count.astype(m.dtype), mine.mean)), axis_name
    )
    mean = jax.tree.map(lambda total: _over(total, count), weighted)
    gaps = [_gap(x, y) for x, y in zip(*map(jax.tree.leaves, (mine.mean, mean)), strict=True)]
    spread = [s + g * mine.count.astype(g.dtype) for s, g in zip(mine.spread, gaps, strict=True)]
    return Moments(count, mean, jax.lax.psum(spread, axis_name))


def _gap(x: jax.Array, y: jax.Array) -> jax.Array:
    return sum_of_squares(x - y.astype(x.dtype))


def _over(total: jax.Array, count: jax.Array) -> jax.Array:
    return total / jnp.maximum(count, 1).astype(total.dtype)


def _finished(
    found: Totals, bound: BoundLoss, spec: ExampleLoss, alignment: bool, chunk_size: int | None
) -> GradientStatistics:
    count, mean, spread = found.moments
    treedef = jax.tree.structure(mean)
    spreads = [_variance(m, s, count) for m, s in zip(jax.tree.leaves(mean), spread, strict=True)]
    variance, signal = ([*parts] for parts in zip(*spreads, strict=True))
    snr = [quotient(s, v) for s, v in zip(signal, variance, strict=True)]
    aligned = alignment_with_others(bound, found, chunk_size) if alignment else None
    return GradientStatistics(
        mean=spec.like_argnums(like_params(mean, bound.params)),
        variance=spec.like_argnums(treedef.unflatten(variance)),
        snr=spec.like_argnums(treedef.unflatten(snr)),
        noise_scale=quotient(_sum(variance), _sum(signal)),
        loss=found.loss,
        norm=found.norm,
        aux=found.aux,
        count=count,
        alignment=aligned,
    )


def _variance(mean: jax.Array, spread: jax.Array, count: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The variance, and the squared length of the mean without what is noise in it."""
    n, length = count.astype(spread.dtype), sum_of_squares(mean).astype(spread.dtype)
    variance = jnp.where(count < 2, jnp.full_like(spread, jnp.nan), spread / (n - 1))
    return variance, length - variance / n


def _sum(parts: list[jax.Array]) -> jax.Array:
    dtype = compute_dtype(*(p.dtype for p in parts))
    return jnp.sum(jnp.stack([p.astype(dtype) for p in parts]))

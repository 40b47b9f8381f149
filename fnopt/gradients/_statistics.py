"""How much the gradients of the examples of a batch differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import check_some, compute_dtype, real_dtype, scan_chunks
from fnopt.gradients._alignment import alignment_with_others
from fnopt.gradients._clip_rule import check_where, safe_root
from fnopt.gradients._loss import BoundLoss, ExampleLoss
from fnopt.gradients._methods import Way, checked_way, choose
from fnopt.gradients._sums import like_params, only_where, squared, weighted_total, zero_sums


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
) -> Callable[..., GradientStatistics]:
    r"""Mean, variance and signal-to-noise ratio of per-example gradients, in one pass.

    With the mean gradient :math:`g` of :math:`n` examples, for every leaf and for all together:

    .. math:: v = \frac{\sum_i \lVert g_i \rVert^2 - n \lVert g \rVert^2}{n - 1}, \qquad
              s = \lVert g \rVert^2 - \frac vn, \qquad
              \mathrm{snr} = \frac sv, \qquad B_\mathrm{simple} = \frac vs

    No gradient of an example is kept, so it costs little more than the mean gradient. A second
    pass (one forward-mode derivative along the mean) says which examples disagree with the others:

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
    """
    spec = ExampleLoss(loss_fn, argnums, batch_argnums, has_aux, "gradient_statistics")
    chunk_size = checked_way(method, chunk_size, spec.name)

    def statistics_fn(
        *args: Any, key: Any = None, where: Any = None, **kwargs: Any
    ) -> GradientStatistics:
        bound = spec.bind(args, kwargs, key)
        check_some(bound.params, spec.name)
        if bound.size < 2:
            raise ValueError(f"{spec.name}: the batch has 1 example, a variance needs at least 2.")
        wanted = check_where(where, bound.size, spec.name)
        found = totals(bound, choose(method, chunk_size, bound), wanted, skip_nonfinite)
        return _finished(found, bound, spec, alignment, chunk_size)

    return statistics_fn


class Totals(NamedTuple):
    """What is summed over the examples that count, and what is known of every example.

    Attributes:
        total: The sum of the gradients, like the params, at least float32.
        squares: By leaf: the sum of squared norms.
        counts: Which examples count, bool `[n]`; `None` for all.
        loss: The loss of every example, `[n]`.
        norm: The norm of every example's gradient, `[n]`.
        aux: What the loss returned beside its value.
    """

    total: Any
    squares: list[jax.Array]
    counts: jax.Array | None
    loss: jax.Array
    norm: jax.Array
    aux: Any

    @property
    def count(self) -> jax.Array:
        """How many examples count."""
        if self.counts is None:
            return jnp.full((), self.loss.shape[0], jnp.int32)
        return jnp.sum(self.counts, dtype=jnp.int32)


def totals(bound: BoundLoss, way: Way, wanted: jax.Array | None, skip_nonfinite: bool) -> Totals:
    """One pass over the batch."""
    see = _by_ghost(way) if way.ghost else _by_vmap(bound)

    def body(sums: Any, chunk: tuple[Any, jax.Array | None]) -> tuple[Any, Any]:
        seen, wanted = see(chunk[0]), chunk[1]
        counts = _counting(seen, wanted, skip_nonfinite)
        squares = [jnp.sum(_kept(counts, s)) for s in seen.squares]
        sums = jax.tree.map(jnp.add, sums, (seen.total(counts), squares))
        return sums, (counts, seen.loss, seen.norm, seen.aux)

    zeros = [jnp.zeros((), _real(p)) for p in jax.tree.leaves(bound.params)]
    batch, carry = (bound.batch, wanted), (zero_sums(bound.params), zeros)
    sums, outputs = scan_chunks(body, carry, batch, bound.size, way.chunk_size)
    return Totals(*sums, *outputs)


def _counting(seen: _Seen, wanted: jax.Array | None, skip_nonfinite: bool) -> jax.Array | None:
    if not skip_nonfinite:
        return wanted
    finite = jnp.isfinite(seen.norm) & jnp.isfinite(seen.loss)
    return finite if wanted is None else wanted & finite


def _kept(counts: jax.Array | None, x: jax.Array) -> jax.Array:
    return x if counts is None else only_where(counts, x)


def _finished(
    found: Totals, bound: BoundLoss, spec: ExampleLoss, alignment: bool, chunk_size: int | None
) -> GradientStatistics:
    leaves, treedef = jax.tree.flatten(found.total)
    means = [t / jnp.maximum(found.count, 1).astype(t.dtype) for t in leaves]
    spreads = [_spread(m, s, found.count) for m, s in zip(means, found.squares, strict=True)]
    variance, signal = ([*parts] for parts in zip(*spreads, strict=True))
    snr = [_quotient(s, v) for s, v in zip(signal, variance, strict=True)]
    mean = like_params(treedef.unflatten(means), bound.params)
    aligned = alignment_with_others(bound, found, chunk_size) if alignment else None
    return GradientStatistics(
        mean=spec.like_argnums(mean),
        variance=spec.like_argnums(treedef.unflatten(variance)),
        snr=spec.like_argnums(treedef.unflatten(snr)),
        noise_scale=_quotient(_sum(variance), _sum(signal)),
        loss=found.loss,
        norm=found.norm,
        aux=found.aux,
        count=found.count,
        alignment=aligned,
    )


def _spread(mean: jax.Array, squares: jax.Array, count: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The variance, and the squared length of the mean without what is noise in it."""
    n, length = count.astype(squares.dtype), squared(mean).astype(squares.dtype)
    # Rounding may leave less than nothing of gradients that are all the same.
    variance = jnp.maximum(squares - n * length, 0) / (n - 1)
    variance = jnp.where(count < 2, jnp.full_like(variance, jnp.nan), variance)
    return variance, length - variance / n


def _quotient(a: jax.Array, b: jax.Array) -> jax.Array:
    """`a / b`, with 0 / 0 = 0: a param that the loss ignores has no signal, and no noise."""
    return a / jnp.where((a == 0) & (b == 0), jnp.ones_like(b), b)


def _real(leaf: Any) -> Any:
    return real_dtype(compute_dtype(jnp.result_type(leaf)))


def _sum(parts: list[jax.Array]) -> jax.Array:
    dtype = compute_dtype(*(p.dtype for p in parts))
    return jnp.sum(jnp.stack([p.astype(dtype) for p in parts]))


class _Seen(NamedTuple):
    """What is known of the gradients of a chunk.

    Attributes:
        total: From which examples count to the sum of their gradients.
        squares: By leaf: the squared norms of all examples, `[n]`.
        loss: The losses.
        norm: The norms of the gradients.
        aux: What the loss returned beside its value.
    """

    total: Callable[[jax.Array | None], Any]
    squares: list[jax.Array]
    loss: jax.Array
    norm: jax.Array
    aux: Any


def _by_vmap(bound: BoundLoss) -> Callable[[Any], _Seen]:
    def one(example: Any) -> Any:
        (loss, aux), grads = jax.value_and_grad(bound.loss, has_aux=True)(bound.params, example)
        return grads, [squared(g) for g in jax.tree.leaves(grads)], loss, aux

    def see(batch: Any) -> _Seen:
        grads, squares, loss, aux = jax.vmap(one)(batch)

        def total(counts: jax.Array | None) -> Any:
            ones = jnp.ones(loss.shape, jnp.float32)
            return jax.tree.map(lambda g: weighted_total(ones, _kept(counts, g)), grads)

        return _Seen(total, squares, loss, _norm(squares), aux)

    return see


def _by_ghost(way: Way) -> Callable[[Any], _Seen]:
    ghost = way.ghost
    assert ghost is not None
    leaves = len(ghost.params)

    def see(batch: Any) -> _Seen:
        seen = ghost.measure(batch, range(leaves))
        loss, aux = seen.loss_and_aux
        squares = zip(seen.squares(), ghost.params, strict=True)
        squares = [s.astype(_real(p)) for s, p in squares]

        def total(counts: jax.Array | None) -> Any:
            kept = seen if counts is None else seen.only(counts)
            return kept.weighted_sum([jnp.ones(loss.shape, jnp.float32)] * leaves)

        return _Seen(total, squares, loss, _norm(squares), aux)

    return see


def _norm(squares: list[jax.Array]) -> jax.Array:
    return safe_root(jnp.sum(jnp.stack([s.astype(squares[0].dtype) for s in squares]), axis=0))

"""How much the gradients of the examples of a batch differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import compute_dtype, default_float
from fnopt.gradients._chunks import checked_chunk_size, scan_chunks
from fnopt.gradients._clip_rule import safe_root
from fnopt.gradients._loss import BoundLoss, ExampleLoss
from fnopt.gradients._methods import Way, check_method, choose
from fnopt.gradients._sums import like_params, squared, weighted_total, zero_sums


class GradientStatistics(NamedTuple):
    """Statistics of the gradients of `n` examples.

    Attributes:
        mean: The mean gradient, like the params.
        variance: By leaf: the variance summed over all numbers in it, the trace of the covariance
            of one example's gradient; unbiased.
        snr: By leaf: the signal-to-noise ratio, `|mean|^2 / variance`, where `|mean|^2` is
            estimated without the part that is noise; may be negative if there is hardly a signal.
        noise_scale: The simple noise scale of all params, `sum(variance) / |mean|^2` with the same
            estimate: the batch size from which on larger batches hardly help.
        loss: The loss of every example, `[n]`.
        norm: The global norm of every example's gradient, `[n]`.
        aux: What the loss returned beside its value; else `None`.
    """

    mean: Any
    variance: Any
    snr: Any
    noise_scale: jax.Array
    loss: jax.Array
    norm: jax.Array
    aux: Any = None


def gradient_statistics(
    loss_fn: Callable[..., Any],
    *,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    batch_argnums: int | Sequence[int] | None = None,
    method: str = "auto",
    chunk_size: int | None = None,
) -> Callable[..., GradientStatistics]:
    r"""Mean, variance and signal-to-noise ratio of per-example gradients, in one pass.

    With the mean gradient :math:`g` of :math:`n` examples, for every leaf and for all together:

    .. math:: v = \frac{\sum_i \lVert g_i \rVert^2 - n \lVert g \rVert^2}{n - 1}, \qquad
              s = \lVert g \rVert^2 - \frac vn, \qquad
              \mathrm{snr} = \frac sv, \qquad B_\mathrm{simple} = \frac vs

    No gradient of an example is kept, so it costs little more than the mean gradient.

    Args:
        loss_fn: `loss_fn(params, example, ...) -> scalar` for ONE example, or `(scalar, aux)`.
        argnums: Which positional arguments to differentiate.
        has_aux: Whether `loss_fn` returns `(value, aux)`.
        batch_argnums: Which positional arguments have a leading example axis; by default all
            after the last of `argnums`.
        method: As in `per_example_norms`.
        chunk_size: How many examples to take at once; `None` lets the sizes decide.

    Returns:
        A function `(params, batch, ..., key=None)` -> `GradientStatistics`. At least two examples
        are needed.

    Raises:
        TypeError: If a parameter isn't floating, or the loss doesn't return a real scalar.
        ValueError: If there is a single example, or the example axes disagree or are empty.

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
    chunk_size = checked_chunk_size(chunk_size, spec.name)
    check_method(method, chunk_size, spec.name)

    def statistics_fn(*args: Any, key: Any = None, **kwargs: Any) -> GradientStatistics:
        bound = spec.bind(args, kwargs, key)
        if bound.size < 2:
            raise ValueError(f"{spec.name}: the batch has 1 example, a variance needs at least 2.")
        found = _statistics(bound, choose(method, chunk_size, bound))
        trees = {f: spec.like_argnums(getattr(found, f)) for f in ("mean", "variance", "snr")}
        return found._replace(**trees)

    return statistics_fn


def noise_scale(
    small_norm: Any, big_norm: Any, small_size: int, big_size: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    r"""The gradient noise scale from the norms of gradients on batches of two sizes.

    .. math:: \lvert G \rvert^2 \approx \frac{B \lvert g_B \rvert^2 - b \lvert g_b \rvert^2}
              {B - b}, \qquad
              \mathrm{tr}\,\Sigma \approx \frac{\lvert g_b \rvert^2 - \lvert g_B \rvert^2}
              {1/b - 1/B}, \qquad B_\mathrm{simple} = \frac{\mathrm{tr}\,\Sigma}{\lvert G \rvert^2}

    In data-parallel training both come for free: the gradient of one device, and their mean. The
    two estimates are noisy but unbiased, their ratio is not: average the estimates over steps and
    divide the averages.

    Args:
        small_norm: The norm of a mean gradient over `small_size` examples; or several of them,
            `[k]`, whose squares are averaged.
        big_norm: The norm of a mean gradient over `big_size` examples.
        small_size: `b`.
        big_size: `B > b`.

    Returns:
        `(noise_scale, grad_sq, trace)`: the ratio, and the estimates of `|G|^2` and of the trace.

    Raises:
        ValueError: If the sizes are not `0 < small_size < big_size`.

    Example:
        >>> from fnopt.gradients import noise_scale
        >>> scale, grad_sq, trace = noise_scale(3.0, 2.0, small_size=1, big_size=6)
        >>> float(grad_sq), float(trace), float(scale)
        (3.0, 6.0, 2.0)

    Reference:
        McCandlish et al., 2018, "An Empirical Model of Large-Batch Training", arXiv:1812.06162,
        appendix A.1.
    """
    if not 0 < small_size < big_size:
        raise ValueError(
            f"noise_scale: small_size is {small_size}, big_size is {big_size}, expected "
            "0 < small_size < big_size."
        )
    small, big = (_mean_square(norm) for norm in (small_norm, big_norm))
    grad_sq = (big_size * big - small_size * small) / (big_size - small_size)
    trace = (small - big) / (1 / small_size - 1 / big_size)
    return trace / grad_sq, grad_sq, trace


def _mean_square(norm: Any) -> jax.Array:
    norm = jnp.asarray(norm)
    dtype = compute_dtype(norm.dtype) if norm.dtype.kind == "f" else default_float()
    return jnp.mean(jnp.square(norm.astype(dtype)))


class _Chunk(NamedTuple):
    """What a chunk adds: the sum of gradients, and squared norms by leaf, summed and by example."""

    total: Any
    squares: list[jax.Array]
    outputs: tuple[jax.Array, jax.Array, Any]


def _statistics(bound: BoundLoss, way: Way) -> GradientStatistics:
    chunk_of = _by_ghost(way) if way.ghost else _by_vmap(bound)
    zeros = [jnp.zeros((), _real(p)) for p in jax.tree.leaves(bound.params)]

    def body(sums: Any, batch: Any) -> tuple[Any, Any]:
        chunk = chunk_of(batch)
        return jax.tree.map(jnp.add, sums, (chunk.total, chunk.squares)), chunk.outputs

    carry = zero_sums(bound.params), zeros
    (total, squares), (loss, norm, aux) = scan_chunks(
        body, carry, bound.batch, bound.size, way.chunk_size
    )
    n = bound.size
    mean = jax.tree.map(lambda t: t / n, total)
    leaves, treedef = jax.tree.flatten(mean)
    lengths = [squared(m).astype(s.dtype) for m, s in zip(leaves, squares, strict=True)]
    variance = [(s - n * m) / (n - 1) for s, m in zip(squares, lengths, strict=True)]
    signal = [m - v / n for m, v in zip(lengths, variance, strict=True)]
    snr = [s / v for s, v in zip(signal, variance, strict=True)]
    scale = _total(variance) / _total(signal)
    tree = treedef.unflatten
    like = like_params(mean, bound.params)
    return GradientStatistics(like, tree(variance), tree(snr), scale, loss, norm, aux)


def _real(leaf: Any) -> Any:
    return jnp.finfo(compute_dtype(jnp.result_type(leaf))).dtype


def _total(parts: list[jax.Array]) -> jax.Array:
    dtype = compute_dtype(*(p.dtype for p in parts))
    return jnp.sum(jnp.stack([p.astype(dtype) for p in parts]))


def _by_vmap(bound: BoundLoss) -> Callable[[Any], _Chunk]:
    def one(example: Any) -> Any:
        (loss, aux), grads = jax.value_and_grad(bound.loss, has_aux=True)(bound.params, example)
        return grads, [squared(g) for g in jax.tree.leaves(grads)], loss, aux

    def chunk_of(batch: Any) -> _Chunk:
        grads, squares, loss, aux = jax.vmap(one)(batch)
        total = jax.tree.map(lambda g: weighted_total(jnp.ones(loss.shape, jnp.float32), g), grads)
        return _chunk(total, squares, loss, aux)

    return chunk_of


def _by_ghost(way: Way) -> Callable[[Any], _Chunk]:
    ghost = way.ghost
    assert ghost is not None

    def chunk_of(batch: Any) -> _Chunk:
        leaves = len(ghost.params)
        measured = ghost.measure(batch, range(leaves))
        loss, aux = measured.loss_and_aux
        total = measured.weighted_sum([jnp.ones(loss.shape, jnp.float32)] * leaves)
        squares = measured.squares()
        squares = [s.astype(_real(p)) for s, p in zip(squares, ghost.params, strict=True)]
        return _chunk(total, squares, loss, aux)

    return chunk_of


def _chunk(total: Any, squares: list[jax.Array], loss: jax.Array, aux: Any) -> _Chunk:
    norm = safe_root(jnp.sum(jnp.stack([s.astype(squares[0].dtype) for s in squares]), axis=0))
    return _Chunk(total, [jnp.sum(s) for s in squares], (loss, norm, aux))

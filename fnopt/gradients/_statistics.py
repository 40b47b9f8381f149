"""Mean, variance and noise scale of the gradients of a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.gradients._clip_rule import check_where
from fnopt.gradients._loss import BoundLoss, ExampleLoss, check_not_empty
from fnopt.gradients._moments import totals
from fnopt.gradients._similarity import alignment_with_others
from fnopt.gradients._strategy import checked_strategy, choose_strategy, run_compiled
from fnopt.gradients._sums import like_params
from fnopt.numerics import compute_dtype, default_float, safe_divide, sum_of_squares
from fnopt.sharding import psum


def noise_scale(
    small_norm: Any, big_norm: Any, small_size: int, big_size: int, *, axis_name: Any = None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    r"""Estimate the gradient noise scale from the norms of gradients on batches of two sizes.

    .. math:: \lvert G \rvert^2 \approx \frac{B \lvert g_B \rvert^2 - b \lvert g_b \rvert^2}
              {B - b}, \qquad
              \mathrm{tr}\,\Sigma \approx \frac{\lvert g_b \rvert^2 - \lvert g_B \rvert^2}
              {1/b - 1/B}, \qquad B_\mathrm{simple} = \frac{\mathrm{tr}\,\Sigma}{\lvert G \rvert^2}

    Data-parallel training already computes both gradients: the gradient of one device, and the mean
    over the devices. The estimates of `|G|^2` and `tr Sigma` are noisy but unbiased; their ratio is
    biased. Therefore, average the estimates over steps and then divide the averages.

    Args:
        small_norm: The norm of a mean gradient over `small_size` examples; or several norms,
            `[k]`, whose squares are averaged.
        big_norm: The norm of a mean gradient over `big_size` examples.
        small_size: `b`.
        big_size: `B > b`.
        axis_name: Inside `jax.shard_map` (or `jax.vmap` with a name), the named axis of the
            devices, or several axes. Squares of `small_norm` are then averaged over the devices.
            `small_norm` is the norm of this device's mean gradient, and `big_norm` is the norm of
            the mean over all devices.

    Returns:
        `(noise_scale, grad_sq, trace)`: :math:`B_\mathrm{simple}`, and the estimates of `|G|^2` and
        :math:`\mathrm{tr}\,\Sigma`.

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
    small = psum(small, axis_name) / psum(1, axis_name)
    # McCandlish et al. (2018), appendix A.1: unbiased, because E|g_b|^2 = |G|^2 + tr(Sigma) / b.
    grad_sq = (big_size * big - small_size * small) / (big_size - small_size)
    trace = (small - big) / (1 / small_size - 1 / big_size)
    return trace / grad_sq, grad_sq, trace


def _mean_square(norm: Any) -> jax.Array:
    norm = jnp.asarray(norm)
    dtype = compute_dtype(norm.dtype) if norm.dtype.kind == "f" else default_float()
    return jnp.mean(jnp.square(norm.astype(dtype)))


class GradientStatistics(NamedTuple):
    """Statistics of the gradients of `n` examples.

    Attributes:
        mean: The mean gradient, a tree like the params.
        variance: For every leaf, the sum of the unbiased variances of its entries. This is the
            trace of the covariance of one example's gradient. NaN with fewer than two examples;
            infinite if squares of finite gradients overflow.
        snr: For every leaf, the signal-to-noise ratio `|mean|^2 / variance`. The estimate of
            `|mean|^2` is unbiased, so the ratio may be negative if the signal is weak. Zero for a
            param that the loss doesn't use; infinite if all gradients are equal; NaN if squares of
            the gradients overflow or underflow.
        noise_scale: The simple noise scale of all params, `sum(variance) / |mean|^2`, with the
            unbiased estimate of `|mean|^2`. A batch size above the noise scale hardly reduces the
            number of training steps.
        loss: The loss of every example, `[n]`.
        norm: The global norm of every example's gradient, `[n]`. A non-finite norm identifies
            an example with a bad gradient.
        aux: The auxiliary output of the loss; `None` without `has_aux`.
        count: Number of selected examples, int32.
        alignment: With `alignment=True`, the cosine of the angle between the gradient of every
            example and the mean of all other gradients, `[n]`; otherwise `None`.
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
    r"""Compute mean, variance and signal-to-noise ratio of per-example gradients in one pass.

    For the mean gradient :math:`g` of :math:`n` examples, `gradient_statistics` computes for every
    leaf, and for all leaves together:

    .. math:: v = \frac{\sum_i \lVert g_i - g \rVert^2}{n - 1}, \qquad
              s = \lVert g \rVert^2 - \frac vn, \qquad
              \mathrm{snr} = \frac sv, \qquad B_\mathrm{simple} = \frac vs

    Per-example gradients aren't stored, so the cost is little more than the cost of the mean
    gradient. Deviations are computed without cancellation, so a variance that is small relative to
    the mean is accurate. With `alignment=True`, a second pass (a forward-mode derivative along the
    mean) computes how well the gradient of each example agrees with the other gradients:

    .. math:: \mathrm{alignment}_i = \cos\Bigl(g_i, \sum_{j \ne i} g_j\Bigr)

    Args:
        loss_fn: `loss_fn(params, example, ...) -> scalar` for ONE example, or `(scalar, aux)`.
        argnums: The positional arguments to differentiate.
        has_aux: Whether `loss_fn` returns `(value, aux)`.
        batch_argnums: The positional arguments with a leading example axis; by default all
            arguments after the last of `argnums`.
        method: As in `per_example_norms`.
        chunk_size: Number of examples to process at once; by default chosen for the memory budget.
        alignment: Whether to run the second pass. In this pass, an out-of-bounds index of a table
            selects the last row, as in `jax.jvp`. For a loss with a `jax.custom_vjp`, which has no
            forward mode, the pass forms the gradients of one chunk at a time.
        skip_nonfinite: Whether to omit examples with a non-finite gradient or loss from all sums.
            Otherwise, one such example makes the sums NaN.
        axis_name: Inside `jax.shard_map` (or `jax.vmap` with a name), the named axis along which
            the batch is sharded, or several axes. Sums then cover all devices, and all devices get
            the same result. `None` sums over the examples of this call.

    Returns:
        A function `(params, batch, ..., key=None, where=None)` -> `GradientStatistics`. The
        bool array `where` of shape `[n]` selects examples, at least two. Other examples don't
        contribute, even if their gradients are NaN.

    Raises:
        TypeError: If a parameter isn't floating, or the loss doesn't return a real scalar.
        ValueError: If there is only one example or no param, or the example axes disagree or are
            empty.

    Example:
        >>> from fnopt.gradients import gradient_statistics
        >>> x = jnp.array([[1.0, 0.0], [1.0, 2.0], [1.0, 1.0]])
        >>> statistics = gradient_statistics(lambda w, x: w @ x)(jnp.zeros(2), x)
        >>> statistics.mean.tolist(), float(statistics.variance)
        ([1.0, 1.0], 1.0)

    Reference:
        McCandlish et al., 2018, "An Empirical Model of Large-Batch Training", arXiv:1812.06162.
        Chan, Golub and LeVeque, 1983, "Algorithms for Computing the Sample Variance", The American
        Statistician 37.
    """
    spec = ExampleLoss(loss_fn, argnums, batch_argnums, has_aux, "gradient_statistics")
    options = {
        "method": method,
        "chunk_size": checked_strategy(method, chunk_size, spec.name),
        "alignment": alignment,
        "skip_nonfinite": skip_nonfinite,
        "axis_name": axis_name,
    }

    def statistics_fn(
        *args: Any, key: Any = None, where: Any = None, **kwargs: Any
    ) -> GradientStatistics:
        bound = spec.bind(args, kwargs, key, axis_name)
        check_not_empty(bound.params, spec.name)
        if bound.size * psum(1, axis_name) < 2:
            raise ValueError(
                f"{spec.name}: the batch has 1 example, expected at least 2 for a variance."
            )
        mask = check_where(where, bound.size, spec.name)
        statistics = run_compiled(_statistics, bound, mask, **options)
        trees = ("mean", "variance", "snr")
        return statistics._replace(
            **{field: spec.like_argnums(getattr(statistics, field)) for field in trees}
        )

    return statistics_fn


def _statistics(
    bound: BoundLoss,
    mask: jax.Array | None,
    *,
    method: str,
    chunk_size: int | None,
    alignment: bool,
    skip_nonfinite: bool,
    axis_name: Any,
) -> GradientStatistics:
    strategy = choose_strategy(method, chunk_size, bound)
    sums = totals(bound, strategy, mask, skip_nonfinite, axis_name)
    count, mean, deviations = sums.moments
    treedef = jax.tree.structure(mean)
    pairs = [_variance(m, s, count) for m, s in zip(jax.tree.leaves(mean), deviations, strict=True)]
    # `signal` is the unbiased squared norm of each leaf's mean.
    variance, signal = ([*parts] for parts in zip(*pairs, strict=True))
    ratios = zip(signal, variance, jax.tree.leaves(mean), strict=True)
    snr = [_ratio(s, v, [m]) for s, v, m in ratios]
    cosines = alignment_with_others(bound, sums, chunk_size) if alignment else None
    return GradientStatistics(
        mean=like_params(mean, bound.given),
        variance=treedef.unflatten(variance),
        snr=treedef.unflatten(snr),
        noise_scale=_ratio(_sum(variance), _sum(signal), jax.tree.leaves(mean)),
        loss=sums.loss,
        norm=sums.norm,
        aux=sums.aux,
        count=count,
        alignment=cosines,
    )


def _variance(
    mean: jax.Array, deviations: jax.Array, count: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Variance of a leaf, and the unbiased estimate of the squared norm of its mean."""
    n, length = count.astype(deviations.dtype), sum_of_squares(mean).astype(deviations.dtype)
    # With fewer than two examples, the quotient may be 0 or infinite instead of NaN.
    variance = jnp.where(count < 2, jnp.full_like(deviations, jnp.nan), deviations / (n - 1))
    # E|mean|^2 = |E mean|^2 + variance / n (McCandlish et al., 2018, appendix A.1).
    return variance, length - variance / n


def _ratio(a: jax.Array, b: jax.Array, mean: list[jax.Array]) -> jax.Array:
    """Ratio of squares: 0 for unused params, NaN if squares underflow."""
    underflows = (a == 0) & (b == 0) & jnp.stack([jnp.any(m != 0) for m in mean]).any()
    return jnp.where(underflows, jnp.full_like(a, jnp.nan), safe_divide(a, b))


def _sum(parts: list[jax.Array]) -> jax.Array:
    dtype = compute_dtype(*(p.dtype for p in parts))
    return jnp.sum(jnp.stack([p.astype(dtype) for p in parts]))

"""Diagonals and traces of curvature matrices, estimated from random probes or exact."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.curvature._bound import bind
from fnopt.curvature._products import hvp
from fnopt.curvature._sums import (
    checked_options,
    explain_errors,
    sum_over_examples,
    symmetric_product,
)
from fnopt.errors import check_count, check_key
from fnopt.jacobians import check_real
from fnopt.numerics import HIGHEST, compute_dtype, is_inexact, widen
from fnopt.sharding import pvary_like, replicate, replicate_for_batch, reshard_like


class Estimate(NamedTuple):
    """A Monte Carlo estimate from random probes, with its variance.

    Attributes:
        value: The estimate, unbiased.
        variance: The variance of the estimate, from the sample variance of the probes; its square
            root is the standard error. NaN for a single probe; 0 or infinite if squares of the
            values underflow or overflow (values below 1e-19 in float32, for example).
    """

    value: Any
    variance: Any


def _signs(key: jax.Array, like: Any) -> Any:
    """Draw a tree of independent random signs (a Rademacher probe) with the shapes of `like`."""
    leaves, treedef = jax.tree.flatten(like)
    keys = jax.random.split(key, max(1, len(leaves)))
    signs = [
        reshard_like(jax.random.rademacher(k, jnp.shape(x), jnp.result_type(x)), x)
        for k, x in zip(keys, leaves, strict=False)
    ]
    return jax.tree.unflatten(treedef, signs)


def _mean_over_probes(probe: Callable[[jax.Array], Any], key: jax.Array, samples: int) -> Estimate:
    """Mean over probes and its variance, by Welford's recurrence with one probe in memory."""
    shapes = jax.eval_shape(probe, key)
    zeros = jax.tree.map(
        lambda x: reshard_like(jnp.zeros(x.shape, compute_dtype(x.dtype)), x), shapes
    )

    def add_probe(carry: Any, i: jax.Array) -> tuple[Any, None]:
        mean, squares = carry
        sample = probe(jax.random.fold_in(key, i))
        sample = jax.tree.map(lambda x, m: x.astype(m.dtype), sample, mean)
        # Welford's update avoids the difference of two large sums, which would cancel.
        count = i.astype(jnp.int32) + 1
        new_mean = jax.tree.map(lambda m, x: m + (x - m) / count.astype(m.dtype), mean, sample)
        add_deviation = lambda s, x, m, w: s + (x - m) * (x - w)  # noqa: E731
        return (new_mean, jax.tree.map(add_deviation, squares, sample, mean, new_mean)), None

    steps = jnp.arange(samples, dtype=jnp.uint32)
    (mean, squares), _ = jax.lax.scan(add_probe, (zeros, zeros), steps)
    # The variance of the mean is the variance of one probe, divided by the number of probes.
    scale = 1 / (samples * (samples - 1)) if samples > 1 else float("nan")
    return Estimate(mean, jax.tree.map(lambda s: s * scale, squares))


def hessian_diagonal(
    fn: Callable[..., jax.Array],
    *,
    samples: int = 32,
    reduction: str = "mean",
    chunk_size: int | None = None,
    axis_name: Any = None,
) -> Callable[..., Estimate]:
    r"""Estimate the diagonal of the Hessian by Hutchinson's estimator, with its variance.

    .. math:: \operatorname{diag}(H) = \mathbb{E}[v \odot H v], \qquad v_j = \pm 1

    The estimate is exact for a diagonal Hessian; otherwise the estimate of entry `j` from one probe
    has the variance :math:`\sum_{k \ne j} H_{jk}^2`.

    Args:
        fn: As in `hvp`.
        samples: Number of probes; each costs one product.
        reduction: `'mean'` or `'sum'` over the examples.
        chunk_size: Number of examples to differentiate at once; `None` for all.
        axis_name: Inside `jax.shard_map` (or `jax.vmap` with a name), the named axis along which
            the batch is sharded, or several axes. Sums then include the examples of all devices,
            and the result is equal on all devices. With `None`, sums include the examples of this
            call.

    Returns:
        A function `(params, key, batch=None)` -> an `Estimate` of trees like the params, float32
        or wider.

    Raises:
        TypeError: If a parameter isn't floating, or `key` isn't one PRNG key.
        ValueError: If `samples` isn't positive, or the example axes disagree or are empty.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from fnopt.curvature import hessian_diagonal
        >>> found = hessian_diagonal(lambda x: jnp.sum(x**3))(jnp.ones(2), jax.random.key(0))
        >>> found.value.tolist(), found.variance.tolist()
        ([6.0, 6.0], [0.0, 0.0])

    Reference:
        Hutchinson, 1990; Bekas, Kokiopoulou and Saad, 2007, "An estimator for the diagonal of a
        matrix".
    """
    check_count(samples, "samples", "hessian_diagonal")
    product = hvp(fn, reduction=reduction, chunk_size=chunk_size, axis_name=axis_name)

    def diagonal(params: Any, key: Any, batch: Any = None) -> Estimate:
        check_real(params, "hessian_diagonal")

        def probe(key: jax.Array) -> Any:
            v = _signs(key, params)
            return jax.tree.map(jnp.multiply, v, product(params, v, batch))

        return _mean_over_probes(probe, check_key(key, "hessian_diagonal"), samples)

    return diagonal


def trace_estimate(
    product: Callable[[Any], Any], like: Any, key: jax.Array, *, samples: int = 32
) -> Estimate:
    r"""Estimate the trace of a matrix from its products with vectors (Hutchinson).

    .. math:: \operatorname{tr}(A) = \mathbb{E}[v^\top A v], \qquad v_j = \pm 1

    Args:
        product: The matrix product `v -> A v`; its result has the structure and shapes of `v`.
        like: A tree of floating arrays with the structure and shapes of `v`; its values are
            ignored.
        key: One PRNG key.
        samples: Number of probes; each costs one product.

    Returns:
        An `Estimate` whose value and variance are scalars, float32 or wider.

    Raises:
        TypeError: If a leaf isn't real and floating, or `key` isn't one PRNG key.
        ValueError: If `samples` isn't positive, or the product's structure or shapes differ from
            its argument's.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from fnopt.curvature import trace_estimate
        >>> float(trace_estimate(lambda v: 3 * v, jnp.zeros(4), jax.random.key(0)).value)
        12.0

    Reference:
        Hutchinson, 1990, "A stochastic estimator of the trace of the influence matrix for
        Laplacian smoothing splines".
    """
    check_count(samples, "samples", "trace_estimate")

    times = symmetric_product(product, like, "trace_estimate")

    def probe(key: jax.Array) -> jax.Array:
        v = _signs(key, like)
        return tree_dot(v, times(v))

    return _mean_over_probes(probe, check_key(key, "trace_estimate"), samples)


def tree_dot(a: Any, b: Any) -> jax.Array:
    """Inner product of two trees, float32 or wider."""
    pairs = list(zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))
    dtype = compute_dtype(*(jnp.result_type(x) for x, _ in pairs if is_inexact(x)))
    total = jnp.zeros((), dtype)
    for x, y in pairs:
        # On an explicit mesh, JAX can't merge a sharded axis with another axis.
        vectors = (jnp.ravel(replicate(z)).astype(dtype) for z in map(jnp.asarray, (x, y)))
        total = total + jnp.dot(*vectors, precision=HIGHEST)
    return total


def ggn_diagonal(
    model_fn: Callable[[Any, Any], Any],
    loss_fn: Callable[[Any, Any], jax.Array],
    *,
    reduction: str = "mean",
    chunk_size: int | None = None,
    axis_name: Any = None,
) -> Callable[[Any, Any], Any]:
    r"""Compute the exact diagonal of the generalized Gauss-Newton matrix.

    .. math:: \operatorname{diag}(G)_j = \frac1n \sum_i \sum_{c,d} J_{icj} H_{icd} J_{idj}

    The cost is one backward pass over the batch per output of an example. Only the Jacobian rows of
    one chunk of examples are in memory at a time.

    Args:
        model_fn: `f(params, example) -> outputs` for ONE example, an array or a tree.
        loss_fn: `loss(outputs, example) -> scalar`.
        reduction: `'mean'` or `'sum'` over the examples.
        chunk_size: Number of examples to differentiate at once; `None` for all.
        axis_name: Inside `jax.shard_map` (or `jax.vmap` with a name), the named axis along which
            the batch is sharded, or several axes. Sums then include the examples of all devices,
            and the result is equal on all devices. With `None`, sums include the examples of this
            call.

    Returns:
        A function `(params, batch)` -> a tree like the params.

    Raises:
        TypeError: If params or outputs aren't floating, or params are complex.
        ValueError: If the example axes disagree or are empty.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.curvature import ggn_diagonal
        >>> diagonal = ggn_diagonal(lambda w, x: w @ x, lambda f, x: f**2, reduction="sum")
        >>> diagonal(jnp.zeros(2), jnp.asarray([[1.0, 2.0], [0.0, 1.0]])).tolist()
        [2.0, 10.0]

    Reference:
        Dangel, Kunstner and Hennig, 2020, "BackPACK: Packing more into Backprop",
        arXiv:1912.10985.
    """
    chunk_size = checked_options(reduction, chunk_size, "ggn_diagonal")
    loss = explain_errors(loss_fn, "ggn_diagonal")

    def diagonal(params: Any, batch: Any) -> Any:
        bound, layout = bind(model_fn, replicate_for_batch(params, batch), batch, "ggn_diagonal")

        def diagonal_of_example(params: Any, example: Any) -> Any:
            f, pull = jax.vjp(lambda p: replicate(bound.loss(p, example)[0]), params)
            curvature = jax.hessian(lambda f: loss(layout.unflatten(f), example))(f)
            # A tree of rows [C, *param]: one vector-Jacobian product per output.
            rows = jax.vmap(lambda e: pull(e)[0])(
                pvary_like(jnp.eye(layout.size, dtype=f.dtype), f)
            )
            return jax.tree.map(lambda J: quadratic_diagonal(J, curvature), rows)

        def total(params: Any, chunk: Any) -> Any:
            diagonals = jax.vmap(diagonal_of_example, (None, 0))(params, chunk)
            return jax.tree.map(lambda x: jnp.sum(x, 0), diagonals)

        return sum_over_examples(
            total, params, batch, reduction, chunk_size, "ggn_diagonal", axis_name
        )

    return diagonal


def quadratic_diagonal(rows: jax.Array, curvature: jax.Array) -> jax.Array:
    """Diagonal of `J^T H J`, `[*param]`, from rows `J`, `[C, *param]`, and `H`, `[C, C]`."""
    J = widen(rows)
    HJ = jnp.tensordot(curvature.astype(J.dtype), J, 1, precision=HIGHEST)
    return jnp.sum(J * HJ, 0)

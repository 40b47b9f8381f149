"""Inner products and cosines between per-example gradients, and with the sum of gradients."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import global_norm
from fnopt.gradients._loss import BoundLoss, ExampleLoss, check_not_empty
from fnopt.gradients._moments import Measure, Totals, measure
from fnopt.gradients._per_example import losses_and_norms
from fnopt.gradients._strategy import Strategy, checked_strategy, choose_strategy, run_compiled
from fnopt.numerics import map_chunks, nonzero, safe_sqrt
from fnopt.programs import jaxprs
from fnopt.sharding import all_gather_tree, pvary_like, replicate, use_mesh_of


def alignment_with_others(bound: BoundLoss, sums: Totals, chunk_size: int | None) -> jax.Array:
    r"""Cosine between every gradient and the sum of all other gradients, `[n]`.

    .. math:: \cos(g_i, S - g_i) = \frac{\langle g_i, S \rangle - \lVert g_i \rVert^2}
              {\lVert g_i \rVert \, (\lVert S \rVert^2 - 2 \langle g_i, S \rangle
              + \lVert g_i \rVert^2)^{1/2}}

    The sum omits the example itself; otherwise a single huge gradient would have the largest
    cosine. The cosine is zero if a gradient or the sum is zero.

    Args:
        bound: The loss and the batch.
        sums: The moments, losses and norms from a first pass over the batch.
        chunk_size: Number of examples to process at once.
    """
    norm, mean = sums.norm, sums.moments.mean
    length = global_norm(mean).astype(norm.dtype)

    def unit(x: jax.Array, param: Any) -> jax.Array:
        # A direction of norm 1 doesn't overflow, even if the params are float16.
        return jnp.conj(x / nonzero(length).astype(x.dtype)).astype(param.dtype)

    direction = jax.tree.map(unit, mean, bound.params)
    # Division by the largest norm prevents that squares overflow or underflow.
    largest = nonzero(jnp.max(jnp.where(jnp.isfinite(norm), norm, jnp.zeros_like(norm))))
    # Component of every gradient along the unit vector of the sum.
    component = directional_derivatives(bound, direction, chunk_size).astype(norm.dtype) / largest
    total = length / largest * sums.moments.count.astype(norm.dtype)
    relative = norm / largest
    # Gradients of excluded examples aren't subtracted, because they aren't part of the sum.
    subtracted = relative
    if sums.mask is not None:
        subtracted = jnp.where(sums.mask, relative, jnp.zeros_like(relative))
    subtracted_component = (subtracted / nonzero(relative)) * component
    # The squared norm of S - g, |S|^2 - 2 <S, g> + |g|^2, may be negative by rounding.
    other_norm = safe_sqrt(total**2 - 2 * total * subtracted_component + subtracted**2)
    cosine = (total * component - subtracted**2) / nonzero(relative * other_norm)
    return jnp.where(relative * other_norm == 0, jnp.zeros_like(cosine), jnp.clip(cosine, -1, 1))


def directional_derivatives(bound: BoundLoss, direction: Any, chunk_size: int | None) -> jax.Array:
    """Inner product of every example's gradient with a direction like the params, `[n]`."""
    example = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), bound.batch)
    jaxpr = jax.make_jaxpr(bound.loss)(bound.params, example).jaxpr
    derive = _derivatives_forward
    if any(e.primitive.name.startswith("custom_vjp") for e in jaxprs.equations(jaxpr)):
        # A custom backward rule isn't always linear in the cotangent, so that only backward passes
        # from single examples give their gradients.
        derive = _products_with_gradients
        chunk_size = choose_strategy("chunked", chunk_size, bound).chunk_size
    derive = functools.partial(derive, bound, direction)
    return map_chunks(derive, bound.batch, bound.size, chunk_size)


def _derivatives_forward(bound: BoundLoss, direction: Any, chunk: Any) -> jax.Array:
    def derivative(example: Any) -> jax.Array:
        return jax.jvp(
            lambda params: bound.loss(params, example)[0], (bound.params,), (direction,)
        )[1]

    return jax.vmap(derivative)(chunk)


def _products_with_gradients(bound: BoundLoss, direction: Any, chunk: Any) -> jax.Array:
    def product(example: Any) -> jax.Array:
        value, gradient = jax.value_and_grad(lambda params: bound.loss(params, example)[0])(
            bound.params
        )
        products = jax.tree.map(lambda x, y: jnp.real(jnp.sum(x * y)), gradient, direction)
        parts = [x.astype(value.dtype) for x in jax.tree.leaves(products)]
        return functools.reduce(jnp.add, parts)

    return jax.vmap(product)(chunk)


class GradientSimilarity(NamedTuple):
    """Inner products and cosines of the gradients of `n` examples with `m` other gradients.

    Attributes:
        inner: The inner products, `[n, m]`, at least float32. Without a second batch, `inner` is
            the Gram matrix `[n, n]`.
        cosine: The cosines of the angles, `[n, m]`; zero for a gradient of zero, which has no
            direction. The cosines are correct even if inner products overflow or underflow.
        norm: The norm of every example's gradient, `[n]`.
        loss: The loss of every example, `[n]`.
        aux: The auxiliary output of the loss; `None` without `has_aux`.
        other_norm: The gradient norms of the second batch, `[m]`; `None` without a second batch.
        other_loss: The losses of the second batch, `[m]`; `None` without a second batch.
    """

    inner: jax.Array
    cosine: jax.Array
    norm: jax.Array
    loss: jax.Array
    aux: Any = None
    other_norm: jax.Array | None = None
    other_loss: jax.Array | None = None


def gradient_similarity(
    loss_fn: Callable[..., Any],
    *,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    batch_argnums: int | Sequence[int] | None = None,
    method: str = "auto",
    chunk_size: int | None = None,
    axis_name: Any = None,
) -> Callable[..., GradientSimilarity]:
    r"""Compute inner products and cosines between per-example gradients.

    .. math:: K_{ij} = \langle g_i, g_j \rangle, \qquad
              \cos_{ij} = \frac{K_{ij}}{\lVert g_i \rVert \lVert g_j \rVert}

    A negative cosine means that a step on one example increases the loss of the other example.
    Near-duplicates have a cosine near 1. `K` is the neural tangent kernel of the losses on the
    batch.

    Consider a weight matrix that is used at positions `r` with inputs `a_r` and cotangents `c_r`.
    Its contribution to `K` is :math:`\sum_{r,s} (a_{ir} \cdot a_{js}) (c_{ir} \cdot c_{js})`, so no
    gradient is formed. If a matrix is used at many positions, slices of the gradients are formed
    instead, because this is cheaper.

    Pass a test batch as `other` to estimate influences. An SGD step with learning rate `lr` on
    training example `i` changes the loss of test example `j` by `-lr * inner[i, j]`, to first
    order. The sum of these changes over the checkpoints of a training run estimates the influence
    of training examples on a prediction (TracIn).

    Args:
        loss_fn: `loss_fn(params, example, ...) -> scalar` for ONE example, or `(scalar, aux)`.
        argnums: The positional arguments to differentiate; inner products are over all of these
            arguments.
        has_aux: Whether `loss_fn` returns `(value, aux)`.
        batch_argnums: The positional arguments with a leading example axis; by default all
            arguments after the last of `argnums`.
        method: As in `per_example_norms`.
        chunk_size: Number of examples to process at once. `None` processes all examples in one
            pass. The recorded factors of all examples are then in memory, or all gradients if
            `method` isn't `'ghost'`. With `k` chunks there are `k (k + 1)` passes over a chunk.
        axis_name: Inside `jax.shard_map` (or `jax.vmap` with a name), the named axis along which
            the batch (and `other`) is sharded, or several axes. Rows are then the examples of this
            device, and columns are the examples of all devices. Devices gather examples, not
            gradients.

    Returns:
        A function `(params, batch, ..., key=None, other=None)` -> a `GradientSimilarity`. `other`
        is a second batch, of any size, for the columns. `other` has the form of the batched
        argument, or is a tuple if several arguments are batched. A non-finite gradient affects only
        the row and column of its example.

    Raises:
        TypeError: If a parameter isn't floating, or the loss doesn't return a real scalar.
        ValueError: If there are no params, the example axes disagree or are empty, or an option
            is invalid.

    Example:
        >>> from fnopt.gradients import gradient_similarity
        >>> x = jnp.array([[3.0, 4.0], [0.0, 2.0], [-3.0, -4.0]])
        >>> similarity = gradient_similarity(lambda w, x: w @ x)(jnp.zeros(2), x)
        >>> similarity.inner[0].tolist()
        [25.0, 8.0, -25.0]
        >>> [round(float(c), 3) for c in similarity.cosine[0]]
        [1.0, 0.8, -1.0]

    Reference:
        Fort, Nowak, Jastrzebski and Narayanan, 2019, "Stiffness: A New Perspective on
        Generalization in Neural Networks", arXiv:1901.09491. Pruthi, Liu, Sundararajan and Kale,
        2020, "Estimating Training Data Influence by Tracing Gradient Descent", arXiv:2002.08484.
    """
    spec = ExampleLoss(loss_fn, argnums, batch_argnums, has_aux, "gradient_similarity")
    chunk_size = checked_strategy(method, chunk_size, spec.name)

    def similarity_fn(
        *args: Any, key: Any = None, other: Any = None, **kwargs: Any
    ) -> GradientSimilarity:
        bound = spec.bind(args, kwargs, key, axis_name)
        check_not_empty(bound.params, spec.name)
        options = {"method": method, "chunk_size": chunk_size}
        if axis_name is not None:
            batch = all_gather_tree(spec.batch_of(args) if other is None else other, axis_name)
            columns = spec.bind(spec.with_batch(args, batch), kwargs, key)
            return _compare(bound, columns, other is not None, **options)
        if other is None:
            return run_compiled(_compare_batch, bound, None, count=bound.size, **options)
        columns = spec.bind(spec.with_batch(args, other), kwargs, key)
        # The compiled call replays a jaxpr of the loss, which is valid for one type of examples.
        if _row_types(columns.batch) != _row_types(bound.batch):
            return _compare(bound, columns, True, **options)
        return run_compiled(_compare_batch, bound, columns.batch, count=columns.size, **options)

    return similarity_fn


def _compare_batch(
    bound: BoundLoss, other: Any, *, count: int, **options: Any
) -> GradientSimilarity:
    """Compare examples with the examples of another batch, or with each other."""
    columns = bound if other is None else bound._replace(batch=other, size=count)
    return _compare(bound, columns, other is not None, **options)


def _compare(
    bound: BoundLoss, columns: BoundLoss, is_other: bool, *, method: str, chunk_size: int | None
) -> GradientSimilarity:
    # By default one chunk, because the number of passes is quadratic in the number of chunks.
    strategy = choose_strategy(method, chunk_size or max(bound.size, columns.size), bound)
    # Both batches replay one jaxpr, so both must have the varying axes of the traced batch.
    typed = columns._replace(batch=pvary_like(columns.batch, bound.batch))
    with use_mesh_of(bound.batch):
        similarity = _similarity(bound, bound if columns is bound else typed, strategy)
    if not is_other:
        return similarity
    loss, (norm,), _ = losses_and_norms(columns, strategy)
    return similarity._replace(other_norm=norm, other_loss=loss)


def _row_types(batch: Any) -> Any:
    """Tree structure of a batch, and the shapes and dtypes of one example."""
    leaves, structure = jax.tree.flatten(batch)
    return structure, [(x.shape[1:], x.dtype, jax.typeof(x).weak_type) for x in leaves]


class _Scaled(NamedTuple):
    """Gradients of a chunk, scaled by powers of two to norms near 1.

    Attributes:
        gradients: The scaled gradients.
        length: The norms of the scaled gradients, between 1/2 and 2.
        exponent: The exponents `e`; gradients were divided by `2**e`.
        outputs: The norms before scaling, the losses and the auxiliary outputs.
    """

    gradients: Any
    length: jax.Array
    exponent: jax.Array
    outputs: tuple[jax.Array, jax.Array, Any]

    def products_and_cosines(self, other: _Scaled) -> tuple[jax.Array, jax.Array]:
        """Inner products and cosines with the gradients of another chunk, `[n, m]` each."""
        scaled = self.gradients.inner_products(other.gradients)
        lengths = self.length[:, None] * replicate(other.length)[None, :]
        cosine = jnp.where(lengths == 0, jnp.zeros_like(scaled), scaled / nonzero(lengths))
        # The exponents are applied one after the other, because 2 to their sum may overflow.
        inner = jnp.ldexp(scaled, self.exponent[:, None])
        return jnp.ldexp(inner, replicate(other.exponent)[None, :]), jnp.clip(cosine, -1, 1)


def _scale_gradients(measure_chunk: Measure, chunk: Any) -> _Scaled:
    gradients = measure_chunk(chunk)
    (loss, aux), norm = gradients.loss_and_aux, gradients.norms()[0]
    has_direction = jnp.isfinite(norm) & (norm > 0)
    exponent = jnp.round(jnp.log2(jnp.where(has_direction, norm, jnp.ones_like(norm))))
    # `2**-exponent` is neither subnormal nor infinite up to the smallest normal number's exponent.
    top = -int(jnp.finfo(norm.dtype).minexp)
    exponent = jax.lax.stop_gradient(jnp.clip(exponent, -top, top)).astype(jnp.int32)
    # Multiplication by a power of two is exact.
    factors = jnp.ldexp(jnp.ones_like(norm), -exponent)
    return _Scaled(gradients.scaled(factors), norm * factors, exponent, (norm, loss, aux))


def _similarity(bound: BoundLoss, columns: BoundLoss, strategy: Strategy) -> GradientSimilarity:
    measure_chunk = measure(bound, strategy)
    # A batch in a single chunk is compared with itself in one pass, not two.
    if columns is bound and (strategy.chunk_size is None or strategy.chunk_size >= bound.size):
        scaled = _scale_gradients(measure_chunk, bound.batch)
        return GradientSimilarity(*scaled.products_and_cosines(scaled), *scaled.outputs)

    def compare_rows(chunk: Any) -> Any:
        rows = _scale_gradients(measure_chunk, chunk)

        transposed = map_chunks(
            lambda other: _scale_gradients(measure_chunk, other).products_and_cosines(rows),
            columns.batch,
            columns.size,
            strategy.chunk_size,
        )
        # `map_chunks` stacks chunks along the leading axis, so the columns come first.
        return jax.tree.map(jnp.transpose, transposed), rows.outputs

    products, outputs = map_chunks(compare_rows, bound.batch, bound.size, strategy.chunk_size)
    return GradientSimilarity(*products, *outputs)

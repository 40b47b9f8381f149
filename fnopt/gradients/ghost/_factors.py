r"""Gradients of matrices as sums of outer products: norms, inner products and layout.

A weight consists of `T` matrices `[D, K]`. The gradient of one example with respect to each matrix
is a sum over the `R` positions at which the matrix is used:

.. math:: G_t = \sum_{r=1}^R a_{tr} c_{tr}^\top, \qquad
          \langle G, G' \rangle = \sum_{t,r,s} \langle a_{tr}, a'_{ts} \rangle
          \langle c_{tr}, c'_{ts} \rangle
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.gradients._sums import range_scale
from fnopt.gradients.ghost._sites import Site
from fnopt.gradients.ghost._weights import Weight
from fnopt.numerics import HIGHEST, compute_dtype, real_dtype, safe_sqrt, sum_of_squares, widen
from fnopt.sharding import product_sharding


class Dense(NamedTuple):
    """Vectors `[T, R, d]`, split into blocks along `d`.

    Attributes:
        blocks: The blocks, `[T, R, d_i]` each.
    """

    blocks: tuple[jax.Array, ...]


class OneHot(NamedTuple):
    """One-hot vectors.

    Attributes:
        index: Index of the nonzero entry, `[T, R]`.
    """

    index: jax.Array


Factor = Dense | OneHot


class Pair(NamedTuple):
    """Sum of outer products: `left` is `a`, and `right` is `c` in the module's formula."""

    left: Factor
    right: Factor


def widen_float16(x: jax.Array) -> jax.Array:
    """Cast float16 to float32, because sums of products overflow in float16."""
    return x.astype(jnp.float32) if x.dtype == jnp.float16 else x


def product(a: jax.Array, b: jax.Array, axis: int, precision: Any) -> jax.Array:
    """Batched matrix product that contracts `axis` of both operands, in float32 or wider."""
    # bfloat16 factors aren't widened, because accelerators accumulate their products in float32.
    a, b = widen_float16(a), widen_float16(b)
    dtype = compute_dtype(a.dtype, b.dtype)
    if a.dtype != b.dtype:
        a, b = a.astype(dtype), b.astype(dtype)
    numbers = (((axis,), (axis,)), ((0,), (0,)))
    sharding = product_sharding(a, b, (axis, axis), batch=1)
    where = {} if sharding is None else {"out_sharding": sharding}
    return jax.lax.dot_general(
        a, b, numbers, precision=precision, preferred_element_type=dtype, **where
    )


def gram(a: Factor, b: Factor) -> jax.Array:
    """Inner products of all vectors of two factors, `[T, R, R']`."""
    match a, b:
        case OneHot(), OneHot():
            # One-hot vectors have the inner product 1 if their indices are equal, else 0.
            same = a.index[:, :, None] == b.index[:, None, :]
            return same.astype(jnp.float32)
        case OneHot(), Dense():
            (block,) = b.blocks
            return jnp.swapaxes(jax.vmap(lambda c, i: c[:, i])(block, a.index), 1, 2)
        case Dense(), OneHot():
            return jnp.swapaxes(gram(b, a), 1, 2)
    return sum_of(product(x, y, 2, HIGHEST) for x, y in zip(a.blocks, b.blocks, strict=True))


def sum_of(terms: Any) -> jax.Array:
    """Sum of one or more arrays."""
    first, *rest = terms
    for term in rest:
        first = first + term
    return first


def num_positions(factor: Factor) -> int:
    """Number of vectors per matrix."""
    x = factor.index if isinstance(factor, OneHot) else factor.blocks[0]
    return x.shape[1]


def inner(p: Pair, q: Pair) -> jax.Array:
    """Inner product of two gradients, from the inner products of their factors."""
    left, right = gram(p.left, q.left), gram(p.right, q.right)
    dtype = compute_dtype(left.dtype, right.dtype)
    return jnp.sum(left.astype(dtype) * right.astype(dtype))


def squared_norm(pairs: Sequence[Pair]) -> jax.Array:
    """Squared norm of a sum of gradients."""
    # For up to two outer products, the three inner products below are cheaper than concatenating
    # the factors in memory.
    if len(pairs) > 2 or any(num_positions(p.left) > 1 for p in pairs):
        pairs = merge_pairs(pairs)
    # |sum_i a_i c_i^T|^2 = sum_ij (a_i . a_j) (c_i . c_j): the gradients are never formed.
    total = sum_of(pair_squared_norm(p) for p in pairs)
    for i, p in enumerate(pairs):
        for q in pairs[:i]:
            total = total + 2 * inner(p, q)
    return total


def scaled_norm(pairs: Sequence[Pair]) -> jax.Array:
    """Norm of a sum of gradients, whose factors are scaled to at most 1."""
    # Squared norms are of fourth order in the factors, so they overflow or underflow long before
    # the norm.
    left, right = _common_scale([p.left for p in pairs]), _common_scale([p.right for p in pairs])
    scaled = [Pair(_divide(p.left, left), _divide(p.right, right)) for p in pairs]
    norm = safe_sqrt(squared_norm(scaled))
    return left.astype(norm.dtype) * right.astype(norm.dtype) * norm


def scale_pair(pair: Pair, factor: jax.Array) -> Pair:
    """Multiply a gradient by a number; the left factor is scaled to at most 1."""
    scale = _common_scale([pair.left])

    def rescale(x: jax.Array) -> jax.Array:
        x = widen(x)
        return x * scale.astype(x.dtype) * factor.astype(x.dtype)

    # A one-hot factor can't be multiplied by a number, so the dense factor is.
    if isinstance(pair.right, OneHot):
        swapped = scale_pair(Pair(pair.right, pair.left), factor)
        return Pair(swapped.right, swapped.left)
    return Pair(_divide(pair.left, scale), Dense(tuple(map(rescale, pair.right.blocks))))


def _common_scale(factors: Sequence[Factor]) -> jax.Array:
    blocks = [widen_float16(x) for f in factors if isinstance(f, Dense) for x in f.blocks]
    if not blocks:
        return jnp.ones((), jnp.float32)
    dtype = real_dtype(compute_dtype(*(x.dtype for x in blocks)))
    return jnp.max(jnp.stack([range_scale(x).astype(dtype) for x in blocks]))


def _divide(factor: Factor, scale: jax.Array) -> Factor:
    if isinstance(factor, OneHot):
        return factor
    blocks = [widen_float16(x) for x in factor.blocks]
    return Dense(tuple(x / scale.astype(x.dtype) for x in blocks))


def pair_squared_norm(pair: Pair) -> jax.Array:
    """Squared norm of a gradient."""
    if num_positions(pair.left) > 1 or not isinstance(pair.right, Dense):
        return inner(pair, pair)
    # With a single position, |a c^T|^2 = |a|^2 |c|^2.
    return jnp.sum(_squared_lengths(pair.left) * _squared_lengths(pair.right))


def _squared_lengths(factor: Factor) -> jax.Array:
    """Squared norms of the vectors of a factor with one position, `[T]`."""
    if isinstance(factor, OneHot):
        return jnp.ones(factor.index.shape[:1], jnp.float32)
    # Without the reshape to a matrix, XLA stores the squares in memory before the sum.
    return sum_of(jax.vmap(sum_of_squares)(x.reshape(x.shape[0], -1)) for x in factor.blocks)


def merge_pairs(pairs: Sequence[Pair]) -> Sequence[Pair]:
    """Concatenate the factors of several uses of a matrix, if all factors are dense."""
    dense = all(isinstance(f, Dense) for p in pairs for f in p)
    if len(pairs) == 1 or not dense or len({jax.tree.structure(p) for p in pairs}) > 1:
        return pairs
    return [jax.tree.map(lambda *x: jnp.concatenate(x, axis=1), *pairs)]


def outer(pair: Pair, shape: tuple[int, int], precision: Any = None) -> jax.Array:
    """Form the gradient, `[T, D, K]`.

    Args:
        pair: The factors of the gradient.
        shape: `D` and `K`.
        precision: The matrix-product precision of the site in the model.
    """
    match pair:
        case Pair(OneHot(index), Dense((block,))):
            wide = widen(block)
            # A scatter, because a product would need the one-hot matrix `[R, D]` in memory.
            zeros = jnp.zeros(shape, wide.dtype)
            return jax.vmap(lambda i, c: zeros.at[i].add(c))(index, wide)
        case Pair(Dense(left), Dense((right,))):
            return jnp.concatenate([product(x, right, 1, precision) for x in left], axis=1)
        case Pair(Dense((left,)), Dense(right)):
            return jnp.concatenate([product(left, x, 1, precision) for x in right], axis=2)
    raise AssertionError(pair)


def site_pair(rule: Any, site: Site, x: jax.Array, g: jax.Array) -> Pair:
    """Factors of one example's gradient with respect to the site's stacked weight.

    A scan whose iterations share the weight extends the position axis `R`. A scan over slices of
    the weight extends the matrix axis `T`.

    Args:
        rule: The module with the `pair` of one iteration.
        site: The site.
        x: The other operand, with a leading axis for every scan around the site.
        g: The cotangent of the output, with the same leading axes.
    """

    def pair_once(x: jax.Array, g: jax.Array) -> Pair:
        return rule.pair(site, x, g)

    # One vmap per enclosing scan; `_fold_scans` then merges the axes of the scans.
    for _ in site.axes:
        pair_once = jax.vmap(pair_once)
    return jax.tree.map(lambda a: _fold_scans(a, site), pair_once(x, g))


def _fold_scans(a: jax.Array, site: Site) -> jax.Array:
    """Reshape `[scans..., T, R, ...]`: scans that slice the weight join `T`, others join `R`."""
    n = len(site.axes)
    slicing = [i for i, number in enumerate(site.axes) if number in site.weight.axes]
    sharing = [i for i in range(n) if i not in slicing]
    rest = range(n + 2, a.ndim)
    t = math.prod(a.shape[i] for i in (*slicing, n))
    r = math.prod(a.shape[i] for i in (*sharing, n + 1))
    transposed = a.transpose(*slicing, n, *sharing, n + 1, *rest)
    return transposed.reshape(t, r, *(a.shape[i] for i in rest))


def pair_shapes(
    rule: Any,
    site: Site,
    nodes: Mapping[int, tuple[Any, tuple[int, ...]]],
    lengths: Mapping[int, int],
) -> Pair:
    """Shapes and dtypes of a site's factors, for one example."""
    (other,) = site.others
    assert isinstance(other, int)

    def shape(number: int) -> jax.ShapeDtypeStruct:
        aval, axes = nodes[number]
        return jax.ShapeDtypeStruct((*(lengths[n] for n in axes), *aval.shape), aval.dtype)

    return jax.eval_shape(lambda x, g: site_pair(rule, site, x, g), shape(other), shape(site.tap))


class FactorLayout(NamedTuple):
    """Map from matrices `[T, D, K]` to the stacked value of a weight.

    Attributes:
        weight: The weight.
        split: The sizes of the axes that form `T`, `D` and `K`, in this order.
        counts: Number of axes that form `T`, `D` and `K`.
        perm: The permutation of these axes to the order of the weight.
        shape: The shape of the weight's stacked value.
    """

    weight: Weight
    split: tuple[int, ...]
    counts: tuple[int, int, int]
    perm: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def key(self) -> Any:
        """Hashable key; gradients with equal keys can be added as matrices."""
        return (self.weight.key, self.split, self.counts, self.perm)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """`T`, `D` and `K`."""
        n, m, _ = self.counts
        parts = self.split[:n], self.split[n : n + m], self.split[n + m :]
        t, d, k = map(math.prod, parts)
        return t, d, k

    def array(self, matrices: jax.Array) -> jax.Array:
        """Reshape `[T, D, K]` to the stacked value of the weight."""
        return matrices.reshape(self.split).transpose(self.perm).reshape(self.shape)

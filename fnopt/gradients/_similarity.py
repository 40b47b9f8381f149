"""How much the gradients of the examples of a batch point the same way."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import check_some, compute_dtype, scan_chunks
from fnopt.gradients._clip_rule import safe_root
from fnopt.gradients._loss import BoundLoss, ExampleLoss
from fnopt.gradients._methods import checked_way, choose
from fnopt.gradients._sums import inner_products
from fnopt.gradients.ghost import Ghost


class GradientSimilarity(NamedTuple):
    """The inner products of the gradients of `n` examples.

    The properties `cosine`, `[n, n]`, and `norm`, `[n]`, are computed from them.

    Attributes:
        inner: The Gram matrix, `[n, n]`, at least float32.
        loss: The loss of every example, `[n]`.
        aux: What the loss returned beside its value; else `None`.
    """

    inner: jax.Array
    loss: jax.Array
    aux: Any = None

    @property
    def norm(self) -> jax.Array:
        """The norm of every example's gradient, `[n]`."""
        return safe_root(jnp.diagonal(self.inner))

    @property
    def cosine(self) -> jax.Array:
        """The cosine of the angle between the gradients of any two examples, `[n, n]`.

        It is zero for a gradient of zero, which has no direction.
        """
        lengths = self.norm[:, None] * self.norm[None, :]
        none = lengths == 0
        cosine = self.inner / jnp.where(none, jnp.ones_like(lengths), lengths)
        return jnp.where(none, jnp.zeros_like(cosine), jnp.clip(cosine, -1, 1))


def gradient_similarity(
    loss_fn: Callable[..., Any],
    *,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    batch_argnums: int | Sequence[int] | None = None,
    method: str = "auto",
    chunk_size: int | None = None,
) -> Callable[..., GradientSimilarity]:
    r"""The inner products, and with them the cosines, between the gradients of all examples.

    .. math:: K_{ij} = \langle g_i, g_j \rangle, \qquad
              \cos_{ij} = \frac{K_{ij}}{\lVert g_i \rVert \lVert g_j \rVert}

    Examples with a negative cosine pull against each other; near-duplicates have one near 1. `K`
    is the neural tangent kernel of the losses on the batch. For a matrix that is used at
    positions `r` with inputs `a_r` and cotangents `c_r` it is
    :math:`\sum_{r,s} (a_{ir} \cdot a_{js}) (c_{ir} \cdot c_{js})`, so that no gradient has to be
    formed; where there are so many positions that forming is cheaper, slices of the gradients are
    formed one after the other.

    Args:
        loss_fn: `loss_fn(params, example, ...) -> scalar` for ONE example, or `(scalar, aux)`.
        argnums: Which positional arguments to differentiate; inner products are over all of them.
        has_aux: Whether `loss_fn` returns `(value, aux)`.
        batch_argnums: Which positional arguments have a leading example axis; by default all
            after the last of `argnums`.
        method: As in `per_example_norms`.
        chunk_size: How many examples to take at once. `None` for all: the batch is passed through
            once, and what the ghost method records (or, with the others, the gradients) is in
            memory for all of it. With `k` chunks there are `k (k + 1)` passes over a chunk.

    Returns:
        A function `(params, batch, ..., key=None)` -> a `GradientSimilarity`. An example with a
        gradient that isn't finite spoils its own row and column only.

    Raises:
        TypeError: If a parameter isn't floating, or the loss doesn't return a real scalar.
        ValueError: If there are no params, the example axes disagree or are empty, or an option
            makes no sense.

    Example:
        >>> from fnopt.gradients import gradient_similarity
        >>> x = jnp.array([[3.0, 4.0], [0.0, 2.0], [-3.0, -4.0]])
        >>> found = gradient_similarity(lambda w, x: w @ x)(jnp.zeros(2), x)
        >>> found.inner[0].tolist()
        [25.0, 8.0, -25.0]
        >>> [round(float(c), 3) for c in found.cosine[0]]
        [1.0, 0.8, -1.0]

    Reference:
        Fort, Nowak, Jastrzebski and Narayanan, 2019, "Stiffness: A New Perspective on
        Generalization in Neural Networks", arXiv:1901.09491.
    """
    spec = ExampleLoss(loss_fn, argnums, batch_argnums, has_aux, "gradient_similarity")
    chunk_size = checked_way(method, chunk_size, spec.name)

    def similarity_fn(*args: Any, key: Any = None, **kwargs: Any) -> GradientSimilarity:
        bound = spec.bind(args, kwargs, key)
        check_some(bound.params, spec.name)
        # The whole batch if nothing else is said: every further chunk costs passes over all others.
        way = choose(method, chunk_size or bound.size, bound)
        see = _Ghosts(way.ghost) if way.ghost else _Gradients(bound)
        return _similarity(see, bound, way.chunk_size)

    return similarity_fn


class _Ghosts(NamedTuple):
    """Activations and cotangents of a chunk."""

    ghost: Ghost

    def measure(self, chunk: Any) -> Any:
        return self.ghost.measure(chunk)

    def outputs(self, seen: Any) -> tuple[jax.Array, Any]:
        return seen.loss_and_aux

    def inner(self, one: Any, other: Any) -> jax.Array:
        return one.inner_products(other)


class _Gradients(NamedTuple):
    """The gradients of a chunk."""

    bound: BoundLoss

    def measure(self, chunk: Any) -> Any:
        grad = jax.value_and_grad(self.bound.loss, has_aux=True)
        return jax.vmap(grad, (None, 0))(self.bound.params, chunk)

    def outputs(self, seen: Any) -> tuple[jax.Array, Any]:
        return seen[0]

    def inner(self, one: Any, other: Any) -> jax.Array:
        pairs = zip(jax.tree.leaves(one[1]), jax.tree.leaves(other[1]), strict=True)
        found = [inner_products(x, y) for x, y in pairs]
        dtype = compute_dtype(*(x.dtype for x in found))
        return functools.reduce(jnp.add, [x.astype(dtype) for x in found])


def _similarity(see: Any, bound: BoundLoss, chunk_size: int | None) -> GradientSimilarity:
    if chunk_size is None or chunk_size >= bound.size:
        seen = see.measure(bound.batch)
        return GradientSimilarity(see.inner(seen, seen), *see.outputs(seen))

    def rows(carry: None, chunk: Any) -> tuple[None, Any]:
        mine = see.measure(chunk)

        def columns(carry: None, other: Any) -> tuple[None, jax.Array]:
            return carry, see.inner(see.measure(other), mine)

        _, inner = scan_chunks(columns, None, bound.batch, bound.size, chunk_size)
        return carry, (inner.T, see.outputs(mine))

    _, (inner, (loss, aux)) = scan_chunks(rows, None, bound.batch, bound.size, chunk_size)
    return GradientSimilarity(inner, loss, aux)

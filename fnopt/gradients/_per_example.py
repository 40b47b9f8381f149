"""Per-example gradients and their norms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from fnopt.errors import check_chunk_size
from fnopt.gradients._clip_rule import LeafGroups, groups_of
from fnopt.gradients._loss import BoundLoss, ExampleLoss
from fnopt.gradients._moments import measure
from fnopt.gradients._strategy import Strategy, checked_strategy, choose, run_compiled
from fnopt.numerics import map_chunks


def per_example_grads(
    loss_fn: Callable[..., Any],
    *,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    batch_argnums: int | Sequence[int] | None = None,
    chunk_size: int | None = None,
) -> Callable[..., Any]:
    r"""Compute the gradient of the loss for every example of a batch.

    .. math:: g_i = \nabla_\theta\, \ell(\theta, x_i), \qquad i = 1, \dots, n

    The loss takes ONE example and can be any JAX function, with any layers.

    Args:
        loss_fn: `loss_fn(params, example, ...) -> scalar`, or `(scalar, aux)` with `has_aux`.
        argnums: The positional arguments to differentiate, as in `jax.grad`.
        has_aux: Whether `loss_fn` returns `(value, aux)`.
        batch_argnums: The positional arguments with a leading example axis on every leaf. By
            default all after the last of `argnums`. The others, and every keyword
            argument, are passed to all examples unchanged.
        chunk_size: Number of examples to differentiate at once, which bounds the memory of
            activations and doesn't change the result. If the batch size isn't a multiple of it,
            concatenating the remainder copies the result. `None` for all.

    Returns:
        A function `(params, batch, ..., key=None)` -> the gradients: a tree like `params` whose
        leaves have a leading axis of `n` examples, in the dtype of the params (a tuple of trees for
        a sequence `argnums`). With `has_aux` it returns `(gradients, aux)`, and leaves of `aux`
        also have a leading example axis. If `key` is given, the loss of example `i` receives
        `key=jax.random.fold_in(key, i)`, for any chunk size.

    Raises:
        TypeError: If a parameter isn't floating, or the loss doesn't return a real scalar.
        ValueError: If the example axes disagree or are empty, or an option is invalid.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.gradients import per_example_grads
        >>> def loss(w, example):
        ...     x, y = example
        ...     return 0.5 * (x @ w - y) ** 2
        >>> batch = (jnp.array([[1.0, 2.0], [3.0, 4.0]]), jnp.array([1.0, -1.0]))
        >>> per_example_grads(loss)(jnp.zeros(2), batch).tolist()
        [[-1.0, -2.0], [3.0, 4.0]]
    """
    spec = ExampleLoss(loss_fn, argnums, batch_argnums, has_aux, "per_example_grads")
    return _per_example_grads(spec, chunk_size, with_value=False)


def value_and_per_example_grads(
    loss_fn: Callable[..., Any],
    *,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    batch_argnums: int | Sequence[int] | None = None,
    chunk_size: int | None = None,
) -> Callable[..., Any]:
    r"""Compute the loss and the gradient of every example.

    See `per_example_grads`; this function also returns the losses.

    Args:
        loss_fn: `loss_fn(params, example, ...) -> scalar`, or `(scalar, aux)` with `has_aux`.
        argnums: The positional arguments to differentiate, as in `jax.grad`.
        has_aux: Whether `loss_fn` returns `(value, aux)`.
        batch_argnums: The positional arguments with a leading example axis; by default all
            after the last of `argnums`.
        chunk_size: Number of examples to differentiate at once; `None` for all.

    Returns:
        A function `(params, batch, ..., key=None)` -> `(losses, gradients)`, or
        `((losses, aux), gradients)` with `has_aux`; `losses` has shape `[n]`.

    Raises:
        TypeError: If a parameter isn't floating, or the loss doesn't return a real scalar.
        ValueError: If the example axes disagree or are empty, or an option is invalid.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.gradients import value_and_per_example_grads
        >>> losses, grads = value_and_per_example_grads(lambda w, x: w * x**2)(
        ...     jnp.float32(3.0), jnp.array([1.0, 2.0])
        ... )
        >>> losses.tolist(), grads.tolist()
        ([3.0, 12.0], [1.0, 4.0])
    """
    spec = ExampleLoss(loss_fn, argnums, batch_argnums, has_aux, "value_and_per_example_grads")
    return _per_example_grads(spec, chunk_size, with_value=True)


def _per_example_grads(
    spec: ExampleLoss, chunk_size: int | None, with_value: bool
) -> Callable[..., Any]:
    chunk_size = check_chunk_size(chunk_size, spec.name)

    def grads_fn(*args: Any, key: Any = None, **kwargs: Any) -> Any:
        bound = spec.bind(args, kwargs, key)
        grad = jax.vmap(jax.value_and_grad(bound.loss, has_aux=True), (None, 0))

        with bound.on_its_mesh():
            (losses, aux), grads = map_chunks(
                lambda chunk: grad(bound.params, chunk), bound.batch, bound.size, chunk_size
            )
        return spec.outputs(losses, aux, grads, with_value)

    return grads_fn


def per_example_norms(
    loss_fn: Callable[..., Any],
    *,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    batch_argnums: int | Sequence[int] | None = None,
    method: str = "auto",
    chunk_size: int | None = None,
    groups: str | Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    r"""Compute the norm of every example's gradient, over all params, or per leaf or group.

    .. math:: \lVert g_i \rVert = \Bigl(\sum_k \lVert \nabla_{\theta_k}\,
              \ell(\theta, x_i) \rVert^2\Bigr)^{1/2}

    Hard, mislabeled and corrupt examples have large norms. Only one chunk of gradients is in
    memory at a time, and `method='ghost'` forms few gradients.

    Take a matrix that is used at `R` positions with inputs `a_r`, whose outputs have cotangents
    `c_r`. Its gradient is a sum of outer products, whose norm follows from inner products:

    .. math:: \Bigl\lVert \sum_r a_r c_r^\top \Bigr\rVert^2
              = \sum_{r,s} (a_r \cdot a_s)(c_r \cdot c_s)

    Args:
        loss_fn: `loss_fn(params, example, ...) -> scalar` for ONE example, or `(scalar, aux)`.
        argnums: The positional arguments to differentiate; the norm is over all of them.
        has_aux: Whether `loss_fn` returns `(value, aux)`.
        batch_argnums: The positional arguments with a leading example axis; by default all
            after the last of `argnums`.
        method: `'ghost'` computes norms from activations and cotangents. It forms the gradient of a
            matrix only if the gradient is smaller than the activations and cotangents;
            `ghost_report` shows the choice. `'vmap'` forms the gradients of all examples at once;
            `'chunked'` forms them chunk by chunk. `'auto'` is `'ghost'` if activations and
            cotangents of an example take less memory than its gradient, else `'chunked'`.
        chunk_size: Number of examples to process at once; `None` chooses it from the sizes.
        groups: `'leaf'` for the norm of every leaf, or a dict from names to patterns of
            paths (:func:`fnopt.errors.matches`) for the norms of groups of leaves. A leaf belongs
            to the first group that matches it; leaves without a group are omitted.

    Returns:
        A function `(params, batch, ..., key=None)` -> the norms, `[n]`, at least float32; or
        `(norms, aux)` with `has_aux`. With `groups='leaf'` the norms are a tree like the params,
        and with a dict of groups a dict.

    Raises:
        TypeError: If a parameter isn't floating, or the loss doesn't return a real scalar.
        ValueError: If the example axes disagree or are empty, or an option is invalid.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.gradients import per_example_norms
        >>> x = jnp.array([[3.0, 4.0], [0.0, 1.0]])
        >>> per_example_norms(lambda w, x: w @ x)(jnp.zeros(2), x).tolist()
        [5.0, 1.0]
        >>> loss = lambda p, x: p["w"] @ x + p["b"]
        >>> params = {"w": jnp.zeros(2), "b": jnp.zeros(())}
        >>> {k: v.tolist() for k, v in per_example_norms(loss, groups="leaf")(params, x).items()}
        {'b': [1.0, 1.0], 'w': [5.0, 1.0]}

    Reference:
        Goodfellow, 2015, "Efficient Per-Example Gradient Computations", arXiv:1510.01799. Li et
        al., 2021, "Large Language Models Can Be Strong Differentially Private Learners",
        arXiv:2110.05679.
    """
    spec = ExampleLoss(loss_fn, argnums, batch_argnums, has_aux, "per_example_norms")
    chunk_size = checked_strategy(method, chunk_size, spec.name)

    def norms_fn(*args: Any, key: Any = None, **kwargs: Any) -> Any:
        bound = spec.bind(args, kwargs, key)
        params = spec.like_argnums(bound.params)
        found = None if groups is None else groups_of(params, groups, spec.name)
        options = {"method": method, "chunk_size": chunk_size, "groups": found}
        each, aux = run_compiled(_group_norms, bound, **options)
        norms = each[0] if found is None else found.result(list(each))
        return (norms, aux) if has_aux else norms

    return norms_fn


def _group_norms(
    bound: BoundLoss, *, method: str, chunk_size: int | None, groups: LeafGroups | None
) -> tuple[tuple[jax.Array, ...], Any]:
    # The strategy is chosen inside the compiled call, which is cached by its options.
    return losses_and_norms(bound, choose(method, chunk_size, bound), groups)[1:]


def losses_and_norms(
    bound: BoundLoss, strategy: Strategy, groups: LeafGroups | None = None
) -> tuple[jax.Array, tuple[jax.Array, ...], Any]:
    """The loss, the gradient norms by group (by default over all leaves), and aux."""
    take = measure(bound, strategy)
    blocks, count = (None, 1) if groups is None else (groups.of_leaf, groups.count)

    def measure_chunk(chunk: Any) -> tuple[jax.Array, tuple[jax.Array, ...], Any]:
        seen = take(chunk, blocks)
        loss, aux = seen.loss_and_aux
        return loss, tuple(seen.norms(blocks, count)), aux

    return map_chunks(measure_chunk, bound.batch, bound.size, strategy.chunk_size)

"""Per-example gradients and their norms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from fnopt.errors import check_chunk_size
from fnopt.gradients._clip_rule import LeafGroups, groups_of
from fnopt.gradients._loss import BoundLoss, ExampleLoss
from fnopt.gradients._moments import measure
from fnopt.gradients._strategy import Strategy, checked_strategy, choose_strategy, run_compiled
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

    The loss is a function of ONE example. Any JAX function and any layers are supported.

    Args:
        loss_fn: `loss_fn(params, example, ...) -> scalar`, or `(scalar, aux)` with `has_aux`.
        argnums: The positional arguments to differentiate, as in `jax.grad`.
        has_aux: Whether `loss_fn` returns `(value, aux)`.
        batch_argnums: The positional arguments with a leading example axis on every leaf; by
            default all arguments after the last of `argnums`. Other positional arguments and all
            keyword arguments are shared by all examples.
        chunk_size: Number of examples to differentiate at once, or `None` for all. A small number
            saves memory for activations and doesn't change the result. If the batch size isn't a
            multiple of `chunk_size`, the result is copied once.

    Returns:
        A function `(params, batch, ..., key=None)` -> the gradients. The gradients are a tree like
        `params` whose leaves have a leading axis of `n` examples and the dtypes of the params. A
        sequence `argnums` returns a tuple of trees. With `has_aux` the function returns
        `(gradients, aux)`; leaves of `aux` also have a leading example axis. If `key` is passed,
        the loss of example `i` receives `key=jax.random.fold_in(key, i)`, for any chunk size.

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
            arguments after the last of `argnums`.
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

        with bound.mesh_context():
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
    r"""Compute the norm of every example's gradient, in total or per leaf or group of leaves.

    .. math:: \lVert g_i \rVert = \Bigl(\sum_k \lVert \nabla_{\theta_k}\,
              \ell(\theta, x_i) \rVert^2\Bigr)^{1/2}

    Hard, mislabeled and corrupt examples have large norms. Only one chunk of gradients is in
    memory at a time, and `method='ghost'` forms few gradients.

    Consider a weight matrix that is used at `R` positions with inputs `a_r`, whose outputs have
    cotangents `c_r`. The matrix's gradient is a sum of outer products. Its norm follows from inner
    products:

    .. math:: \Bigl\lVert \sum_r a_r c_r^\top \Bigr\rVert^2
              = \sum_{r,s} (a_r \cdot a_s)(c_r \cdot c_s)

    Args:
        loss_fn: `loss_fn(params, example, ...) -> scalar` for ONE example, or `(scalar, aux)`.
        argnums: The positional arguments to differentiate; the norm is over all of these arguments.
        has_aux: Whether `loss_fn` returns `(value, aux)`.
        batch_argnums: The positional arguments with a leading example axis; by default all
            arguments after the last of `argnums`.
        method: `'ghost'` computes norms from activations and cotangents, and forms the gradient of
            a matrix only if this is cheap; `ghost_report` shows the choice. `'vmap'` forms the
            gradients of all examples at once, and `'chunked'` forms the gradients of a chunk at a
            time. `'auto'` is `'ghost'` if the activations and cotangents of an example take less
            memory than the gradient, else `'chunked'`.
        chunk_size: Number of examples to process at once; by default chosen for the memory budget.
        groups: `'leaf'` for the norm of every leaf, or a dict from names to patterns of
            paths (:func:`fnopt.errors.matches`) for the norms of groups of leaves. A leaf belongs
            to the first matching group; leaves without a group are omitted.

    Returns:
        A function `(params, batch, ..., key=None)` -> the norms, `[n]`, at least float32; or
        `(norms, aux)` with `has_aux`. With `groups='leaf'`, the norms are a tree like the params.
        With a dict of groups, the norms are a dict.

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
        leaf_groups = None if groups is None else groups_of(params, groups, spec.name)
        options = {"method": method, "chunk_size": chunk_size, "groups": leaf_groups}
        group_norms, aux = run_compiled(_group_norms, bound, **options)
        norms = group_norms[0] if leaf_groups is None else leaf_groups.result(list(group_norms))
        return (norms, aux) if has_aux else norms

    return norms_fn


def _group_norms(
    bound: BoundLoss, *, method: str, chunk_size: int | None, groups: LeafGroups | None
) -> tuple[tuple[jax.Array, ...], Any]:
    # Inside the compiled call, `choose`, which traces the loss, runs once per compilation.
    return losses_and_norms(bound, choose_strategy(method, chunk_size, bound), groups)[1:]


def losses_and_norms(
    bound: BoundLoss, strategy: Strategy, groups: LeafGroups | None = None
) -> tuple[jax.Array, tuple[jax.Array, ...], Any]:
    """Compute the losses, the gradient norms per group (by default of all leaves), and aux."""
    measure_chunk = measure(bound, strategy)
    blocks, count = (None, 1) if groups is None else (groups.of_leaf, groups.count)

    def reduce_chunk(chunk: Any) -> tuple[jax.Array, tuple[jax.Array, ...], Any]:
        gradients = measure_chunk(chunk, blocks)
        loss, aux = gradients.loss_and_aux
        return loss, tuple(gradients.norms(blocks, count)), aux

    return map_chunks(reduce_chunk, bound.batch, bound.size, strategy.chunk_size)

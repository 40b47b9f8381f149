"""Costs of the forward pass, the backward pass and the update of a training step."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from fnopt.core import apply_updates, as_transformation
from fnopt.costs._bytes import bytes_of, nbytes
from fnopt.costs._cost import (
    TripCounts,
    check_all_used,
    check_arrays,
    checked_trip_counts,
    compiled_cost,
)
from fnopt.costs._count import count
from fnopt.costs._graph import Cell, Graph, prune, trace_graph
from fnopt.costs._result import Cost, GradCost, StepCost


def grad_cost(
    loss: Callable[..., Any],
    *,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    trip_counts: TripCounts = None,
    compile: bool = False,
) -> Callable[..., GradCost]:
    """Count the forward and the backward pass of `jax.value_and_grad(loss)` separately.

    Args:
        loss: A function that returns a scalar, or `(scalar, aux)`.
        argnums: The positional arguments to differentiate, as in `jax.grad`.
        has_aux: Whether `loss` returns `(scalar, aux)`.
        trip_counts: As in `fnopt.costs.cost`.
        compile: Whether to compile the program as well, for XLA's cost and memory analysis.

    Returns:
        A function of the arguments of `loss` that returns a `GradCost`; nothing is executed.

    Raises:
        TypeError: If the loss doesn't return a scalar, or an argument isn't an array.
        ValueError: As in `fnopt.costs.cost`.

    Example:
        >>> from fnopt.costs import grad_cost
        >>> def loss(w, x):
        ...     return jnp.sum(jnp.tanh(x @ w) @ w)
        >>> g = grad_cost(loss)(jnp.ones((64, 64)), jnp.ones((16, 64)))
        >>> g.forward.matmul_flops == 2 * 2 * 16 * 64 * 64
        True
        >>> g.backward.matmul_flops / g.forward.matmul_flops  # x needs no gradient
        1.5
    """
    counts = checked_trip_counts(trip_counts)
    _check_loss("grad_cost", loss)

    def cost_fn(*args: Any, **kwargs: Any) -> GradCost:
        check_arrays("grad_cost", args, kwargs)
        forward = _forward_pass(loss, argnums, has_aux)
        grad = _count_passes(forward, args, kwargs, counts)
        if not compile:
            return grad
        both_passes = jax.value_and_grad(loss, argnums, has_aux)
        return dataclasses.replace(grad, compiled=compiled_cost(both_passes, args, kwargs))

    return cost_fn


def step_cost(
    loss: Callable[..., Any],
    tx: Any,
    *,
    has_aux: bool = False,
    update_args: Mapping[str, Any] | None = None,
    trip_counts: TripCounts = None,
    compile: bool = False,
) -> Callable[..., StepCost]:
    """Count the forward pass, the backward pass and the optimizer update of a training step.

    Args:
        loss: `loss(params, *batch)` returns a scalar, or `(scalar, aux)`.
        tx: The optimizer: an fnopt transformation or any `(init, update)` pair.
        has_aux: Whether `loss` returns `(scalar, aux)`.
        update_args: Extra arguments for `tx.update`.
        trip_counts: As in `fnopt.costs.cost`, for loops in the loss and in the optimizer.
        compile: Whether to compile the step as well, for XLA's analysis with donated params and
            state.

    Returns:
        A function `(params, *batch)` of arrays or `jax.ShapeDtypeStruct`s that returns a
        `StepCost`; nothing is executed.

    Raises:
        TypeError: If the loss doesn't return a scalar, `tx` isn't an optimizer, or an argument
            isn't an array.
        ValueError: As in `fnopt.costs.cost`.

    Example:
        >>> import fnopt
        >>> from fnopt.costs import step_cost
        >>> def loss(w, x):
        ...     return jnp.mean((x @ w) ** 2)
        >>> s = step_cost(loss, fnopt.adam(1e-3))(jnp.ones((64, 8)), jnp.ones((16, 64)))
        >>> s.forward.matmul_flops, s.backward.matmul_flops, s.update.matmul_flops
        (16384, 16384, 0)
        >>> s.params_bytes, s.state_bytes  # two moments and a count
        (2048, 4100)
    """
    counts, extra = checked_trip_counts(trip_counts), dict(update_args or {})
    tx = as_transformation(tx, "step_cost: tx")
    _check_loss("step_cost", loss)

    def update(grads: Any, state: Any, params: Any, extra: dict[str, Any]) -> tuple[Any, Any]:
        updates, state = tx.update(grads, state, params, **extra)
        return apply_updates(params, updates), state

    def step(params: Any, state: Any, extra: dict[str, Any], *batch: Any) -> Any:
        value, grads = jax.value_and_grad(loss, has_aux=has_aux)(params, *batch)
        return value, update(grads, state, params, extra)

    def cost_fn(params: Any, *batch: Any) -> StepCost:
        check_arrays("step_cost", (params, *batch), extra)
        params = jax.eval_shape(lambda p: p, params)
        state = jax.eval_shape(tx.init, params)
        update_cost = _count(update, (params, state, params, extra), counts)
        forward = _forward_pass(loss, 0, has_aux)
        grad = _count_passes(forward, (params, *batch), {}, counts, update_cost)
        jitted = jax.jit(step, donate_argnums=(0, 1))
        return StepCost(
            grad.forward,
            grad.backward,
            grad.residual_bytes,
            update_cost,
            *(sum(map(bytes_of, jax.tree.leaves(tree))) for tree in (params, state)),
            compiled=compiled_cost(jitted, (params, state, extra, *batch), {}) if compile else None,
        )

    return cost_fn


def _forward_pass(
    loss: Callable[..., Any], argnums: int | Sequence[int], has_aux: bool
) -> Callable[..., tuple[Any, Any, Any]]:
    """Function that runs the forward pass of `loss` and returns `(pullback, value, aux)`."""
    positions = (argnums,) if isinstance(argnums, int) else tuple(argnums)

    def forward(*args: Any, **kwargs: Any) -> tuple[Any, Any, Any]:
        def partial_loss(*values: Any) -> Any:
            loss_args = list(args)
            for i, value in zip(positions, values, strict=True):
                loss_args[i] = value
            return _checked_value(loss(*loss_args, **kwargs), has_aux)

        outputs: Any = jax.vjp(partial_loss, *(args[i] for i in positions), has_aux=has_aux)
        value, pullback, aux = outputs if has_aux else (*outputs, None)
        return pullback, value, aux

    return forward


def _check_loss(what: str, loss: Any) -> None:
    if not callable(loss):
        raise TypeError(f"{what}: the loss is {type(loss).__name__}, expected a function.")


def _checked_value(result: Any, has_aux: bool) -> Any:
    """Check that a loss returned a scalar (and aux); return the result unchanged."""
    value = result[0] if has_aux and isinstance(result, tuple) and len(result) == 2 else result
    shape = getattr(value, "shape", None)
    if shape == ():
        return result
    text = f"a {type(value).__name__}" if shape is None else f"a value of shape {shape}"
    raise TypeError(
        f"the loss returns {text}, expected a scalar. Return the mean or the sum, or with "
        "has_aux=True a pair (scalar, aux)."
    )


def _count_passes(
    forward: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    counts: dict[str, int],
    *others: Cost,
) -> GradCost:
    """Count the forward and the backward pass.

    Args:
        forward: The result of `_forward_pass`.
        args: The positional arguments of the loss.
        kwargs: The keyword arguments of the loss.
        counts: Trip counts, keyed by the names of loops.
        *others: Costs of other programs, whose loops `counts` may also name.
    """
    pullback, value, _ = jax.eval_shape(forward, *args, **kwargs)
    graph, _ = prune(trace_graph(forward, args, kwargs))
    forward_cost = count(graph, counts)
    backward_cost = _count(lambda pull, ct: pull(ct), (pullback, value), counts)
    # A trip count may belong to a loop of any phase, also of the update.
    check_all_used(counts, sum(others, forward_cost + backward_cost))
    # A pullback is a pytree whose leaves are the residuals of the backward pass.
    residuals = graph.outputs[: len(jax.tree.leaves(pullback))]
    return GradCost(forward_cost, backward_cost, _residual_bytes(graph, residuals))


def _count(fn: Callable[..., Any], args: tuple[Any, ...], counts: dict[str, int]) -> Cost:
    graph, _ = prune(trace_graph(fn, args, {}))
    return count(graph, counts)


def _residual_bytes(graph: Graph, residuals: Sequence[Cell | None]) -> int:
    """Bytes of the residuals, excluding arguments; shared buffers are counted once."""
    inputs = set(graph.inputs)
    memory: dict[Cell, int] = {}
    for cell in residuals:
        owner = cell
        # A cast is a copy, unlike a transpose or a reshape.
        while owner and owner.base is not None and owner.base.aval.dtype == owner.aval.dtype:
            owner = owner.base
        if cell is not None and owner is not None and owner not in inputs:
            memory[owner] = max(nbytes(cell), memory.get(owner, 0))
    return sum(memory.values())

"""Check that the loss of an example doesn't depend on the other examples of a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from fnopt.errors import check_batch, check_count, count_text, type_text
from fnopt.gradients._loss import PASS_BY_KEYWORD, named_leaves

_NAME = "check_examples_independent"


def check_examples_independent(
    losses_fn: Callable[..., Any],
    *,
    batch_argnums: int | Sequence[int] = 1,
    has_aux: bool = False,
    probes: int = 2,
) -> Callable[..., None]:
    r"""Check numerically that the loss of an example doesn't depend on the other examples.

    Per-example gradients require that

    .. math:: \ell_i(\theta, x_1, \dots, x_n) = \ell(\theta, x_i)

    Every computation over the batch axis violates this condition. Examples are batch normalization
    in training mode, a contrastive loss, and an expert capacity that all examples share.
    The check replaces a few examples, one at a time, and requires that the losses of all other
    examples don't change.

    `per_example_grads` and similar functions call the loss with *one* example. Batch normalization
    then normalizes a batch of one example, so the loss differs from the training loss. Therefore,
    check the loss of a batch before you write the loss of one example.

    Args:
        losses_fn: `losses_fn(params, batch, ...) -> [n]`, the loss of every example of a batch, or
            `([n], aux)`.
        batch_argnums: The positional arguments with a leading example axis.
        has_aux: Whether `losses_fn` returns `(losses, aux)`.
        probes: Number of examples to replace.

    Returns:
        A function of the arguments of `losses_fn` that returns `None`. The returned function calls
        `losses_fn` `probes + 1` times and compares numbers, so call it outside of `jit`.

    Raises:
        ValueError: If the losses of other examples change, the losses don't have the shape `[n]` or
            aren't finite, or all examples of the batch are equal.
        TypeError: If the arguments are traced.

    Example:
        >>> from fnopt.gradients import check_examples_independent
        >>> x = jnp.arange(6.0).reshape(3, 2)
        >>> check_examples_independent(lambda w, x: x @ w)(jnp.ones(2), x)
        >>> check_examples_independent(lambda w, x: (x - x.mean(0)) @ w)(jnp.ones(2), x)
        Traceback (most recent call last):
        ValueError: check_examples_independent: the examples aren't independent: a change of...
    """
    check_count(probes, "probes", _NAME)
    positions = (batch_argnums,) if isinstance(batch_argnums, int) else tuple(batch_argnums)

    def check(*args: Any, **kwargs: Any) -> None:
        if not positions or any(not 0 <= i < len(args) for i in positions):
            raise ValueError(
                f"{_NAME}: batch_argnums is {positions}, expected indices of the "
                f"{count_text(len(args), 'positional argument')}."
            )
        batch = {i: args[i] for i in positions}
        size = check_batch(named_leaves(batch), _NAME, PASS_BY_KEYWORD)
        if any(isinstance(x, Tracer) for x in jax.tree.leaves((args, kwargs))):
            raise TypeError(
                f"{_NAME}: the arguments are traced, expected concrete arrays. Call it outside of "
                "jit."
            )

        def losses(batch: dict[int, Any]) -> jax.Array:
            output = losses_fn(*[batch.get(i, arg) for i, arg in enumerate(args)], **kwargs)
            return _check_losses(output[0] if has_aux else output, size)

        before = losses(batch)
        for i, j in _pairs(batch, size, probes):
            replaced = jax.tree.map(lambda x, i=i, j=j: jnp.asarray(x).at[i].set(x[j]), batch)
            _compare(before, losses(replaced), i)

    return check


def _check_losses(losses: Any, size: int) -> jax.Array:
    if getattr(losses, "shape", None) != (size,):
        raise ValueError(
            f"{_NAME}: the losses are {type_text(losses)}, expected shape ({size},), one loss per "
            "example. Return the losses without a sum or mean."
        )
    bad = np.flatnonzero(~np.isfinite(_to_numpy(losses)))
    if bad.size:
        raise ValueError(
            f"{_NAME}: the losses of {count_text(bad.size, 'example')} are not finite, expected "
            f"finite losses. The first is the loss of example {bad[0]}."
        )
    return losses


def _to_numpy(x: Any) -> np.ndarray:
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return np.asarray(jax.random.key_data(x))
    # NumPy itself has no arithmetic for bfloat16 and float8.
    return np.asarray(x, np.float64 if jnp.issubdtype(x.dtype, jnp.floating) else None)


def _pairs(batch: Any, size: int, probes: int) -> list[tuple[int, int]]:
    """Pairs of the example to replace and a different example, spread over the batch."""
    leaves = [_to_numpy(x) for x in jax.tree.leaves(batch)]

    def next_different(i: int) -> int | None:
        others = ((i + step) % size for step in range(1, size))
        return next((j for j in others if any(np.any(x[i] != x[j]) for x in leaves)), None)

    positions = np.unique(np.linspace(0, size - 1, probes).astype(int)).tolist()
    pairs = [(i, j) for i in positions if (j := next_different(i)) is not None]
    if not pairs:
        raise ValueError(
            f"{_NAME}: all examples of the batch are equal, expected at least two different "
            "examples."
        )
    return pairs


def _compare(before: jax.Array, after: jax.Array, replaced: int) -> None:
    """Raise if the losses of examples other than `replaced` changed."""
    old, new = _to_numpy(before), _to_numpy(after)
    changes = np.abs(new - old)
    changes[replaced] = 0
    # Rows of a matrix product may be rounded differently if another row changes, by a few machine
    # epsilons of the mean loss. The factor 64 allows for the depth of a network.
    scale = np.maximum(np.abs(old), np.abs(old).mean())
    others = np.flatnonzero(changes > 64 * float(jnp.finfo(before.dtype).eps) * scale)
    if not others.size:
        return
    worst = int(np.argmax(changes))
    raise ValueError(
        f"{_NAME}: the examples aren't independent: a change of example {replaced} changed the "
        f"losses of {count_text(others.size, 'other example')} (example {worst}: from "
        f"{old[worst]:.6g} to {new[worst]:.6g}), expected no change. The gradient of one example "
        "is then undefined. Batch norm in training mode has this effect. Use its running averages "
        "(train=False, use_running_average=True) or a norm within an example (layer, group, "
        "instance norm)."
    )

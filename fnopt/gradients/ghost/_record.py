"""Record the factors of the gradients in one forward and one backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from fnopt.gradients.ghost._plan import Plan, tap_zeros
from fnopt.programs import intercept_nodes
from fnopt.sharding import pvary_like


class Tape(NamedTuple):
    """The tape of a backward pass: inputs and cotangents of the sites, with a leading example axis.

    Attributes:
        outputs: The loss, and the leaves of aux.
        records: By node: operands of sites.
        cotangents: By node: cotangents of the outputs of sites.
        grads: By number of the param: gradients, where no other way is known.
    """

    outputs: list[jax.Array]
    records: dict[int, jax.Array]
    cotangents: dict[int, jax.Array]
    grads: dict[int, jax.Array]


def record(plan: Plan, params: Sequence[Any], batch: Sequence[Any]) -> Tape:
    """Runs the loss and its derivative on all examples.

    The params themselves are not differentiated: only zeros that are added to what the sites put
    out, and the params that are left to `jax.vmap`.
    """
    left = {i: params[i] for group in plan.groups if group.form == "vmap" for i in group.leaves}

    def loss(taps: Any, left: dict[int, Any], example: Sequence[Any]) -> Any:
        inputs = [left.get(i, p) for i, p in enumerate(params)]
        outputs, records = intercept_nodes(plan.level, [*inputs, *example], visit, taps)
        return outputs[0], (outputs, records)

    run = jax.vmap(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True), (None, None, 0))
    taps = pvary_like(tap_zeros(plan), (params, batch))
    (_, (outputs, records)), (cotangents, grads) = run(taps, left, batch)
    return Tape(outputs, records, cotangents, grads)


def visit(node: int, value: jax.Array, tap: jax.Array | None) -> tuple[Any, Any]:
    """The visit of a node: its value is recorded, or a zero (its tap) is added."""
    return (value, value) if tap is None else (value + tap, None)

"""Print memory and messages of compiled steps on 4 and 8 devices as JSON, for each method."""

from __future__ import annotations

import functools
import json
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import fnopt
from fnopt import distributed
from fnopt.costs import Hardware, Network, distributed_cost, step_cost
from tests.distributed.messages import results, sent

LAYERS, EVERY, BLOCK = 3, 10, 16
SHAPES = {"a": (LAYERS, 16, 64), "b": (LAYERS, 64, 16), "c": (LAYERS, 16)}
PARAMS = {k: jax.ShapeDtypeStruct(s, jnp.float32) for k, s in SHAPES.items()}
BATCH = (8, 16)  # batch of one device
TX = fnopt.adamw(1e-3)


def loss(params: Any, x: jax.Array, whole: Any = lambda p: p) -> jax.Array:
    @functools.partial(jax.checkpoint, policy=jax.checkpoint_policies.nothing_saveable)
    def layer(x: jax.Array, p: Any) -> tuple[jax.Array, None]:
        p = jax.tree.map(whole, p)
        return jnp.tanh(x @ p["a"]) @ p["b"] + p["c"], None

    return jnp.mean(jax.lax.scan(layer, x, params)[0] ** 2)


def ddp(params: Any, state: Any, x: jax.Array) -> Any:
    grads = jax.lax.pmean(jax.grad(loss)(params, x), "data")
    updates, state = TX.update(grads, state, params)
    return fnopt.apply_updates(params, updates), state


def with_own_gradients(tx: Any, params: Any, state: Any, x: jax.Array) -> Any:
    updates, state = tx.update(jax.grad(loss)(params, x), state, params)
    return fnopt.apply_updates(params, updates), state


def fsdp(params: Any, state: Any, x: jax.Array) -> Any:
    """Gather each layer in the forward pass and again in the backward pass."""
    gather = functools.partial(jax.lax.all_gather, axis_name="data", tiled=True)
    updates, state = TX.update(jax.grad(loss)(params, x, gather), state, params)
    return fnopt.apply_updates(params, updates), state


WAYS = {
    "ddp": (TX, ddp),
    "zero1": (distributed.sharded(TX, "data"), None),
    "fsdp": (TX, fsdp),
    "diloco": (
        distributed.diloco(TX, fnopt.sgd(0.7, momentum=0.9), EVERY, "data", block_size=BLOCK),
        None,
    ),
}


def measured(name: str, devices: int) -> dict[str, int]:
    """Return bytes of arguments (without the batch), bytes sent and messages of a step."""
    tx, step = WAYS[name]
    mesh = jax.make_mesh(
        (devices,), ("data",), devices=jax.devices()[:devices], axis_types=(AxisType.Auto,)
    )
    spec = P(None, "data") if name == "fsdp" else P()
    params = {k: jnp.ones(s) for k, s in SHAPES.items()}
    params = jax.device_put(params, NamedSharding(mesh, spec))
    x = jnp.ones((devices * BATCH[0], BATCH[1]))
    specs = spec, jax.tree.map(lambda s: s.spec, distributed.state_sharding(tx, params))
    mapped = jax.shard_map(
        step or functools.partial(with_own_gradients, tx),
        mesh=mesh,
        in_specs=(*specs, P("data")),
        out_specs=specs,
        check_vma=False,
    )
    x = jax.device_put(x, NamedSharding(mesh, P("data")))
    program = jax.jit(mapped).lower(params, tx.init(params), x).compile()
    text, memory = program.as_text(), program.memory_analysis()
    assert text is not None
    held_bytes = memory.argument_size_in_bytes - 4 * BATCH[0] * BATCH[1]
    times = LAYERS if name == "fsdp" else 1  # the messages of fsdp are in loops over layers
    return {"held": held_bytes, "sent": times * sent(text, devices), "messages": len(results(text))}


def main() -> None:
    machine, network = Hardware(1e12, 1e11), Network(1e9)
    step = step_cost(loss, TX)(PARAMS, jax.ShapeDtypeStruct(BATCH, jnp.float32))
    comparisons = []
    for devices in (4, 8):
        planned = distributed_cost(step, devices, machine, network, every=EVERY, block_size=BLOCK)
        for name, way in planned.ways.items():
            held_bytes = way.params_bytes + way.state_bytes
            plan = {"held": held_bytes, "sent": way.sent_bytes * (EVERY if name == "diloco" else 1)}
            here = {"way": name, "devices": devices, "planned": plan}
            comparisons.append(here | {"measured": measured(name, devices)})
    print(json.dumps(comparisons))


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 8)
    main()

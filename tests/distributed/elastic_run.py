"""Eight devices: trains on four, goes on from a checkpoint on 1, 4 and 8; prints checksums.

Gradients are exact sums of whole numbers, so that the number of devices changes no bit.
"""

from __future__ import annotations

import functools
import hashlib
import json
import pickle
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import fnopt
from fnopt import distributed

STEPS, SAVED = 5, 3  # saved in the middle of an accumulation
RATE = fnopt.linear_schedule(0.1, 0.0, transition_steps=4)
TX = distributed.sharded(
    fnopt.chain(fnopt.accumulate(fnopt.adamw(RATE, weight_decay=0.1), k=2), fnopt.params_ema(0.9)),
    "data",
)
START = {"w": np.linspace(-1, 1, 15, dtype=np.float32).reshape(3, 5), "b": np.ones(10, "f")}
DATA = np.random.RandomState(0).randint(-8, 8, (STEPS, 8, 25)).astype("f")


def gradient(batch: Any) -> Any:
    mean = jnp.mean(batch, axis=0)
    return {"w": mean[:15].reshape(3, 5), "b": mean[15:]}


def on(devices: int) -> Any:
    return jax.make_mesh(
        (devices,), ("data",), devices=jax.devices()[:devices], axis_types=(AxisType.Auto,)
    )


@functools.cache
def program(devices: int) -> Any:
    """One step on so many devices, and the params as it takes them at first."""
    mesh = on(devices)
    params = jax.device_put(START, NamedSharding(mesh, P()))
    specs = jax.tree.map(lambda s: s.spec, distributed.state_sharding(TX, params))

    def step(params: Any, state: Any, batch: Any) -> Any:
        updates, state = TX.update(gradient(batch), state, params)
        return fnopt.apply_updates(params, updates), state

    mapped = jax.shard_map(
        step,
        mesh=mesh,
        in_specs=(P(), specs, P("data")),
        out_specs=(P(), specs),
        check_vma=False,
    )
    return jax.jit(mapped), params


def train(devices: int, params: Any, state: Any, first: int, last: int) -> Any:
    """Steps from `first` on; the state is that of one device before and after."""
    run, where = program(devices)
    params = jax.device_put(params, jax.tree.map(lambda x: x.sharding, where))
    state = distributed.scatter_state(TX, state, params)
    for i in range(first, last):
        params, state = run(params, state, DATA[i])
    return jax.device_get((params, distributed.gather_state(TX, state, params)))


def checksum(tree: Any) -> str:
    whole = b"".join(np.asarray(x).tobytes() for x in jax.tree.leaves(tree))
    return hashlib.sha256(whole).hexdigest()[:16]


def main() -> None:
    state = TX.inner.init(START)
    saved = pickle.dumps(train(4, START, state, 0, SAVED))
    found = {"uninterrupted": checksum(train(4, START, state, 0, STEPS))}
    for devices in (1, 4, 8):
        params, state = pickle.loads(saved)
        found[str(devices)] = checksum(train(devices, params, state, SAVED, STEPS))
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 8)
    main()

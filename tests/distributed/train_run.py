"""A training run that starts on two processes, and continues on any number of devices.

    python -m tests.distributed.train_run begin DIRECTORY localhost:PORT 0    (and the same with 1)
    python -m tests.distributed.train_run go_on DIRECTORY

Gradients are exact sums, so the checksums are equal for every number of devices.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import pathlib
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import fnopt
from fnopt import distributed

# The checkpoint is in the middle of an accumulation, with a NaN gradient before and after it.
STEPS, SAVED = 6, 4
RATE = fnopt.linear_schedule(0.1, 0.0, transition_steps=4)
INNER = fnopt.apply_if_finite(
    fnopt.chain(fnopt.accumulate(fnopt.adamw(RATE, weight_decay=0.1), k=2), fnopt.params_ema(0.9))
)
TX = distributed.sharded(INNER, "data", mean=False)
START = {"w": np.linspace(-1, 1, 15, dtype=np.float32).reshape(3, 5), "b": np.ones(10, "f")}


def all_examples() -> Any:
    """Return arrays [step, example, ...]; norms are 2 or 4, so clipping to 2 is exact."""
    rng = np.random.default_rng(0)
    data = rng.choice([-1.0, 1.0], (STEPS, 8, 25))
    for row in data.reshape(-1, 25):
        row[rng.permutation(25)[rng.choice([4, 16]) :]] = 0.0
    data[1, 7, 3] = data[4, 7, 20] = np.nan  # on the last device
    data = data.astype("f")
    return {"w": data[..., :15].reshape(STEPS, 8, 3, 5), "b": data[..., 15:]}


def loss(params: Any, example: Any) -> jax.Array:
    return sum(jnp.vdot(params[k], example[k]) for k in ("w", "b"))


def on_devices(mesh: Any, step: int) -> Any:
    """Return the batch of a step, a global array of the examples of all processes."""
    count = 8 // jax.process_count()
    local = slice(jax.process_index() * count, (jax.process_index() + 1) * count)
    by_example = NamedSharding(mesh, P("data"))
    return {
        k: jax.make_array_from_process_local_data(by_example, x[step, local])
        for k, x in all_examples().items()
    }


class Training:
    """Training steps on the first devices of one or several processes."""

    def __init__(self, devices: int) -> None:
        self.mesh = jax.make_mesh(
            (devices,), ("data",), devices=jax.devices()[:devices], axis_types=(AxisType.Auto,)
        )
        self.replicated = NamedSharding(self.mesh, P())
        params = self.start()
        specs = jax.tree.map(lambda s: s.spec, distributed.state_sharding(TX, params))

        @jax.jit
        @functools.partial(
            jax.shard_map,
            mesh=self.mesh,
            in_specs=(P(), specs, P("data")),
            out_specs=(P(), specs),
            check_vma=False,
        )
        def step(params: Any, state: Any, batch: Any) -> Any:
            # the sum over this device's examples; TX.update sums over devices
            total, _ = fnopt.clipped_grad(loss, 2.0)(params, batch)
            updates, state = TX.update(total, state, params)
            return fnopt.apply_updates(params, updates), state

        @jax.jit
        @functools.partial(
            jax.shard_map, mesh=self.mesh, in_specs=(P(), P("data")), out_specs=P(), check_vma=False
        )
        def private(params: Any, batch: Any) -> Any:
            total, _ = fnopt.clipped_grad(loss, 2.0, axis_name="data")(params, batch)
            return fnopt.add_noise(total, jax.random.key(1), 1.0, 2.0)[0]

        self.step, self.private = step, private
        self.gathered = jax.jit(
            lambda p, s: {"params": p, "state": distributed.gather_state(TX, s, p)},
            out_shardings=self.replicated,
        )

    def start(self) -> Any:
        return jax.device_put(START, self.replicated)

    def run(self, params: Any, state: Any, first: int, last: int) -> Any:
        for i in range(first, last):
            params, state = self.step(params, state, on_devices(self.mesh, i))
        return params, state

    def target(self) -> Any:
        """Return shapes and shardings of a replicated state, to restore a checkpoint."""
        shapes = {"params": START, "state": jax.eval_shape(INNER.init, START)}
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=self.replicated), shapes
        )

    def report(self, params: Any, state: Any) -> dict[str, Any]:
        noisy = self.private(params, on_devices(self.mesh, 0))
        gathered = self.gathered(params, state)
        return {
            "devices": self.mesh.size,
            "processes": jax.process_count(),
            "run": checksum(gathered),
            "private": checksum(noisy),
            "bad steps": int(gathered["state"].total_notfinite.addressable_data(0)),
        }


def checksum(tree: Any) -> str:
    leaves = [np.asarray(x.addressable_data(0)) for x in jax.tree.leaves(tree)]
    return hashlib.sha256(b"".join(x.tobytes() for x in leaves)).hexdigest()[:16]


def begin(path: pathlib.Path, address: str, process: int) -> None:
    """Train, save a checkpoint, train further; then the second process dies."""
    jax.config.update("jax_num_cpu_devices", 2)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(address, num_processes=2, process_id=process)
    training = Training(jax.device_count())
    params = training.start()
    params, state = training.run(params, distributed.init_sharded(TX, params), 0, SAVED)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(path, training.gathered(params, state))
    params, state = training.run(params, state, SAVED, STEPS)
    report = training.report(params, state)
    reported = path.with_name("reported")
    if process == 1:
        print(json.dumps(report), flush=True)
        while not reported.exists():  # the first process may still compute its report
            time.sleep(0.05)
        os._exit(1)
    reported.touch()
    try:
        while True:
            jax.block_until_ready(training.run(params, state, 0, 1))
    except jax.errors.JaxRuntimeError as error:
        print(json.dumps(report | {"lost": str(error)}), flush=True)
    os._exit(0)  # a normal exit would wait for the second process


def go_on(path: pathlib.Path) -> None:
    """Continue from the checkpoint on 1, 2 and 8 devices of one process."""
    jax.config.update("jax_num_cpu_devices", 8)
    reports = []
    for devices in (1, 2, 8):
        training = Training(devices)
        with ocp.StandardCheckpointer() as checkpointer:
            saved = checkpointer.restore(path, training.target())
        state = distributed.scatter_state(TX, saved["state"], saved["params"])
        reports.append(training.report(*training.run(saved["params"], state, SAVED, STEPS)))
    print(json.dumps(reports), flush=True)


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    if sys.argv[1] == "begin":
        begin(pathlib.Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
    else:
        go_on(pathlib.Path(sys.argv[2]))

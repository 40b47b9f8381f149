"""A training run that saves after every step, until the test kills the process.

python -m tests.distributed.killed_run DIRECTORY
"""

from __future__ import annotations

import pathlib
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

import fnopt

# The state contains a schedule's step count, noise, accumulation, an average of the params,
# stochastically rounded slots, and a count of skipped steps.
TX = fnopt.apply_if_finite(
    fnopt.chain(
        fnopt.add_gradient_noise(0.1, 0.5, key=3),
        fnopt.accumulate(
            fnopt.quantized_state(
                fnopt.adamw(fnopt.cosine_decay_schedule(0.1, 20)), block_size=4, min_size=1
            ),
            3,
        ),
        fnopt.params_ema(0.9),
    )
)


def start() -> Any:
    params = {"w": jnp.linspace(-1, 1, 12).reshape(3, 4), "b": jnp.ones(4)}
    return {"params": params, "state": TX.init(params)}


@jax.jit
def step(now: Any, i: Any) -> Any:
    grads = jax.tree.map(lambda p: jnp.cos(p + i), now["params"])
    grads["b"] = jnp.where(i == 4, jnp.nan, grads["b"])  # a NaN gradient
    updates, state = TX.update(grads, now["state"], now["params"])
    return {"params": fnopt.apply_updates(now["params"], updates), "state": state}


def manager_of(directory: pathlib.Path) -> ocp.CheckpointManager:
    return ocp.CheckpointManager(directory)  # keeps all steps


def main(directory: pathlib.Path) -> None:
    manager, now = manager_of(directory), start()
    for i in range(1, 10_000):
        now = step(now, np.float32(i))
        manager.save(i, args=ocp.args.StandardSave(now))  # writes while training continues
        print(i, flush=True)


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    main(pathlib.Path(sys.argv[1]))

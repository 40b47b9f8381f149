"""Saved on some devices, gone on with on others: the same numbers, and nothing is refused."""

from __future__ import annotations

import importlib
import json
import re
import socket
import subprocess
import sys
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import fnopt
from fnopt import distributed

COMMAND = [sys.executable, "-m", "tests.distributed.train_run"]
SECONDS = 240


def run_all(*commands):
    """Processes side by side: the last line of each is JSON; none is left running."""
    pipe = subprocess.PIPE
    running = [
        subprocess.Popen([*COMMAND, *args], stdout=pipe, stderr=pipe, text=True)
        for args in commands
    ]
    until = time.monotonic() + SECONDS
    try:
        written = [p.communicate(timeout=max(1, until - time.monotonic())) for p in running]
    finally:
        for process in running:
            process.kill()
            process.wait()
    # What connects the processes writes there, too.
    found = [
        [line for line in out.splitlines() if line.startswith(("{", "[{"))] for out, _ in written
    ]
    for lines, (_, err) in zip(found, written, strict=True):
        assert lines, err[-2000:]
    return [json.loads(lines[-1]) for lines in found]


def test_two_processes_begin_and_any_number_of_devices_goes_on(tmp_path):
    """ZeRO-1, accumulation, averages, a NaN on one device: saved in the middle, and a death."""
    pytest.importorskip("orbax.checkpoint")
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    path = str(tmp_path / "checkpoint")
    first, second = run_all(*(["begin", path, address, str(i)] for i in range(2)))
    # The survivor hears of it in its next step, as an error and not as a wait.
    assert re.search("Gloo|[Cc]onnection|peer", first.pop("lost"))
    assert first == second
    assert (first["devices"], first["processes"], first["bad steps"]) == (4, 2, 2)
    (resumed,) = run_all(["go_on", path])
    assert [run.pop("devices") for run in resumed] == [1, 2, 8]
    expected = {**first, "processes": 1}
    del expected["devices"]
    assert resumed == [expected] * 3  # checksums of params and state, and of noise that is one


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_orbax_restores_to_where_the_params_are(tmp_path):
    ocp = pytest.importorskip("orbax.checkpoint")
    tx = fnopt.adam(0.1)
    step = jax.jit(lambda state, params: tx.update(params, state, params))

    def on(devices):
        mesh = jax.make_mesh(
            (devices,), ("data",), devices=jax.devices()[:devices], axis_types=(AxisType.Auto,)
        )
        return jax.device_put({"w": jnp.arange(4.0)}, NamedSharding(mesh, P("data")))

    expected = step(step(tx.init(on(2)), on(2))[1], on(2))
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", step(tx.init(on(2)), on(2))[1])
        checkpointer.wait_until_finished()
        for devices in (2, 1):
            params = on(devices)
            target = jax.tree.map(
                lambda x, where: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where),
                jax.eval_shape(tx.init, params),
                distributed.state_sharding(tx, params),
            )
            restored = checkpointer.restore(tmp_path / "state", target)
            found = step(restored, params)
            for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
                np.testing.assert_array_equal(x, y)
            # a fresh state says as well where everything belongs
            again = checkpointer.restore(tmp_path / "state", tx.init(params))
            for x, y in zip(jax.tree.leaves(again), jax.tree.leaves(restored), strict=True):
                assert x.sharding.is_equivalent_to(y.sharding, x.ndim)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_killed_at_any_step_at_most_that_step_is_lost(tmp_path):
    """Killed while it trains and saves; gone on with from every step, it is the run without end."""
    ocp = pytest.importorskip("orbax.checkpoint")
    killed_run = importlib.import_module("tests.distributed.killed_run")
    command = [sys.executable, "-m", killed_run.__name__, str(tmp_path / "run")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    guard = threading.Timer(SECONDS, process.kill)
    guard.start()
    try:
        reported = next((int(line) for line in process.stdout if int(line) == 8), None)
    finally:
        guard.cancel()
        process.kill()
    assert reported == 8, process.communicate()[1][-2000:]
    # more steps may have come to an end until the signal arrived
    reported = max([reported, *map(int, process.communicate()[0].split())])

    with killed_run.manager_of(tmp_path / "run") as manager:
        assert manager.latest_step() >= reported - 1
        path = [killed_run.start()]
        for i in range(1, manager.latest_step() + 4):
            path.append(killed_run.step(path[-1], np.float32(i)))
        for saved in manager.all_steps():  # all phases of an accumulation of three
            now = manager.restore(saved, args=ocp.args.StandardRestore(path[0]))
            for i in range(saved, len(path)):
                for x, y in zip(*map(jax.tree.leaves, (now, path[i])), strict=True):
                    np.testing.assert_array_equal(x, y)
                now = killed_run.step(now, np.float32(i + 1))

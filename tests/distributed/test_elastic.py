"""Saved on some devices, gone on with on others: the same numbers, and nothing is refused."""

from __future__ import annotations

import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import fnopt
from fnopt import distributed
from tests.distributed import elastic_run


def test_divided_state_goes_on_with_any_number_of_devices():
    done = subprocess.run(
        [sys.executable, "-m", elastic_run.__name__],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert sorted(found) == ["1", "4", "8", "uninterrupted"]
    assert len({*found.values()}) == 1, found


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

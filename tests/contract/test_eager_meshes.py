"""What works under `jax.jit` on meshes works without it, and with no mesh set."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from tests.contract.mesh_cases import CASES, loss, on_batch
from tests.contract.test_meshes import DATA, distance, placed

pytestmark = pytest.mark.skipif(
    not hasattr(jax, "set_mesh"), reason="the caller has to set the mesh then"
)
SOME = np.arange(8) % 3 > 0


def steep(p, example):
    """Squares of its gradients overflow, which takes the branch of careful norms."""
    x, y = example
    return jnp.sum((x @ p["w"] + p["b"] - y) ** 2) * np.float32(1e25)


EAGER = {
    **{
        name: case
        for name, case in CASES.items()
        if name.partition("-")[0] in {*fnopt.gradients.__all__} - {"sparse_value_and_grad"}
    },
    **{name: CASES[name] for name in ("health", "global_norm", "adamw")},
    **{name: CASES[name] for name in ("natural_gradient", "stochastic_reconfiguration")},
    **{name: CASES[name] for name in ("gauss_newton_descent", "batch_jacobian")},
    "norms by leaf": on_batch(fnopt.per_example_norms, groups="leaf"),
    "by loss": on_batch(fnopt.hardest_examples, k=2, by="loss"),
    "by disagreement": on_batch(fnopt.hardest_examples, k=2, by="disagreement"),
    "limits": on_batch(fnopt.clipped_grad, clip_norm={"w": 0.1, "b": 0.2}, reduction="mean"),
    "some examples": lambda d: [
        fn(d["params"], d["batch"], where=SOME)
        for fn in (fnopt.clipped_grad(loss, 0.1), fnopt.gradient_statistics(loss))
    ],
    "two batches": lambda d: fnopt.gradient_similarity(loss)(
        d["params"], d["batch"], other=jax.tree.map(lambda x: x[:4], DATA["batch"])
    ),
    **{
        f"steep-{method}": functools.partial(
            lambda d, method: fnopt.clipped_grad(steep, 0.1, method=method)(
                d["params"], d["batch"]
            ),
            method=method,
        )
        for method in ("ghost", "vmap")
    },
}


@functools.cache
def undivided(name):
    return jax.tree.map(np.asarray, EAGER[name](jax.tree.map(jnp.asarray, DATA)))


@pytest.mark.parametrize(
    ("kind", "place"), [("Explicit", "batch"), ("Explicit", "params"), ("Auto", "batch")]
)
@pytest.mark.parametrize("name", EAGER)
def test_an_eager_call_equals_that_of_one_device(name, kind, place):
    # One example's gradient is a thousandth of the others': of its direction rounding leaves less.
    atol = 2e-4 if name.startswith("gradient_similarity") else 2e-5
    assert distance(EAGER[name](placed(kind, place)), undivided(name), atol=atol) <= 1


@pytest.mark.parametrize("name", ["clipped_grad-ghost", "gradient_statistics", "weighted_grad"])
def test_params_over_the_axis_of_the_batch(name):
    data = placed("Explicit", "batch")
    over = jax.sharding.NamedSharding(data["t"].sharding.mesh, jax.sharding.PartitionSpec("d"))
    data = {**data, "params": jax.device_put(data["params"], over)}
    assert distance(EAGER[name](data), undivided(name)) <= 1

"""What works under `jax.jit` on meshes works without it, and with no mesh set."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from tests.contract.mesh_cases import CASES, decay, loss, on_batch
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


@pytest.mark.parametrize("make", [fnopt.apply_if_finite, fnopt.dynamic_loss_scale])
def test_a_step_that_may_be_skipped_where_a_mesh_is_set(make):
    tx = make(fnopt.adam(1e-2))

    def step(p):
        return tx.update(p, tx.init(p), p)[0]

    params = placed("Explicit", "params")["params"]
    expected = step(jax.tree.map(jnp.asarray, DATA["params"]))
    with jax.set_mesh(params["w"].sharding.mesh):
        for run in (step, jax.jit(step)):
            found = run(params)
            assert distance(found, expected) <= 1
            assert found["w"].sharding.spec == params["w"].sharding.spec


@pytest.mark.parametrize("spec", [("d",), ()])
def test_examples_that_count_lie_as_the_batch_or_whole(spec):
    data, clipped = placed("Explicit", "batch"), fnopt.clipped_grad(loss, 0.1)
    lie = jax.sharding.NamedSharding(data["t"].sharding.mesh, jax.sharding.PartitionSpec(*spec))
    wanted = jax.device_put(SOME, lie)

    def sums(params, batch, wanted):
        return clipped(params, batch, where=wanted)[0]

    expected = sums(DATA["params"], DATA["batch"], SOME)
    for run in (sums, jax.jit(sums)):
        assert distance(run(data["params"], data["batch"], wanted), expected) <= 1


@pytest.mark.parametrize("own", [False, True])
def test_curves_whose_points_are_divided(own):
    t, y = DATA["t"], DATA["fits"]
    mesh = placed("Explicit", "batch")["t"].sharding.mesh
    t = np.broadcast_to(t, y.shape) if own else t
    by_point = lambda x: jax.sharding.PartitionSpec(*[None] * (x.ndim - 1), "d")  # noqa: E731
    there = [jax.device_put(x, jax.sharding.NamedSharding(mesh, by_point(x))) for x in (t, y)]

    def fit(t, y):
        return fnopt.curve_fit_batch(decay, t, y, jnp.ones(2), x_per_fit=own).params

    assert distance(fit(*there), fit(t, y)) <= 1

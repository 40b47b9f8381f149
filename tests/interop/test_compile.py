"""What JAX itself offers around a step: abstract shapes, ahead of time, several devices."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import fnopt
from tests.contract.trees import assert_close, make_tree, signature
from tests.interop.test_checkpoint import OPTIMIZERS

every = pytest.mark.parametrize("name", OPTIMIZERS)


def step(tx, params, state, grads):
    updates, state = tx.update(grads, state, params)
    return fnopt.apply_updates(params, updates), state


@every
def test_eval_shape_knows_the_state_and_the_step(name):
    tx, params = OPTIMIZERS[name], make_tree(0)
    abstract = jax.eval_shape(tx.init, jax.eval_shape(lambda: params))
    assert signature(abstract) == signature(tx.init(params))
    new_params, new_state = jax.eval_shape(step, tx, params, abstract, params)
    assert signature(new_params) == signature(params)
    assert signature(new_state) == signature(abstract)


@every
def test_ahead_of_time(name):
    tx, params = OPTIMIZERS[name], make_tree(0)
    abstract = jax.eval_shape(tx.init, params)
    # compiled before there is any state; then fed with its own results
    compiled = jax.jit(step).lower(tx, params, abstract, params).compile()
    state, expected = tx.init(params), (params, tx.init(params))
    ours = (params, state)
    for i in range(1, 4):
        ours = compiled(tx, *ours, make_tree(i))
        expected = jax.jit(step)(tx, *expected, make_tree(i))
    assert_close(ours, expected, rtol=1e-6, atol=1e-7)


def test_a_compiled_step_takes_other_learning_rates():
    params = make_tree(0)
    tx = fnopt.adam(jnp.asarray(0.1))
    state = tx.init(params)
    compiled = jax.jit(step).lower(tx, params, state, params).compile()
    slow = fnopt.adam(jnp.asarray(0.0))
    assert_close(compiled(slow, params, state, params)[0], params, rtol=0)


@every
def test_scan(name):
    tx, params = OPTIMIZERS[name], make_tree(0)

    def body(carry, _):
        return step(tx, *carry, make_tree(1)), None

    _, state = jax.jit(lambda c: jax.lax.scan(body, c, length=3)[0])((params, tx.init(params)))
    assert signature(state) == signature(tx.init(params))


SHARDED = """
import jax, jax.numpy as jnp, fnopt
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from tests.interop.test_checkpoint import OPTIMIZERS

assert len(jax.devices()) == 4
specs = {"dense": {"kernel": P("data", "model"), "bias": P("model")}, "blocks": [P("data")]}
shapes = {"dense": {"kernel": (4, 8), "bias": (8,)}, "blocks": [(4,)]}
is_leaf = lambda x: isinstance(x, (P, tuple))

def place(mesh):
    shardings = jax.tree.map(lambda s: NamedSharding(mesh, s), specs, is_leaf=is_leaf)
    ones = jax.tree.map(jnp.ones, shapes, is_leaf=is_leaf)
    return jax.tree.map(jax.device_put, ones, shardings), dict(
        fnopt.errors.leaves_with_names(shardings)[0]
    )

def check(what, tree):
    for path, leaf in fnopt.errors.leaves_with_names(tree)[0]:
        assert leaf.sharding.is_equivalent_to(wanted[path], leaf.ndim), (what, path, leaf.sharding)

def step(tx, params, state, grads):
    updates, state = tx.update(grads, state, params)
    return fnopt.apply_updates(params, updates), state

for kind in (AxisType.Auto, AxisType.Explicit):
    mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(kind, kind))
    with jax.sharding.set_mesh(mesh):
        params, wanted = place(mesh)
        for name, tx in OPTIMIZERS.items():
            state, new = tx.init(params), params
            for slot, tree in fnopt.slots(state).items():
                check((kind, name, slot, "init"), tree)
            for _ in range(3):
                new, state = jax.jit(step)(tx, new, state, params)
            check((kind, name, "params"), new)
            for slot, tree in fnopt.slots(state).items():
                check((kind, name, slot, "update"), tree)
print("sharded")
"""


def test_state_is_sharded_like_the_params():
    # in a process of its own: the number of devices is fixed when JAX starts
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", SHARDED],
        env={**os.environ, **flags, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout.strip() == "sharded", done.stderr[-2000:]

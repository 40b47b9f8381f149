"""State in the host's memory is that of the inner optimizer, in its shardings."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import fnopt

pytestmark = pytest.mark.skipif(
    not hasattr(getattr(jax, "memory", None), "Space"), reason="this JAX has no memory spaces"
)
PARAMS = {"w": jnp.linspace(0.0, 1.0, 8).reshape(4, 2), "b": jnp.ones(3)}


def steps(tx: Any, params: Any, wrap: Any) -> Any:
    def one(_: Any, carry: Any) -> Any:
        params, state = carry
        updates, state = tx.update(params, state, params)
        return fnopt.apply_updates(params, updates), state

    carry = params, wrap(tx.init)(params)
    if wrap is jax.jit:  # the state keeps its memory in a loop
        return jax.jit(lambda carry: jax.lax.fori_loop(0, 3, one, carry))(carry)
    return one(2, one(1, one(0, carry)))


def kinds(tree: Any) -> set[str]:
    return {x.sharding.memory_kind for x in jax.tree.leaves(tree)}


@pytest.mark.parametrize("wrap", [jax.jit, lambda fn: fn], ids=["jit", "eager"])
def test_steps_equal_those_of_the_inner_optimizer(wrap: Any):
    inner = fnopt.adamw(1e-2)
    plain, ours = (steps(tx, PARAMS, wrap) for tx in (inner, fnopt.offloaded(inner)))
    assert jax.tree.structure(plain) == jax.tree.structure(ours)
    for x, y in zip(jax.tree.leaves(plain), jax.tree.leaves(ours), strict=True):
        # on a GPU multiply-adds may be fused differently
        rtol = 0 if jax.default_backend() == "cpu" else 1e-6
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=rtol)
    assert kinds(ours[0]) == kinds(plain[0])
    assert kinds([fnopt.slots(ours[1])["mu"], fnopt.slots(ours[1])["nu"]]) == {"pinned_host"}


@pytest.mark.skipif(len(jax.devices()) < 2, reason="needs two devices")
@pytest.mark.parametrize("wrap", [jax.jit, lambda fn: fn], ids=["jit", "eager"])
def test_shardings_are_kept(wrap: Any):
    mesh = jax.make_mesh((2,), ("x",), devices=jax.devices()[:2])
    params = {"w": jax.device_put(PARAMS["w"], NamedSharding(mesh, PartitionSpec("x")))}
    state = steps(fnopt.offloaded(fnopt.adamw(1e-2)), params, wrap)[1]
    mu = fnopt.slots(state)["mu"]["w"]
    assert mu.sharding.memory_kind == "pinned_host"
    assert mu.addressable_shards[0].data.shape == (2, 2)


@pytest.mark.parametrize("name", ["quantized_state", "precision_policy"])
def test_wrappers_that_compute_with_slots_are_named(name: str):
    wrapper, inner = getattr(fnopt, name), fnopt.offloaded(fnopt.adam(1e-2))
    for tx in (inner, fnopt.chain(fnopt.clip_by_global_norm(1.0), fnopt.masked(inner, "w"))):
        with pytest.raises(ValueError, match=rf"^{name}: .* host memory, .*offloaded\({name}\("):
            wrapper(tx)


def test_unknown_memory_is_named():
    tx = fnopt.offloaded(fnopt.adam(1e-2), "disk")
    with pytest.raises(ValueError, match=r"memory_kind = 'disk', but .* has the kinds \["):
        tx.init(PARAMS)


def test_other_memory_under_jit_is_named():
    device = jax.devices()[0]
    kinds = {m.kind for m in device.addressable_memories()}
    others = kinds - {"pinned_host", device.default_memory().kind}
    for kind in others:
        with pytest.raises(ValueError, match=r"expected 'pinned_host', because inside jax\.jit"):
            jax.jit(fnopt.offloaded(fnopt.adam(1e-2), kind).init)(PARAMS)


def test_a_restored_state_may_be_of_numpy_arrays():
    tx = fnopt.offloaded(fnopt.adamw(1e-2))
    state = tx.init(PARAMS)
    expected = tx.update(PARAMS, state, PARAMS)
    found = tx.update(PARAMS, jax.tree.map(np.asarray, state), PARAMS)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))
    assert kinds(fnopt.slots(found[1])["mu"]) == {"pinned_host"}

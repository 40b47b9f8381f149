"""ZeRO-1 over a named axis: the same steps, half of the state, one collective of each kind."""

from __future__ import annotations

import functools
import os
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import fnopt
from fnopt import distributed
from fnopt.distributed._elementwise import check_elementwise
from fnopt.distributed._relayout import decode_slots
from tests.contract.registry import CASES

RNG = np.random.RandomState(0)
# Sizes that two devices divide and don't, a scalar, an empty leaf.
PARAMS = {
    "bias": RNG.randn(3).astype("f"),
    "kernel": RNG.randn(4, 3).astype("f"),
    "scale": np.float32(0.5),
    "nothing": np.zeros((0, 2), "f"),
}
BATCH = RNG.randn(8, 4).astype("f")
STEPS = 4

# Other emitters contract products and sums, and in the bulk of an array otherwise than at its end.
UNCONTRACTED = "xla_cpu_use_fusion_emitters=false" in os.environ.get("XLA_FLAGS", "")

EXACT = {
    "adamw": lambda: fnopt.adamw(1e-2, weight_decay=0.1, mask="kernel", mu_dtype="bfloat16"),
    "partition": lambda: fnopt.partition(
        {"a": fnopt.adam(1e-2), "b": fnopt.sgd(0.1, momentum=0.9)},
        fnopt.by_pattern({"kernel": "a"}, default="b"),
    ),
    "accumulate": lambda: fnopt.accumulate(fnopt.lion(1e-2), 2),
    "averages": lambda: fnopt.chain(fnopt.rmsprop(1e-2), fnopt.params_ema(0.9)),
    "packed": lambda: fnopt.flatten(fnopt.adam(1e-2)),
    "quantized": lambda: fnopt.accumulate(_quantized(block_size=4), 2),
}


def _quantized(block_size: int):
    return fnopt.quantized_state(fnopt.adamw(1e-2), block_size=block_size, min_size=8)


# With norms or inner products over all elements, whose sums are rounded otherwise.
CLOSE = {
    "clipped": lambda: fnopt.chain(fnopt.clip_by_global_norm(0.1), fnopt.adam(1e-2)),
    "by_leaf": lambda: fnopt.chain(fnopt.scale_by_trust_ratio(), fnopt.novograd(1e-2)),
    "prodigy": fnopt.prodigy,
    "finite": lambda: fnopt.apply_if_finite(fnopt.sgd(0.1)),
}


@functools.cache
def mesh_of(kind="Auto"):
    return jax.make_mesh((2,), ("data",), axis_types=(getattr(AxisType, kind),))


def on_mesh(tree, kind="Auto", *spec):
    return jax.device_put(tree, NamedSharding(mesh_of(kind), P(*spec)))


def loss(p, batch):
    out = jnp.tanh(batch @ p["kernel"] + p["bias"]) * p["scale"]
    return jnp.mean(out**2) + 0.01 * jnp.sum(p["nothing"])


def steps(tx, params, state, batch, reduced):
    """Some steps inside shard_map; with `reduced`, gradients are averaged before the update."""

    def body(carry, _):
        params, state = carry
        grads = jax.grad(loss)(params, batch)
        if reduced:
            grads = jax.tree.map(lambda g: jax.lax.psum(g, "data") / jnp.asarray(2, g.dtype), grads)
        updates, state = tx.update(grads, state, params)
        return (fnopt.apply_updates(params, updates), state), None

    return jax.lax.scan(body, (params, state), length=STEPS)[0]


def specs_of(tx, params):
    return jax.tree.map(lambda s: s.spec, distributed.state_sharding(tx, params))


def both(tx, parts, kind="Auto"):
    """Params and state after some steps, of the optimizer and of its divided version."""
    params, batch = on_mesh(PARAMS, kind), BATCH
    batch = on_mesh(batch, kind, "data")
    specs = specs_of(parts, params)

    def run(tx, parts, params, state, divided, batch):
        plain = steps(tx, params, state, batch, True)
        return *plain, *steps(parts, params, divided, batch, False)

    mapped = jax.shard_map(
        functools.partial(run, tx, parts),
        mesh=mesh_of(kind),
        in_specs=(P(), P(), specs, P("data")),
        out_specs=(P(), P(), P(), specs),
        check_vma=False,
    )
    out = jax.jit(mapped)(params, tx.init(params), parts.init(params), batch)
    return parts, params, out


@pytest.mark.parametrize("make", [fnopt.apply_if_finite, fnopt.dynamic_loss_scale])
def test_a_step_that_may_be_skipped_where_types_say_what_varies(make):
    tx = distributed.sharded(make(fnopt.adam(1e-2)), "data")
    params = on_mesh({"w": np.ones(4, "f")})
    state, specs = tx.init(params), specs_of(tx, params)
    step = jax.shard_map(
        lambda p, s: tx.update(p, s, p),
        mesh=mesh_of(),
        in_specs=(P(), specs),
        out_specs=(P(), specs),
    )
    np.testing.assert_allclose(jax.jit(step)(params, state)[0]["w"], -1e-2, rtol=1e-3)


@pytest.mark.parametrize("name", [*EXACT, *CLOSE])
def test_equals_the_undivided_run(name):
    tx = (EXACT | CLOSE)[name]()
    # A vector of all leaves is divided as any leaf is.
    around = fnopt.flatten(distributed.sharded(tx.inner, "data")) if name == "packed" else None
    parts, params, (theirs, state, mine, divided) = both(
        tx, around or distributed.sharded(tx, "data")
    )
    together = distributed.gather_state(parts, divided, params)
    assert jax.tree.structure(together) == jax.tree.structure(state)
    for x, y in zip(
        jax.tree.leaves((mine, together)), jax.tree.leaves((theirs, state)), strict=True
    ):
        x, y = np.asarray(x).astype("f"), np.asarray(y).astype("f")
        if name not in EXACT:
            np.testing.assert_allclose(x, y, rtol=2e-5, atol=1e-6)
        elif UNCONTRACTED:
            np.testing.assert_array_equal(x, y)
        else:
            np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-7)


def test_state_is_divided_and_comes_back():
    tx = fnopt.adam(1e-2)
    parts = distributed.sharded(tx, "data")
    params = on_mesh(PARAMS)
    state = parts.init(params)
    lengths = {k: x.addressable_shards[0].data.shape for k, x in state[0].mu.items()}
    assert lengths == {"bias": (2,), "kernel": (1, 6), "scale": (1,), "nothing": (1, 0)}
    assert state[0].count.sharding.device_set == set(jax.devices()[:2])
    whole = tx.init(params)
    whole = jax.tree.map(lambda x: jnp.arange(x.size).reshape(x.shape).astype(x.dtype), whole)
    there = distributed.scatter_state(parts, whole, params)
    back = distributed.gather_state(parts, there, params)
    for x, y in zip(jax.tree.leaves(back), jax.tree.leaves(whole), strict=True):
        np.testing.assert_array_equal(x, y)
    jitted = jax.jit(parts.init)(params)
    made = distributed.init_sharded(parts, params)
    for x, y, z in zip(*map(jax.tree.leaves, (state, jitted, made)), strict=True):
        assert x.sharding.is_equivalent_to(y.sharding, x.ndim) or not x.size
        assert x.sharding.is_equivalent_to(z.sharding, x.ndim)


def one_step(tx, kind="Auto", **options):
    params = on_mesh(PARAMS, kind)
    specs = specs_of(tx, params)

    def step(params, state, batch):
        updates, state = tx.update(jax.grad(loss)(params, batch), state, params)
        return fnopt.apply_updates(params, updates), state

    mapped = jax.shard_map(
        step,
        mesh=mesh_of(kind),
        in_specs=(P(), specs, P("data")),
        out_specs=(P(), specs),
        **options,
    )
    return jax.jit(mapped), (params, tx.init(params), on_mesh(BATCH, kind, "data"))


def collectives(text):
    kinds = ("all-reduce", "reduce-scatter", "all-gather", "all-to-all", "collective-permute")
    return {k: n for k in kinds if (n := len(re.findall(rf" {k}(?:-start)?\(", text)))}


def test_one_collective_of_each_kind():
    tx = fnopt.chain(fnopt.clip_by_global_norm(1.0), fnopt.adamw(1e-2))
    step, args = one_step(distributed.sharded(tx, "data"), check_vma=False)
    text = step.lower(*args).compile().as_text() or ""
    assert collectives(text) == {"reduce-scatter": 1, "all-gather": 1, "all-reduce": 1}
    assert re.search(r"f32\[2\]\S* all-reduce\(", text)  # of one number a device


def test_where_types_are_tracked_gradients_are_summed_already():
    # jax.grad of params that are the same everywhere sums over devices: nothing is left to scatter.
    tx = fnopt.chain(fnopt.clip_by_global_norm(1.0), fnopt.adamw(1e-2))
    found = []
    for kind in ("Auto", "Explicit"):
        step, args = one_step(distributed.sharded(tx, "data"), kind)
        found.append(jax.eval_shape(step, *args))
    assert jax.tree.structure(found[0]) == jax.tree.structure(args[:2])


def abstract_step(tx):
    step, args = one_step(distributed.sharded(tx, "data"), check_vma=False)
    return jax.eval_shape(step, *args)


def refused(tx, match):
    step, args = one_step(distributed.sharded(tx, "data"), check_vma=False)
    with pytest.raises(ValueError, match=match):
        jax.eval_shape(step, *args)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: fnopt.centralize(), r"centralize needs whole leaves \(reduce_sum\)"),
        (lambda: fnopt.add_gradient_noise(0.1, 0.5, 1), r"add_gradient_noise needs .*random_bits"),
        (lambda: fnopt.flatten(fnopt.adam(1e-2)), r"flatten needs .*concatenate"),
        (fnopt.zero_nans, r"zero_nans needs .*reduce_or"),
    ],
)
def test_what_needs_whole_leaves_is_refused(make, match):
    refused(make(), match)


def test_adafactor_is_refused():
    # Of small matrices it keeps no factors; but it divides by the number of a leaf's elements.
    refused(
        fnopt.adafactor(1e-2),
        r"depends on the shapes of leaves, .*state_sharding\(tx, params, axis",
    )


def test_outside_of_shard_map():
    tx = distributed.sharded(fnopt.adam(1e-2), "data")
    with pytest.raises(
        ValueError, match=r"'data'.*neither bound here nor an axis of the params' mesh"
    ):
        tx.init(PARAMS)
    params = on_mesh(PARAMS)
    with pytest.raises(ValueError, match=r"isn't bound here, .* Call update inside jax\.shard_map"):
        tx.update(params, tx.init(params), params)
    with pytest.raises(ValueError, match=r"\('model',\).*neither bound"):
        distributed.sharded(fnopt.adam(1e-2), "model").init(params)
    elsewhere = {**params, "scale": jax.device_put(jnp.ones(()), jax.devices()[1])}
    with pytest.raises(ValueError, match=r"leaf 'scale' has the sharding SingleDeviceSharding"):
        tx.init(elsewhere)


def test_a_state_of_another_number_of_devices_is_refused():
    tx = distributed.sharded(fnopt.adam(1e-2), "data")
    step, (params, state, batch) = one_step(tx, check_vma=False)
    bigger = jax.tree.map(lambda x: jnp.concatenate([x, x]) if x.ndim else x, state)
    with pytest.raises(
        ValueError, match=r"leaf '0/mu/bias' of the state has shape \(4,\) on a dev"
    ):
        jax.eval_shape(step, params, bigger, batch)


def test_is_a_value_of_the_contract():
    tx = distributed.sharded(fnopt.adam(1e-2), axis="data")
    assert fnopt.from_config(fnopt.to_config(tx)) == tx
    assert fnopt.slot_names(tx, on_mesh(PARAMS)) == ("mu", "nu")
    assert list(fnopt.named(tx, tx.init(on_mesh(PARAMS)))) == [
        "chain",
        "scale_by_adam",
        "scale_by_learning_rate",
    ]


def test_under_vmap_with_a_named_axis():
    tx = distributed.sharded(fnopt.adam(1e-2), "data")
    params = jax.tree.map(jnp.asarray, PARAMS)

    def worker(batch):
        grads = jax.grad(loss)(params, batch)
        return tx.update(grads, tx.init(params), params)[0]

    out = jax.eval_shape(jax.vmap(worker, axis_name="data"), BATCH.reshape(2, 4, 4))
    assert out["kernel"].shape == (2, 4, 3)


def test_a_decision_by_each_device_for_itself_is_refused():
    tx = fnopt.apply_if_finite(distributed.sharded(fnopt.adam(1e-2), "data"))
    step, args = one_step(tx, check_vma=False)
    with pytest.raises(
        ValueError, match=r"apply_if_finite\(sharded\(\.\.\.\)\).*Put apply_if_finite inside"
    ):
        jax.eval_shape(step, *args)


def test_a_state_that_is_rounded_at_random_is_refused():
    (blocks,) = (case.make() for case in CASES if case.name == "stored_in_less")
    # where depends on what JAX can slice: when the state is made, or when it is used
    with pytest.raises(ValueError, match=r"blocks or factors|needs whole leaves|of the state"):
        abstract_step(blocks)


@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
def test_codes_and_scales_are_divided(kind):
    params = on_mesh(PARAMS, kind)
    parts = distributed.sharded(_quantized(block_size=4), "data")
    state = distributed.init_sharded(parts, params)
    lengths = [x.addressable_shards[0].data.shape for x in fnopt.slots(state)["mu"]["kernel"]]
    assert lengths == [(1, 6), (1, 2)]  # of 12 codes and 4 scales
    whole = jax.tree.map(
        lambda x: np.arange(1, 1 + x.size).reshape(x.shape).astype(x.dtype),
        jax.eval_shape(_quantized(block_size=4).init, PARAMS),
    )
    there = distributed.scatter_state(parts, whole, params)
    back = distributed.gather_state(parts, there, params)
    for x, y in zip(jax.tree.leaves(back), jax.tree.leaves(whole), strict=True):
        np.testing.assert_array_equal(x, y)


def test_blocks_that_devices_would_share_are_their_own():
    params = on_mesh(PARAMS)
    parts = distributed.sharded(_quantized(block_size=12), "data")
    state = parts.init(params)
    assert [x.shape for x in fnopt.slots(state)["mu"]["kernel"]] == [(1, 12), (1, 2)]
    abstract_step(_quantized(block_size=12))
    with pytest.raises(
        ValueError, match=r"leaf '.*mu/kernel' .*2 scales for 12 codes .* 1 scale for 12"
    ):
        distributed.gather_state(parts, state, params)
    with pytest.raises(
        ValueError, match=r"Pass requantize=True .* or pass quantized_state a block"
    ):
        distributed.scatter_state(parts, _quantized(block_size=12).init(params), params)


@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
def test_codes_in_other_blocks_are_rounded_anew(kind):
    """From two devices to one and back: kernels change by a step of the code, others not at all."""
    params = on_mesh({**PARAMS, "even": RNG.randn(24).astype("f")}, kind)
    tx = _quantized(block_size=12)
    parts, grads = distributed.sharded(tx, "data"), jax.tree.map(jnp.cos, params)
    known = tx.update(grads, tx.init(params), params)[1]
    there = distributed.scatter_state(parts, known, params, requantize=True)
    back = distributed.gather_state(parts, there, params, requantize=True)
    assert jax.tree.structure(back) == jax.tree.structure(known)
    numbers = [decode_slots(tx, s, params) for s in (known, back)]
    in_parts = fnopt.slots(decode_slots(parts, there, params))
    for name in ("mu", "nu"):
        before, after = (fnopt.slots(s)[name] for s in numbers)
        for leaf, x in before.items():
            steps = 0.9 / 64 if leaf == "kernel" else 0
            row = np.ravel(in_parts[name][leaf])[: x.size].reshape(x.shape)
            for y in (row, after[leaf]):
                np.testing.assert_allclose(y, x, rtol=0, atol=2 * steps * np.abs(x).max(initial=0))
    assert (fnopt.slots(back)["mu"]["even"][0] == fnopt.slots(known)["mu"]["even"][0]).all()
    with pytest.raises(ValueError, match=r"whose size is the number of shards"):
        distributed.gather_state(parts, jax.device_get(there), params, requantize=True)


@pytest.mark.parametrize("make", [fnopt.adamw, fnopt.lion, fnopt.sgd])
def test_leaves_that_are_alike_are_divided(make):
    # alike as wholes, they share a program; their parts are read as if they did
    shapes = {"a": (4, 3), "b": (4, 3), "c": (5,), "d": (), "e": (4, 3)}
    params = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}

    def check(_):
        check_elementwise(make(1e-2), params, params, {}, ("data",))

    jax.vmap(check, axis_name="data")(jnp.zeros(2))

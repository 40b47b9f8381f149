"""Methods of matrices with ZeRO-1: every device works on the matrices that it owns."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import fnopt
from fnopt import distributed
from fnopt.programs import jaxprs
from tests.distributed import messages

RNG = np.random.RandomState(0)
STEPS = 3
NUMBERS = fnopt.MatrixDimensionNumbers
# A wide matrix and a tall one, layers in a stack, what is no matrix.
FEW = {"wide": (3, 4), "tall": (4, 3), "layers": (2, 3, 4), "bias": (3,)}
# And a number of layers that two devices don't divide, axes in another order, and nothing.
ALL = {**FEW, "more": (3, 3, 4), "kernel": (2, 3, 2), "none": (0, 2)}
RULE = {
    **dict.fromkeys(("wide", "tall", "none"), True),
    **dict.fromkeys(("layers", "more"), NUMBERS(1, 2)),
    "kernel": NUMBERS((0, 2), 1),
    "bias": None,
}
AXES = {name: RULE[name] for name in FEW}


def of_parts(*parts):
    return fnopt.partition_matrices(fnopt.chain(*parts), fnopt.adam(0.1), AXES)


cap = fnopt.cap_spectral_norm(1.0)
descend = fnopt.scale_by_learning_rate(0.1)
contra = fnopt.subtract_direction(fnopt.scale(1.0))
METHODS = {
    "normuon": (ALL, lambda: fnopt.normuon(0.1, weight_dimension_numbers=RULE)),
    "soap": (FEW, lambda: fnopt.soap(0.1, weight_dimension_numbers=AXES)),
    "shampoo": (FEW, lambda: of_parts(fnopt.scale_by_shampoo(block_size=3), descend)),
    "dion": (FEW, lambda: of_parts(fnopt.scale_by_dion(0.5), descend)),
    "hyperball": (FEW, lambda: of_parts(contra, fnopt.hyperball(0.1, "output"), cap)),
    "psgd_kron": (FEW, lambda: fnopt.psgd_kron(0.1, weight_dimension_numbers=AXES)),
    "galore": (FEW, lambda: fnopt.galore(0.1, 2, weight_dimension_numbers=AXES)),
}


@functools.cache
def mesh_of(kind="Auto"):
    return jax.make_mesh((2,), ("data",), axis_types=(getattr(AxisType, kind),))


def on_mesh(shapes, kind="Auto"):
    params = {name: RNG.randn(*shape).astype("f") for name, shape in shapes.items()}
    return jax.device_put(params, NamedSharding(mesh_of(kind), P()))


def specs_of(tx, params):
    return jax.tree.map(lambda s: s.spec, distributed.state_sharding(tx, params))


def one_step(tx, params, state, summed=False):
    """A step in `shard_map` with gradients that differ between the devices."""
    here = jax.lax.axis_index("data").astype(jnp.float32)
    grads = jax.tree.map(lambda p: jnp.sin(3 * p + here) + 0.3 * p, params)
    grads = jax.lax.pmean(grads, "data") if summed else grads
    updates, state = tx.update(grads, state, params)
    return fnopt.apply_updates(params, updates), state


def mapped(fn, in_specs, out_specs):
    return jax.shard_map(
        fn, mesh=mesh_of(), in_specs=in_specs, out_specs=out_specs, check_vma=False
    )


@pytest.mark.parametrize("name", METHODS)
def test_equals_the_undivided_run(name):
    shapes, make = METHODS[name]
    tx, params = make(), on_mesh(shapes)
    parts = distributed.sharded(tx, "data")
    specs = specs_of(parts, params)

    def both(params, state, divided):
        def body(carry, _):
            (p, s), (q, d) = carry
            return (one_step(tx, p, s, True), one_step(parts, q, d)), None

        return jax.lax.scan(body, ((params, state), (params, divided)), length=STEPS)[0]

    def run(params):
        fn = mapped(both, (P(), P(), specs), ((P(), P()), (P(), specs)))
        theirs, (mine, divided) = fn(params, tx.init(params), parts.init(params))
        return theirs, (mine, distributed.gather_state(parts, divided, params))

    theirs, mine = jax.jit(run)(params)
    assert jax.tree.structure(theirs) == jax.tree.structure(mine)
    named = fnopt.errors.leaves_with_names(mine)[0]
    for (leaf, x), y in zip(named, jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5, err_msg=leaf)


def divided_step(tx, params):
    parts = distributed.sharded(tx, "data")
    specs = specs_of(parts, params)
    fn = mapped(functools.partial(one_step, parts), (P(), specs), (P(), specs))
    return fn, jax.eval_shape(parts.init, params), distributed.state_sharding(parts, params)


def stacks(fn, primitive, *args):
    """How many matrices each call of a primitive works on, on a device."""
    found = []

    def look(jaxpr):
        for eqn in jaxpr.eqns:
            if eqn.primitive.name == primitive:
                found.append(eqn.invars[0].aval.shape[0])
            for sub in jaxprs.sub_jaxprs(eqn):
                look(sub.jaxpr)

    look(jax.make_jaxpr(fn)(*args).jaxpr)
    return found


def test_a_device_has_half_of_the_state_and_of_the_work():
    params = on_mesh({"a": (8, 8), "b": (8, 8), "layers": (4, 8, 8)})
    rule = {"a": True, "b": True, "layers": NUMBERS(1, 2)}
    tx = fnopt.shampoo(0.1, weight_dimension_numbers=rule)
    plain = mapped(functools.partial(one_step, tx, summed=True), (P(), P()), (P(), P()))
    fn, state, places = divided_step(tx, params)
    whole = jax.eval_shape(tx.init, params)
    assert stacks(plain, "eigh", params, whole) == [6, 6]
    assert stacks(fn, "eigh", params, state) == [3, 3]

    def numbers(state, places):
        pairs = zip(jax.tree.leaves(state), jax.tree.leaves(places), strict=True)
        return sum(np.prod(place.shard_shape(x.shape), dtype=int) for x, place in pairs if x.ndim)

    everywhere = distributed.state_sharding(tx, params)
    assert numbers(state, places) == numbers(whole, everywhere) // 2


def test_what_muon_sends():
    params = on_mesh({"a": (16, 32), "b": (32, 16), "c": (16, 32), "d": (32, 16), "bias": (6,)})
    tx = fnopt.muon(0.1)
    fn, state, _ = divided_step(tx, params)
    plain = mapped(functools.partial(one_step, tx, summed=True), (P(), P()), (P(), P()))
    programs = [
        jax.jit(f).lower(params, s).compile()
        for f, s in ((fn, state), (plain, jax.eval_shape(tx.init, params)))
    ]
    kinds = sorted(kind for kind, _, _ in messages.results(programs[0].as_text()))
    assert kinds == ["all-gather", "all-to-all", "all-to-all", "reduce-scatter"]
    flops = [program.cost_analysis()["flops"] for program in programs]
    assert 0.45 < flops[0] / flops[1] < 0.6
    report = fnopt.matrix_report(tx, params, devices=2)
    found = messages.results(programs[0].as_text())
    assert report.sent_bytes == sum(size for kind, _, size in found if kind == "all-to-all") / 2
    assert report.flops == pytest.approx(flops[0], rel=0.1)  # without the elementwise parts
    assert report.flops == fnopt.matrix_report(tx, params).flops / 2
    assert "each of 2 devices: 3.81e+05 FLOPs and 4.1e+03 bytes" in str(report)


@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
def test_where_types_are_tracked_and_inside_of_other_transforms(kind):
    shapes, make = METHODS["soap"]
    params = on_mesh(shapes, kind)
    tx = fnopt.accumulate(fnopt.chain(fnopt.clip_by_global_norm(1.0), make()), 2)
    parts = distributed.sharded(tx, "data")
    specs = specs_of(parts, params)
    step = jax.shard_map(
        functools.partial(one_step, parts),
        mesh=mesh_of(kind),
        in_specs=(P(), specs),
        out_specs=(P(), specs),
    )
    state = jax.eval_shape(parts.init, params)
    out = jax.eval_shape(jax.jit(step), params, state)[1]
    for x, y in zip(jax.tree.leaves(out), jax.tree.leaves(state), strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype)


def test_state_lies_in_pieces_and_comes_back():
    tx = fnopt.scale_by_soap(weight_dimension_numbers=NUMBERS(1, 2))
    params = on_mesh({"layers": FEW["layers"]})
    parts = distributed.sharded(tx, "data")
    state = parts.init(params)
    left, right = fnopt.slots(state)["factors"]["layers"][0]
    assert (left.shape, right.shape) == ((2, 10), (2, 16))  # 9 numbers, and one to fill up
    assert left.addressable_shards[0].data.shape == (2, 5)
    whole = jax.eval_shape(tx.init, params)
    whole = jax.tree.map(lambda x: np.arange(x.size).reshape(x.shape).astype(x.dtype), whole)
    there = distributed.scatter_state(parts, whole, params)
    for x, y in zip(*map(jax.tree.leaves, (there, state)), strict=True):
        assert x.sharding.is_equivalent_to(y.sharding, x.ndim)
    back = distributed.gather_state(parts, there, params)
    for x, y in zip(*map(jax.tree.leaves, (back, whole)), strict=True):
        np.testing.assert_array_equal(x, y)


def test_norms_of_sharded_matrices_gather_none_of_them():
    parts = fnopt.normalize_neurons(), fnopt.floor_update_ratio(0.1), fnopt.hyperball(0.1)
    rule = {"tall": NUMBERS(), "layers": NUMBERS(1, 2)}
    tx = fnopt.partition_matrices(fnopt.chain(*parts), fnopt.sgd(0.1), rule)
    params = {"tall": RNG.randn(4, 6), "layers": RNG.randn(3, 6, 4)}
    params = jax.tree.map(lambda x: x.astype(np.float32), params)
    grads = jax.tree.map(lambda p: np.cos(9 * p), params)

    def step(params, grads):
        updates, state = tx.update(grads, tx.init(params), params)
        return fnopt.apply_updates(params, updates), state

    mesh = mesh_of("Explicit")
    spec = {"tall": P("data"), "layers": P(None, None, "data")}
    places = {name: NamedSharding(mesh, s) for name, s in spec.items()}
    sharded = jax.device_put((params, grads), (places, places))
    with jax.set_mesh(mesh):
        program = jax.jit(step).lower(*sharded).compile()
    there, state = program(*sharded)
    gathered = [s for kind, _, s in messages.results(program.as_text()) if kind == "all-gather"]
    assert not gathered or max(gathered) <= 3 * 4 * 4  # bytes: only the means of the outputs
    pair = (there, state), jax.jit(step)(params, grads)
    for x, y in zip(*map(jax.tree.leaves, pair), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5)
    assert there["layers"].sharding.spec == spec["layers"]


def test_leaves_that_are_none_of_the_params_are_refused():
    muon = fnopt.chain(fnopt.ema(0.95), fnopt.orthogonalize())
    inner = fnopt.scale_by_galore(2, base_optimizer=muon, weight_dimension_numbers=AXES)
    params = on_mesh(FEW)
    with pytest.raises(ValueError, match=r"'bias/0' is not a leaf of the params.*state_sharding"):
        distributed.sharded(inner, "data").init(params)

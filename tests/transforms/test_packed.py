"""Buffers hold the leaves of a tree exactly, and are stepped as the tree is."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt

DECAYED = fnopt.by_pattern({"*kernel": "decay"}, default="plain")


def tree() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    layer = {"kernel": rng.normal(size=(3, 2)), "bias": rng.normal(size=2)}
    params = {"layer": layer, "scale": rng.normal(size=()), "none": np.zeros((0, 4))}
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), params) | {
        "narrow": jnp.asarray(rng.normal(size=5), jnp.bfloat16)
    }


def assert_equal(tree: Any, other: Any) -> None:
    assert jax.tree.structure(tree) == jax.tree.structure(other)
    for x, y in zip(jax.tree.leaves(tree), jax.tree.leaves(other), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


def assert_close(tree: Any, other: Any) -> None:
    for x, y in zip(jax.tree.leaves(tree), jax.tree.leaves(other), strict=True):
        rtol = 1e-2 if x.dtype == jnp.bfloat16 else 1e-6
        np.testing.assert_allclose(x.astype(np.float32), y.astype(np.float32), rtol, atol=1e-6)


def loss(params: Any, x: Any) -> Any:
    h = jnp.tanh(
        jnp.matmul(x, params["layer"]["kernel"], precision="highest") + params["layer"]["bias"]
    )
    return jnp.sum(h) * params["scale"] + jnp.sum(params["narrow"].astype(jnp.float32) ** 2)


def trained(tx: Any, params: Any, loss: Any) -> Any:
    @jax.jit
    def steps(params: Any, x: Any) -> Any:
        def step(_: Any, carry: Any) -> Any:
            params, state = carry
            updates, state = tx.update(jax.grad(loss)(params, x), state, params)
            return fnopt.apply_updates(params, updates), state

        return jax.lax.fori_loop(0, 3, step, (params, tx.init(params)))[0]

    return steps(params, jnp.ones((4, 3)))


def test_unpack_inverts_pack_and_names_the_buffers():
    tx = fnopt.packed(fnopt.sgd(0.1), tree(), DECAYED)
    buffers = tx.pack(tree())
    assert {name: x.shape for name, x in buffers.items()} == {
        "decay.float32": (6,),
        "plain.bfloat16": (5,),
        "plain.float32": (3,),
    }
    assert_equal(tx.unpack(buffers), tree())
    assert_equal(jax.jit(lambda p: tx.unpack(tx.pack(p)))(tree()), tree())


@pytest.mark.parametrize(
    "make",
    [
        lambda mask: fnopt.adamw(0.1, weight_decay=0.1, mask=mask),
        lambda mask: fnopt.freeze(fnopt.lion(0.1), mask),
    ],
    ids=["mask", "freeze"],
)
def test_elementwise_steps_equal_those_of_the_tree(make: Any):
    tx = fnopt.packed(make("decay.*"), tree(), DECAYED)
    plain = trained(make("*kernel"), tree(), loss)
    ours = trained(tx, tx.pack(tree()), lambda p, x: loss(tx.unpack(p), x))
    if jax.default_backend() == "cpu":
        assert_equal(tx.unpack(ours), plain)
    else:
        assert_close(tx.unpack(ours), plain)  # other fused multiply-adds


def test_a_global_norm_is_that_of_the_tree():
    inner = fnopt.chain(fnopt.clip_by_global_norm(0.1), fnopt.sgd(0.1))
    tx = fnopt.packed(inner, tree())
    plain = trained(inner, tree(), loss)
    ours = tx.unpack(trained(tx, tx.pack(tree()), lambda p, x: loss(tx.unpack(p), x)))
    assert_close(ours, plain)


def test_gradients_of_many_leaves_are_one_concatenation():
    params = [jnp.ones(2)] * 100
    tx = fnopt.packed(fnopt.sgd(0.1), params)
    gradient = jax.grad(lambda p: sum(jnp.sum(x**2) for x in tx.unpack(p)))
    names = [e.primitive.name for e in jax.make_jaxpr(gradient)(tx.pack(params)).eqns]
    assert names.count("concatenate") == 1
    assert "pad" not in names


@pytest.mark.parametrize("name", ["lamb", "muon", "sm3"])
def test_optimizers_that_look_at_leaves_are_refused(name: str):
    with pytest.raises(ValueError, match="and for its leaves"):
        fnopt.packed(getattr(fnopt, name)(0.1), {"w": jnp.ones((2, 2)), "v": jnp.ones(2)})


@pytest.mark.parametrize(
    "inner",
    [
        fnopt.adamp(0.1),
        fnopt.cautious(fnopt.adam(0.1)),
        fnopt.stable_adamw(1e-2),  # acts when the gradients of a leaf grow
        fnopt.chain(fnopt.adaptive_grad_clip(100.0), fnopt.sgd(1e-2)),
        fnopt.chain(fnopt.adaptive_grad_clip(1e-5), fnopt.sgd(1e-2)),
        fnopt.chain(fnopt.clip_by_block_rms(1e5), fnopt.sgd(1e-2)),
    ],
)
def test_rules_for_some_gradients_of_a_leaf_are_refused(inner: Any):
    with pytest.raises(ValueError, match="and for its leaves"):
        fnopt.packed(inner, {"w": jnp.ones((2, 2)), "v": jnp.ones(2)})


def test_buffers_of_numbers_are_strongly_typed():
    buffers = fnopt.packed(fnopt.sgd(0.1), 1.0).pack(1.0)
    assert not buffers["float32"].weak_type


SGDS = {"a": fnopt.sgd(0.1), "b": fnopt.sgd(0.2)}
W = fnopt.by_pattern({"w*": "a"}, default="b")
PAIR = {"w": jnp.ones(4), "v": jnp.ones(4)}


@pytest.mark.parametrize(
    ("inner", "labels"),
    [
        (fnopt.chain(fnopt.clip_by_block_rms(1e-2), fnopt.sgd(1.0)), None),
        (fnopt.chain(fnopt.clip_by_block_rms(1.0), fnopt.sgd(1.0)), None),
        (fnopt.chain(fnopt.clip_by_block_rms(300.0), fnopt.sgd(1.0)), None),
        (fnopt.partition(SGDS, W), None),
        (fnopt.partition(SGDS, W), W),
        (fnopt.adamw(0.1, mask=fnopt.by_pattern("w", default=False)), None),
        (fnopt.adamw(0.1, mask="w"), None),
    ],
    ids=["clip 0.01", "clip 1", "clip 300", "labels", "labels twice", "mask", "name"],
)
def test_clipped_leaves_and_rules_by_path_are_refused(inner: Any, labels: Any):
    with pytest.raises(ValueError, match=r"and for its leaves.*labels="):
        fnopt.packed(inner, PAIR, labels)


def test_rules_for_the_names_of_buffers_are_kept():
    rule = fnopt.by_pattern({"a.*": "a"}, default="b")
    tx = fnopt.packed(fnopt.partition(SGDS, rule), PAIR, W)
    buffers = tx.pack(PAIR)
    updates = tx.unpack(tx.update(buffers, tx.init(buffers), buffers)[0])
    np.testing.assert_allclose(updates["w"], -0.1, rtol=1e-6)
    np.testing.assert_allclose(updates["v"], -0.2, rtol=1e-6)


def test_what_refuses_the_tree_too_raises_its_own_error():
    with pytest.raises(ValueError, match=r"patterns .*'x'.* match no leaf"):
        fnopt.packed(fnopt.adamw(0.1, mask="x"), PAIR)


def test_a_rule_for_one_leaf_of_many_is_found():
    params = [jnp.ones(2)] * 100
    frozen = fnopt.by_pattern("97", default=False)
    with pytest.raises(ValueError, match="and for its leaves"):
        fnopt.packed(fnopt.freeze(fnopt.sgd(0.1), frozen), params)


def test_a_mask_of_matrices_is_refused():
    mask = fnopt.by_path(lambda path, leaf: leaf.ndim > 1)
    with pytest.raises(ValueError, match="must match the names of buffers"):
        fnopt.packed(fnopt.adamw(0.1, weight_decay=0.1, mask=mask), {"w": jnp.ones((2, 2))})
    no_labels = fnopt.packed(fnopt.adamw(0.1, weight_decay=0.1, mask=mask), {"v": jnp.ones(2)})
    assert no_labels.layout.names == ["float32"]


def test_trees_that_do_not_fit_are_named():
    tx = fnopt.packed(fnopt.sgd(0.1), tree())
    with pytest.raises(ValueError, match="Call pack"):
        tx.init(tree())
    buffers = tx.pack(tree())
    with pytest.raises(ValueError, match=r"'float32' is .*expected shape \(9,\)"):
        tx.unpack(buffers | {"float32": jnp.ones(3)})
    with pytest.raises(ValueError, match=r"pack: the tree lacks the leaves \['layer/.*\['other'\]"):
        tx.pack({"other": jnp.ones(2)})
    with pytest.raises(ValueError, match=r"narrow.*expected bfloat16\[5\]"):
        tx.pack(tree() | {"narrow": jnp.ones(5)})
    with pytest.raises(ValueError, match="scale"):
        tx.pack(tree() | {"scale": jnp.ones(2)})
    with pytest.raises(TypeError, match="count"):
        fnopt.packed(fnopt.sgd(0.1), tree() | {"count": jnp.ones(2, int)})


def test_one_trace_and_slots_by_name():
    tx = fnopt.packed(fnopt.adam(0.1), tree())
    buffers = tx.pack(tree())
    assert tx == fnopt.packed(fnopt.adam(0.1), tree())
    assert hash(tx) == hash(fnopt.packed(fnopt.adam(0.1), tree()))
    assert fnopt.slots(tx.init(buffers))["mu"]["float32"].shape == (9,)
    states = jax.vmap(tx.init)(jax.tree.map(lambda x: jnp.stack([x, x]), buffers))
    assert fnopt.slots(states)["mu"]["float32"].shape == (2, 9)

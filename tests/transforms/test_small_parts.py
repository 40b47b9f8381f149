from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt

G = {"w": jnp.asarray([3.0, 4.0])}


def updated(tx, g, params=None):
    return tx.update(g, tx.init(g), params)[0]


@pytest.mark.parametrize("size", [1e-24, 1.0, 1e20, 4e37])
def test_lengths_of_any_magnitude(size):
    g = {"w": size * G["w"]}
    out = updated(fnopt.normalize_by_update_norm(eps=0.0), g)["w"]
    np.testing.assert_allclose(out, [0.6, 0.8], rtol=1e-5)
    out = updated(fnopt.clip_by_block_rms(size), g)["w"]
    np.testing.assert_allclose(out / size, G["w"] / np.sqrt(12.5), rtol=1e-5)
    out = updated(fnopt.adaptive_grad_clip(0.5, eps=0.0), g, {"w": jnp.float32(size) * jnp.ones(2)})
    np.testing.assert_allclose(out["w"] / size, G["w"] / 5 * np.sqrt(0.5), rtol=1e-5)


def test_zero_stays_zero():
    zero = {"w": jnp.zeros(2)}
    assert not updated(fnopt.normalize_by_update_norm(eps=0.0), zero)["w"].any()
    assert not updated(fnopt.adaptive_grad_clip(0.5), zero, zero)["w"].any()


def test_units_of_arrays_with_many_axes_are_to_be_named():
    g = jnp.ones((2,) * 6)
    with pytest.raises(ValueError, match="axis="):
        updated(fnopt.adaptive_grad_clip(0.5), g, g)
    assert updated(fnopt.adaptive_grad_clip(0.5, axis=(0, 1)), g, g).shape == g.shape


def test_noise_has_the_stated_variance_and_depends_on_step_key_and_leaf():
    tx = fnopt.add_gradient_noise(0.04, 0.5, key=jax.random.key(3))
    g = {"a": jnp.zeros(4000), "b": jnp.zeros(4000)}
    first, state = tx.update(g, tx.init(g))
    second, _ = tx.update(g, state)
    sizes = [float(x.std()) for x in (first["a"], first["b"], second["a"])]
    np.testing.assert_allclose(sizes, [0.2, 0.2, 0.2 * 2**-0.25], rtol=0.05)
    assert abs(np.corrcoef(first["a"], first["b"])[0, 1]) < 0.1
    assert abs(np.corrcoef(first["a"], second["a"])[0, 1]) < 0.1
    assert tx == fnopt.add_gradient_noise(0.04, 0.5, key=jax.random.key(3))
    with pytest.raises(TypeError, match="expected an integer or a key"):
        fnopt.add_gradient_noise(0.1, 0.5, key="seed")


def test_a_skipped_step_changes_nothing():
    tx = fnopt.skip_large_updates(fnopt.adam(0.1), 30.0)
    state = tx.init(G)
    step = jax.jit(tx.update)
    _, good = step(G, state)
    for bad in (2 * G["w"], G["w"] * jnp.nan, G["w"] * 1e30):
        updates, after = step({"w": bad}, good)
        assert not updates["w"].any()
        jax.tree.map(np.testing.assert_array_equal, after.inner_state, good.inner_state)
        assert int(after.skipped) == 1


def test_split_parts_are_leaves_of_their_own():
    tx = fnopt.split_real_and_imaginary(fnopt.adam(0.1))
    g = {"c": jnp.asarray([3.0 - 4.0j]), "r": jnp.asarray([2.0])}
    updates, state = tx.update(g, tx.init(g), g)
    np.testing.assert_allclose(updates["c"], [-0.1 + 0.1j], rtol=1e-5)
    np.testing.assert_allclose(updates["r"], [-0.1], rtol=1e-5)
    assert {x.dtype for x in jax.tree.leaves(fnopt.slots(state))} == {jnp.dtype("float32")}


def test_a_vector_keeps_real_leaves_real():
    tx = fnopt.flatten(fnopt.sgd(1.0))
    g = {"c": jnp.asarray([1j]), "r": jnp.ones(2, jnp.bfloat16), "none": None}
    updates, _ = tx.update(g, tx.init(g), g)
    assert updates["r"].dtype == jnp.bfloat16
    assert updates["c"].tolist() == [-1j]


def test_bounds_of_plateau():
    with pytest.raises(ValueError, match="both 0"):
        fnopt.reduce_on_plateau(rtol=0.0)
    with pytest.raises(ValueError, match="factor"):
        fnopt.reduce_on_plateau(factor=1.0)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_plateau_of_a_loss_of_either_sign(sign):
    tx, scales = fnopt.reduce_on_plateau(0.5, patience=2), []
    state = tx.init(G)
    for _ in range(8):
        _, state = tx.update(G, state, value=sign)
        scales.append(float(state.scale))
    assert scales == [1, 1, 0.5, 0.5, 0.25, 0.25, 0.125, 0.125]


def test_the_margin_of_plateau_is_relative_to_the_modulus():
    tx = fnopt.reduce_on_plateau(0.5, patience=1, rtol=0.1)
    for value, better in ((-1.05, False), (-1.15, True), (-0.95, False)):
        _, state = tx.update(G, tx.init(G), value=-1.0)
        _, state = tx.update(G, state, value=value)
        assert (float(state.scale) == 1.0) == better


def test_patience_of_plateau_is_one_more_than_that_of_pytorch():
    torch = pytest.importorskip("torch")
    theirs = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=1.0)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(theirs, factor=0.5, patience=2)
    tx = fnopt.reduce_on_plateau(0.5, patience=3)
    state = tx.init(G)
    for _ in range(9):
        plateau.step(1.0)
        _, state = tx.update(G, state, value=1.0)
        assert float(state.scale) == theirs.param_groups[0]["lr"]

"""Chains of parts against the update rules of a public benchmark's results, over 50 steps.

The benchmark is the optimization track of github.com/KellerJordan/modded-nanogpt, whose README
numbers its results. `torch_rules.py` runs their rules in PyTorch and float64. Results 1, 3, 6 and
12 are one rule with other rates.
"""

from __future__ import annotations

import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt

RULES = np.load(pathlib.Path(__file__).with_name("torch_rules.npz"))
LEAVES = ("square", "tall", "wide", "bias")
PARAMS, GRADS = ({leaf: RULES[f"{x}/{leaf}"] for leaf in LEAVES} for x in ("params", "grads"))
STEPS = len(GRADS["bias"])

momentum = fnopt.ema(0.95, debias=False, nesterov=True)
newton_schulz = fnopt.orthogonalize((2, -1.5, 0.5), 12, eps=1e-7)
contra = fnopt.subtract_direction(newton_schulz, 0.2)
aurora = fnopt.subtract_direction(
    fnopt.orthogonalize((2, -1.5, 0.5), 12, eps=1e-7, balance_steps=2), 0.2
)
by_shape, by_neuron = fnopt.scale_by_matrix_shape(), fnopt.normalize_neurons(side="longer")
floor = fnopt.floor_update_ratio(0.35)


def cooldown(rate, share):
    """A constant rate, and a linear decay to zero over the last share of the steps."""
    last = round(share * STEPS)
    return fnopt.linear_schedule(rate, 0.0, last, STEPS - last)


def descend(rate, decay=0.0):
    return fnopt.chain(
        fnopt.add_decayed_weights(decay), fnopt.scale_by_learning_rate(cooldown(rate, 0.7))
    )


def whole(*parts, share=0.7):
    """Matrices by these parts, biases by the scripts' AdamW."""
    aux = fnopt.adamw(cooldown(0.01, share), 0.8, 0.95, 1e-10, weight_decay=0.0)
    return fnopt.partition_matrices(fnopt.chain(*parts), aux)


def on_ball(*parts):
    return whole(*parts, fnopt.hyperball(cooldown(0.018, 1.0)), share=0.4)


normuon_h = on_ball(momentum, newton_schulz, by_shape, by_neuron)
CHAINS = {
    "torch.optim.Muon": whole(
        momentum,
        fnopt.orthogonalize(eps=0.0),  # there a lower bound of the norm, which isn't reached
        by_shape,
        fnopt.add_decayed_weights(0.1),
        fnopt.scale_by_learning_rate(0.02),
    ),
    "1, 3, 6, 12: Muon": whole(momentum, newton_schulz, by_shape, descend(0.02, 0.01)),
    "2: AdamW": whole(fnopt.scale_by_adam(0.9, 0.95), descend(0.0015, 0.1)),
    "4: AdamH": on_ball(fnopt.scale_by_adam(0.9, 0.95)),
    "5: MuonH": on_ball(momentum, newton_schulz),
    "8: NorMuonH": normuon_h,
    "9: NorMuon, floor": whole(
        momentum, newton_schulz, by_shape, by_neuron, floor, descend(0.0375)
    ),
    "10: NorMuon": whole(momentum, newton_schulz, by_shape, by_neuron, descend(0.035, 0.025)),
    "11: Contra-Muon": whole(momentum, contra, by_shape, by_neuron, floor, descend(0.0375)),
    "13: MuLoCo": fnopt.distributed.diloco(
        normuon_h, fnopt.sgd(0.7, momentum=0.5, nesterov=True), every=30, axis="workers"
    ),
    "17: Aurora": whole(momentum, aurora, by_shape, by_neuron, floor, descend(0.0375)),
}


@functools.lru_cache
def found():
    """The params after every step of every chain, from one program."""

    def run(tx, params, grads):
        def step(carry, g):
            updates, state = tx.update(g, carry[1], carry[0])
            params = fnopt.apply_updates(carry[0], updates)
            return (params, state), params

        return jax.lax.scan(step, (params, tx.init(params)), grads)[1]

    def all_chains(params, grads):
        return {name: run(tx, params, grads) for name, tx in CHAINS.items()}

    with jax.enable_x64(True):
        one = jax.tree.map(lambda x: jnp.asarray(x)[None], (PARAMS, GRADS))
        out = jax.jit(jax.vmap(all_chains, axis_name="workers"))(*one)
        return jax.tree.map(lambda x: np.asarray(x[0]), out)


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_is_its_rule_in_torch(name):
    for leaf in LEAVES:
        ours = found()[name][leaf][RULES["saved"]]
        np.testing.assert_allclose(ours, RULES[f"{name}/{leaf}"], rtol=1e-7, atol=1e-9)


def test_balancing_makes_the_norms_of_neurons_equal():
    G = GRADS["tall"][0] * np.asarray([1, 1e-3, 1, 1, 1e-2, 1])[:, None]  # [6, 3]: weak inputs
    D = 1 / np.linalg.norm(G, axis=1, keepdims=True)
    polar = G
    for _ in range(8):
        U, _, V = np.linalg.svd(D * G, full_matrices=False)
        polar = U @ V
        D = D * (0.5 / np.sum(polar**2, axis=1, keepdims=True)) ** 0.8
    with jax.enable_x64(True):
        tx = fnopt.orthogonalize("polar_express", 14, balance_steps=8, balance_power=0.8)
        u = np.asarray(jax.jit(tx.update)({"w": G}, tx.init({"w": G}))[0]["w"])
    np.testing.assert_allclose(u, polar, rtol=1e-7)
    np.testing.assert_allclose(np.sum(u**2, axis=1), 0.5, rtol=0.01)  # converges linearly


def test_complex_matrices():
    g = (GRADS["wide"][0] + 1j * GRADS["wide"][1]).astype(np.complex64)
    balanced = fnopt.orthogonalize("polar_express", 12, balance_steps=9, balance_power=0.8)
    u = np.asarray(balanced.update({"w": g}, balanced.init({"w": g}))[0]["w"])
    np.testing.assert_allclose(u @ u.conj().T, np.eye(3), atol=1e-5)
    np.testing.assert_allclose(np.sum(abs(u) ** 2, axis=0), 3 / 5, rtol=1e-2)
    with pytest.raises(TypeError, match="complex64, expected a real matrix"):
        contra.update({"w": g}, contra.init({"w": g}))


def test_a_zero_row_and_a_zero_matrix_stay_zero():
    g = {"w": jnp.asarray(GRADS["tall"][0], jnp.float32).at[2].set(0), "z": jnp.zeros((4, 2))}
    g["w"] = g["w"].at[1].multiply(1e-38)  # a row whose reciprocal norm overflows
    tx = fnopt.subtract_direction(fnopt.orthogonalize(balance_steps=3))
    updates, _ = jax.jit(tx.update)(g, tx.init(g))
    assert jnp.isfinite(updates["w"]).all()
    assert not updates["w"][2].any()
    assert not updates["z"].any()

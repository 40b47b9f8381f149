"""Chains of parts against the update rules of a public benchmark's results, over 50 steps.

The benchmark is the optimization track of github.com/KellerJordan/modded-nanogpt, whose README
numbers its results. `SCRIPTS` writes their rules out in NumPy and float64, with matrices
`[outputs, inputs]`. Results 1, 3, 6 and 12 are one rule with other rates.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt

STEPS = 50
SHAPES = {"square": (4, 4), "tall": (6, 3), "wide": (3, 5)}  # [inputs, outputs]
RNG = np.random.default_rng(0)
PARAMS = {name: RNG.standard_normal(shape) for name, shape in SHAPES.items()}
GRADS = {name: RNG.standard_normal((STEPS, *shape)) for name, shape in SHAPES.items()}
PARAMS["bias"], GRADS["bias"] = RNG.standard_normal(3), RNG.standard_normal((STEPS, 3))

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


def ns(G):
    X = G.T if len(G) > len(G.T) else G
    X = X / (np.linalg.norm(X) + 1e-7)
    for _ in range(12):
        A = X @ X.T
        X = 2 * X + (-1.5 * A + 0.5 * A @ A) @ X
    return X.T if len(G) > len(G.T) else X


def balanced(G):
    """Aurora's polar factor, two iterations."""
    if len(G) == len(G.T):
        return ns(G)
    X = G.T if len(G) < len(G.T) else G
    D = 1 / np.linalg.norm(X, axis=1, keepdims=True)
    U = ns(D * X)
    D = D * np.sqrt(len(X.T) / len(X) / np.sum(U**2, axis=1, keepdims=True))
    U = ns(D * X)
    return U.T if len(G) < len(G.T) else U


def unit_operator_norm(G):
    v = np.ones(len(G.T)) / len(G.T) ** 0.5
    for _ in range(5):
        u = G @ v
        v = G.T @ (u / np.linalg.norm(u))
        v = v / np.linalg.norm(v)
    return G / np.linalg.norm(G @ v)


def minus_direction(polar, G):
    U = polar(G)
    V = U - 0.2 * unit_operator_norm(G)
    return V * np.linalg.norm(U) / np.linalg.norm(V)


def lookaheads(grads):
    m = 0
    for g in grads:
        m = 0.95 * m + 0.05 * g
        yield 0.05 * g + 0.95 * m


def muon(grads, polar=ns):
    for g in lookaheads(grads):
        yield polar(g) * max(1, len(g) / len(g.T)) ** 0.5


def normuon(grads, polar=ns):
    v = 0
    for u in muon(grads, polar):
        axis = 1 if len(u) >= len(u.T) else 0
        v = 0.95 * v + 0.05 * np.mean(u**2, axis=axis, keepdims=True)
        w = u / np.sqrt(v)
        yield w * np.linalg.norm(u) / np.linalg.norm(w)


def adam(grads, b1=0.9, b2=0.95, eps=1e-8):
    m = v = 0
    for t, g in enumerate(grads, 1):
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
        yield m / (1 - b1**t) / (np.sqrt(v / (1 - b2**t)) + eps)


def rates(rate, share):
    return [rate * min(1, (1 - t / STEPS) / share) for t in range(STEPS)]


def decoupled(W, us, rate, decay=0.0, share=0.7):
    for u, r in zip(us, rates(rate, share), strict=True):
        W = W * (1 - r * decay) - r * u
        yield W


def floored(W, us, rate):
    for u, r in zip(us, rates(rate, 0.7), strict=True):
        W = W - r * u * max(1, 0.35 * np.linalg.norm(W) / np.linalg.norm(u))
        yield W


def ball(W, us):
    for u, r in zip(us, rates(0.018, 1.0), strict=True):
        yield (W := ball_step(W, u, r))


def ball_step(W, u, r):
    V = W - r * u * np.linalg.norm(W) / np.linalg.norm(u)
    return V / np.linalg.norm(V) * np.linalg.norm(W)


def outer(W, step):
    """The outer Nesterov steps around inner ones: `step(W, t)` gives the next weights."""
    start, buffer = W, 0
    for t in range(STEPS):
        W = step(W, t)
        if t % 30 == 29:
            delta = start - W
            buffer = 0.5 * buffer + 0.7 * delta
            start = W = start - 0.5 * buffer - 0.7 * delta
        yield W


def muloco(W, grads):
    us, r = [*normuon(grads)], rates(0.018, 1.0)
    return outer(W, lambda W, t: ball_step(W, us[t], r[t]))


SCRIPTS = {
    "1, 3, 6, 12: Muon": lambda W, g: decoupled(W, muon(g), 0.02, 0.01),
    "2: AdamW": lambda W, g: decoupled(W, adam(g), 0.0015, 0.1),
    "4: AdamH": lambda W, g: ball(W, adam(g)),
    "5: MuonH": lambda W, g: ball(W, muon(g)),
    "8: NorMuonH": lambda W, g: ball(W, normuon(g)),
    "9: NorMuon, floor": lambda W, g: floored(W, normuon(g), 0.0375),
    "10: NorMuon": lambda W, g: decoupled(W, normuon(g), 0.035, 0.025),
    "11: Contra-Muon": lambda W, g: floored(
        W, normuon(g, functools.partial(minus_direction, ns)), 0.0375
    ),
    "13: MuLoCo": muloco,
    "17: Aurora": lambda W, g: floored(
        W, normuon(g, functools.partial(minus_direction, balanced)), 0.0375
    ),
}
SHARES = {"4: AdamH": 0.4, "5: MuonH": 0.4, "8: NorMuonH": 0.4}  # of the biases' cooldown


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_is_its_script(name):
    for leaf in SHAPES:
        expected = np.stack([*SCRIPTS[name](PARAMS[leaf].T, np.swapaxes(GRADS[leaf], 1, 2))])
        ours = np.swapaxes(found()[name][leaf], 1, 2)
        np.testing.assert_allclose(ours, expected, rtol=1e-7, atol=1e-9, err_msg=leaf)
    us, share = [*adam(GRADS["bias"], 0.8, 0.95, 1e-10)], SHARES.get(name, 0.7)
    if name == "13: MuLoCo":
        biases = outer(PARAMS["bias"], lambda b, t: b - rates(0.01, 0.4)[t] * us[t])
    else:
        biases = decoupled(PARAMS["bias"], us, 0.01, share=share)
    np.testing.assert_allclose(found()[name]["bias"], np.stack([*biases]), rtol=1e-9)


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

"""Chains of matrix parts against their papers' formulas, written here in NumPy and float64."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt import MatrixDimensionNumbers as Numbers

STEPS, RATE = 5, 0.1
SHAPES = {"stack": (2, 4, 3), "tall": (5, 3), "wide": (3, 4)}
AXES = {"stack": Numbers(1, 2), "tall": Numbers(), "wide": Numbers()}
RNG = np.random.default_rng(0)
PARAMS = {name: RNG.standard_normal(shape) for name, shape in SHAPES.items()}
GRADS = {name: RNG.standard_normal((STEPS, *shape)) for name, shape in SHAPES.items()}
INPUTS = {name: RNG.standard_normal((*s[:-2], 9, s[-2])) for name, s in SHAPES.items()}
MOMENTS = {name: np.swapaxes(x, -1, -2) @ x / 9 for name, x in INPUTS.items()}

polar = fnopt.orthogonalize("polar_express", 14)  # to the rounding error of float64
descend = fnopt.scale_by_learning_rate(RATE)
CHAINS = {
    "EMA-Nesterov": [fnopt.ema(0.9, debias=False, nesterov=True), polar, descend],
    "MuonH": [fnopt.ema(0.9), polar, fnopt.hyperball(RATE)],
    "AdamH": [fnopt.scale_by_adam(), fnopt.hyperball(RATE)],
    "outputs, tangent": [fnopt.hyperball(RATE, "output", tangent=True)],
    "cautious decay": [fnopt.ema(0.9), polar, fnopt.cautious_weight_decay(0.5), descend],
    "cap": [descend, fnopt.cap_spectral_norm(1.2)],
    "floor": [fnopt.scale_by_learning_rate(1e-3), fnopt.floor_update_ratio(0.02)],
    "Dion": [fnopt.scale_by_dion(0.6), fnopt.scale_by_matrix_shape(), descend],
    "MARS-Muon": [fnopt.reduce_variance(0.9, 0.5, np.inf), fnopt.ema(0.9), polar, descend],
    "Newton-Muon": [fnopt.precondition_by_inputs(0.9, 0.1), fnopt.ema(0.9), polar, descend],
}


@functools.lru_cache
def found():
    """The params after every step of every chain, from one program."""

    def run(tx, params, grads):
        def step(carry, g):
            updates, state = tx.update(g, carry[1], carry[0], input_moments=MOMENTS)
            params = fnopt.apply_updates(carry[0], updates)
            return (params, state), params

        return jax.lax.scan(step, (params, tx.init(params)), grads)[1]

    txs = {
        name: fnopt.partition_matrices(fnopt.chain(*parts), fnopt.sgd(0.1), AXES)
        for name, parts in CHAINS.items()
    }
    with jax.enable_x64(True):
        params, grads = jax.tree.map(jnp.asarray, (PARAMS, GRADS))
        out = jax.jit(lambda p, g: {name: run(tx, p, g) for name, tx in txs.items()})(params, grads)
        return jax.tree.map(np.asarray, out)


def msign(x):
    u, _, v = np.linalg.svd(x, full_matrices=False)
    return u @ v


def unit(x, **axes):
    return x / np.linalg.norm(x, **axes)


def means(grads, b1=0.9):
    """Debiased means of the gradients."""
    mu, out = 0, []
    for t, g in enumerate(grads, 1):
        mu = b1 * mu + (1 - b1) * g
        out.append(mu / (1 - b1**t))
    return out


def ema_nesterov(W, grads):
    mu = 0
    for g in grads:
        mu = 0.9 * mu + 0.1 * g
        W = W - RATE * msign(0.9 * mu + 0.1 * g)
        yield W


def on_ball(W, directions):
    R = np.linalg.norm(W)
    for d in directions:
        W = R * unit(W - RATE * R * unit(d))
        yield W


def muon_h(W, grads):
    return on_ball(W, map(msign, means(grads)))


def adam_h(W, grads):
    squares = means([g**2 for g in grads], 0.999)
    pairs = zip(means(grads), squares, strict=True)
    return on_ball(W, [mu / (np.sqrt(nu) + 1e-8) for mu, nu in pairs])


def outputs(W, grads):
    R = np.linalg.norm(W, axis=0)
    for g in grads:
        g = g - W * (np.sum(W * g, axis=0) / R**2)
        W = R * unit(W - RATE * R * unit(g, axis=0), axis=0)
        yield W


def cautious(W, grads):
    for mu in means(grads):
        u = msign(mu)
        W = W - RATE * (u + 0.5 * (u * W >= 0) * W)
        yield W


def cap(W, grads):
    for g in grads:
        W = W - RATE * g
        W = W * min(1, 1.2 / np.linalg.norm(W, 2))
        yield W


def floor(W, grads):
    for g in grads:
        W = W - g * max(1e-3, 0.02 * np.linalg.norm(W) / np.linalg.norm(g))
        yield W


def dion(W, grads):
    """Algorithm 1; the paper's rows are the longer side here, its matrices are transposed."""
    is_wide = W.shape[0] <= W.shape[1]
    m = min(W.shape)
    with jax.enable_x64(True):  # the first basis is any one: this one
        start = fnopt.scale_by_dion(0.6).start("basis", (1, m, max(W.shape)), jnp.float64)
        Q, M = np.asarray(start[0]), 0
    assert Q.shape == (m, round(0.6 * m))
    for G in grads:
        B = M + (G.T if is_wide else G)
        P = np.linalg.qr(B @ Q)[0]
        R = B.T @ P
        M = B - (1 - 0.95) * P @ R.T
        Q = unit(R, axis=0)
        u = P @ Q.T
        W = W - RATE * np.sqrt(max(1, W.shape[1] / W.shape[0])) * (u.T if is_wide else u)
        yield W


def mars(W, grads):
    last, corrected = grads[0], []
    for g in grads:
        corrected.append(g + 0.5 * 0.9 / 0.1 * (g - last))
        last = g
    for mu in means(corrected):
        W = W - RATE * msign(mu)
        yield W


def newton(W, grads, moment):
    n = len(moment)  # the mean of equal moments is the moment
    C = moment + 0.1 * np.trace(moment) / n * np.eye(n)
    for mu in means([np.linalg.solve(C, g) for g in grads]):
        W = W - RATE * msign(mu)
        yield W


FORMULAS = {
    "EMA-Nesterov": ema_nesterov,
    "MuonH": muon_h,
    "AdamH": adam_h,
    "outputs, tangent": outputs,
    "cautious decay": cautious,
    "cap": cap,
    "floor": floor,
    "Dion": dion,
    "MARS-Muon": mars,
    "Newton-Muon": newton,
}


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_is_its_formula(name):
    for leaf, path in found()[name].items():
        matrices = PARAMS[leaf].reshape(-1, *SHAPES[leaf][-2:])
        grads = GRADS[leaf].reshape(STEPS, *matrices.shape)
        moments = MOMENTS[leaf].reshape(len(matrices), *MOMENTS[leaf].shape[-2:])
        for i, W in enumerate(matrices):
            extra = (moments[i],) if name == "Newton-Muon" else ()
            expected = np.stack([*FORMULAS[name](W, grads[:, i], *extra)])
            ours = path.reshape(STEPS, *matrices.shape)[:, i]
            np.testing.assert_allclose(ours, expected, rtol=1e-7, atol=1e-8, err_msg=leaf)


def test_orthogonalizing_behind_soap_is_orthogonalizing_in_its_basis():
    g = {"w": jnp.asarray(GRADS["tall"], jnp.float32)}
    soap = fnopt.scale_by_soap()
    both = fnopt.chain(soap, fnopt.orthogonalize("polar_express", 12))

    def run(tx):
        state = tx.init({"w": g["w"][0]})
        return jax.lax.scan(lambda s, g: tx.update(g, s)[::-1], state, g)

    (state, u), (_, ours) = jax.jit(lambda: (run(soap), run(both)))()
    left, right = (np.asarray(x[0], np.float64) for x in state.bases["w"][0])
    inside = right.T @ np.asarray(u["w"][-1], np.float64) @ left  # the shorter side is the columns
    np.testing.assert_allclose(ours["w"][-1], right @ msign(inside) @ left.T, atol=1e-4)


def test_qk_clip_is_its_formula():
    params = {"q": jnp.ones((3, 2, 4)), "k": jnp.ones((3, 2, 4)), "v": jnp.ones((3, 2, 4))}
    u = jax.tree.map(lambda p: 0.5 * p, params)
    tops = jnp.asarray([50.0, 400.0])
    tx = fnopt.qk_clip(100.0)
    updates, _ = jax.jit(lambda u: tx.update(u, (), params, max_logits={"q": tops, "k": tops}))(u)
    after = fnopt.apply_updates(params, updates)
    for name, factors in {"q": (1, 0.5), "k": (1, 0.5), "v": (1, 1)}.items():
        for head, factor in enumerate(factors):
            np.testing.assert_allclose(after[name][:, head], 1.5 * factor, rtol=1e-6)
    with pytest.raises(ValueError, match=r"has the path 'p', expected paths of params: 'k', 'q'"):
        tx.update(u, (), params, max_logits={"p": tops})
    with pytest.raises(ValueError, match=r"\['q'\] has shape \(3,\).*\(3, 2, 4\).*axis -2"):
        tx.update(u, (), params, max_logits={"q": jnp.ones(3)})


def test_inputs_that_are_missing_are_named():
    tx, g = fnopt.precondition_by_inputs(), {"w": jnp.ones((2, 3))}
    with pytest.raises(ValueError, match=r"has entries for 'v', but not for leaf 'w', expected"):
        tx.update(g, tx.init(g), input_moments={"v": jnp.eye(2)})
    with pytest.raises(ValueError, match=r"\['w'\] has shape \(3, 3\), expected \(1, 2, 2\)"):
        tx.update(g, tx.init(g), input_moments={"w": jnp.eye(3)})


def test_rates_carry_over_to_a_wider_model():
    def shapes(n):
        shapes = {"embed": (9, n), "w": (2, n, n), "head": (n, 9), "b": (n,)}
        return {k: jax.ShapeDtypeStruct(s, jnp.float32) for k, s in shapes.items()}

    axes = {"embed": Numbers(), "w": Numbers(1, 2), "head": Numbers(), "b": None}
    tx = fnopt.width_scaled(fnopt.sgd(1.0), shapes(12), shapes(4), axes)
    g = jax.tree.map(lambda s: jnp.ones(s.shape), shapes(12))
    updates = tx.update(g, tx.init(g), g)[0]
    sizes = {name: float(-u.ravel()[0]) for name, u in updates.items()}
    assert sizes == pytest.approx({"embed": 1, "w": 1 / 3, "head": 1 / 3, "b": 1}, rel=1e-5)
    with pytest.raises(ValueError, match=r"'w'.*weight_dimension_numbers"):
        fnopt.width_scaled(fnopt.sgd(1.0), shapes(12), shapes(4))
    with pytest.raises(ValueError, match="structure"):
        fnopt.width_scaled(fnopt.sgd(1.0), shapes(12), {"w": jnp.ones(3)})


def test_what_parts_refuse():
    with pytest.raises(ValueError, match="norm_of is 'row'"):
        fnopt.hyperball(0.1, "row")
    with pytest.raises(ValueError, match=r"rank = 2\.0, expected a fraction"):
        fnopt.scale_by_dion(2.0)

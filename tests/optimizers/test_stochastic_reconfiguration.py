"""Steps of stochastic reconfiguration against the dense S, and ground states of spin chains."""

from __future__ import annotations

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt import Status

LAM, MU, RATE = 1e-2, 0.9, 0.3


def draw(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape)


def log_cosh(x):
    return jnp.log(jnp.cosh(x))


def real(params, s):
    """A restricted Boltzmann machine."""
    s = s.astype(params["a"].dtype)
    return s @ params["a"] + jnp.sum(log_cosh(s @ params["w"] + params["b"]))


def phased(params, s):
    """Real params, a complex amplitude; nothing holomorphic in the complex one of them."""
    hidden = jnp.tanh(s @ params["w"] + params["b"])
    phase = jnp.sum(hidden) * jnp.real(params["c"]) + jnp.imag(params["c"]) ** 2
    return jax.lax.complex(real(params, s), phase)


def start(kind):
    parts = {"a": draw(0, 4) / 4, "w": draw(1, 4, 6) / 4, "b": draw(2, 6) / 4}
    if kind == "phased":
        return parts | {"c": np.asarray(0.4 - 0.3j)}
    if kind == "holomorphic":
        return {k: p + 1j * draw(9 + i, *p.shape) / 4 for i, (k, p) in enumerate(parts.items())}
    return parts


KINDS = {"real": real, "phased": phased, "holomorphic": real}


def rows(kind, params, s):
    """The log-derivatives, formed: by the complex params where they are holomorphic."""
    leaves, tree = jax.tree.flatten(params)
    fn = KINDS[kind]
    if kind != "phased":
        found = jax.vmap(jax.jacobian(fn, holomorphic=kind == "holomorphic"), (None, 0))(params, s)
        return jnp.concatenate([x.reshape(len(s), -1) for x in jax.tree.leaves(found)], 1)
    parts = [(jnp.real(p), jnp.imag(p)) if jnp.iscomplexobj(p) else (p,) for p in leaves]

    def of_parts(parts, s):
        joined = [jax.lax.complex(*p) if len(p) == 2 else p[0] for p in parts]
        return fn(jax.tree.unflatten(tree, joined), s)

    both = [
        jax.vmap(jax.jacobian(lambda p, s, f=f: f(of_parts(p, s))), (None, 0))(parts, s)
        for f in (jnp.real, jnp.imag)
    ]
    one, two = (
        jnp.concatenate([x.reshape(len(s), -1) for x in jax.tree.leaves(J)], 1) for J in both
    )
    return jax.lax.complex(one, two)


def flat(kind, tree):
    """A direction as a vector, in the order of the rows' columns."""
    parts = []
    for x in jax.tree.leaves(tree):
        split = kind == "phased" and jnp.iscomplexobj(x)
        parts += [jnp.real(x), jnp.imag(x)] if split else [x]
    return jnp.concatenate([jnp.ravel(x) for x in parts])


def dense(kind, params, last, s, E, w):
    """The direction by S as it is written, and the energy."""
    A = rows(kind, params, s)
    X = jnp.sqrt(w)[:, None] * (A - w @ A)
    e = jnp.sqrt(w) * (E - w @ E)
    S, F = jnp.conj(X.T) @ X, jnp.conj(X.T) @ (e + X @ (MU * last))
    if kind != "holomorphic":
        S, F = jnp.real(S), jnp.real(F)
    return MU * last - jnp.linalg.solve(S + LAM * jnp.eye(len(S)), F), w @ E


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("kind", KINDS)
def test_two_steps_of_spring_are_those_of_the_dense_matrix(kind):
    # Without momentum it is the first of the two.
    tx = fnopt.stochastic_reconfiguration(KINDS[kind], RATE, LAM, MU)

    @jax.jit
    def both(params, state, s, E, w):
        updates, after = tx.update(None, state, params, batch=s, local_energies=E, weights=w)
        with jax.numpy_dtype_promotion("standard"):
            wanted, energy = dense(kind, params, flat(kind, state.momentum), s, E, w / jnp.sum(w))
        return flat(kind, updates), flat(kind, after.momentum), after, wanted, energy, updates

    params, s = start(kind), np.sign(draw(3, 9, 4))
    E, w = draw(4, 9) + 1j * draw(5, 9), draw(6, 9) ** 2
    w[2] = 0.0
    state = tx.init(params)
    for _ in range(2):
        moved, direction, state, wanted, mean, updates = both(params, state, s, E, w)
        near = functools.partial(
            np.testing.assert_allclose, rtol=0, atol=1e-8 * np.max(np.abs(wanted))
        )
        near(direction, wanted)
        near(moved, RATE * wanted)
        np.testing.assert_allclose(state.energy, np.real(mean), rtol=1e-12)
        assert int(state.status) == Status.RUNNING
        params = fnopt.apply_updates(params, updates)


@pytest.mark.usefixtures("x64")
def test_conjugate_gradients_take_the_same_step_and_the_longest_is_kept():
    options = {"learning_rate": RATE, "damping": LAM}
    ways = [
        fnopt.stochastic_reconfiguration(phased, **options, **more)
        for more in ({}, {"solver": "cg", "rank": 6}, {"max_norm": 1e-2})
    ]
    params, s, E = start("phased"), np.sign(draw(3, 9, 4)), draw(4, 9)

    @jax.jit
    def all_of_them(params, s, E):
        return [
            flat("phased", tx.update(None, tx.init(params), params, batch=s, local_energies=E)[0])
            for tx in ways
        ]

    one, two, short = all_of_them(params, s, E)
    np.testing.assert_allclose(two, one, rtol=0, atol=1e-7 * np.max(np.abs(one)))
    np.testing.assert_allclose(short, 1e-2 * one / np.linalg.norm(one), rtol=1e-9)


def ising(sites, field):
    """All configurations of a ring, their classical energies, and which ones a flip leads to."""
    states = np.asarray(list(itertools.product([-1.0, 1.0], repeat=sites)))
    classical = -np.sum(states * np.roll(states, 1, axis=1), axis=1)
    flips = np.arange(len(states))[:, None] ^ (1 << np.arange(sites)[::-1])
    H = np.diag(classical)
    for column in flips.T:
        H[np.arange(len(states)), column] -= field
    return states, classical, flips, np.linalg.eigvalsh(H)[0]


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("sites", "hidden", "complex_params"), [(6, 8, False), (6, 6, True)])
def test_the_ground_state_of_an_ising_chain(sites, hidden, complex_params):
    states, classical, flips, exact = ising(sites, 1.0)
    params = {"a": np.zeros(sites), "w": draw(0, sites, hidden) / 10, "b": draw(1, hidden) / 10}
    if complex_params:
        params = {k: p + 0.05j * draw(7, *p.shape) for k, p in params.items()}
    tx = fnopt.stochastic_reconfiguration(real, 0.1, 1e-4)

    @jax.jit
    def run(params):
        def step(carry, _):
            params, state = carry
            log = jax.vmap(real, (None, 0))(params, states)
            flipped = jnp.sum(jnp.exp(log[flips] - log[:, None]), axis=1)
            energies = jnp.asarray(classical, log.dtype) - flipped
            probability = jax.nn.softmax(2 * jnp.real(log))
            updates, state = tx.update(
                None, state, params, batch=states, local_energies=energies, weights=probability
            )
            return (fnopt.apply_updates(params, updates), state), (state.energy, state.variance)

        return jax.lax.scan(step, (params, tx.init(params)), length=150)[1]

    energy, variance = run(params)
    assert energy[-1] >= exact - 1e-9
    np.testing.assert_allclose(energy[-1], exact, rtol=1e-5)
    assert variance[-1] < 1e-3 * variance[0]


@functools.cache
def step():
    tx = fnopt.stochastic_reconfiguration(real, 0.1, momentum=0.5)
    return tx, jax.jit(
        lambda params, state, s, E: tx.update(None, state, params, batch=s, local_energies=E)
    )


def small():
    params = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), start("real"))
    return params, jnp.sign(jnp.asarray(draw(3, 9, 4), jnp.float32)), jnp.ones(9)


@pytest.mark.parametrize(("energy", "w"), [(np.nan, 1.0), (np.inf, 1.0), (1.0, np.inf)])
def test_a_step_that_is_not_finite_is_refused(energy, w):
    tx, run = step()
    params, s, E = small()
    params["w"] = params["w"] * w
    state = tx.init(params)
    types = jax.tree.map(lambda x: (x.shape, x.dtype, x.weak_type), state)
    updates, state = run(params, state, s, E.at[2].set(energy))
    assert all(not np.any(u) for u in jax.tree.leaves((updates, state.momentum)))
    wanted = Status.NONFINITE_STEP if np.isfinite(energy) else Status.NONFINITE_START
    assert int(state.status) == wanted
    assert jax.tree.map(lambda x: (x.shape, x.dtype, x.weak_type), state) == types


def test_negative_weights_are_refused():
    tx, (params, s, E) = fnopt.stochastic_reconfiguration(real, 0.1), small()
    run = jax.jit(
        lambda w: tx.update(
            None, tx.init(params), params, batch=s, local_energies=E * s[:, 0], weights=w
        )
    )
    updates, state = run(jnp.ones(9).at[3].set(-0.1))
    assert all(not np.any(u) for u in jax.tree.leaves(updates))
    assert int(state.status) == Status.NONFINITE_START
    assert int(run(jnp.ones(9).at[3].set(0))[1].status) == Status.RUNNING


def test_weights_of_any_size_are_the_same():
    tx, (params, s, E) = fnopt.stochastic_reconfiguration(real, 0.1), small()
    state = tx.init(params)
    run = jax.jit(
        lambda w: tx.update(None, state, params, batch=s, local_energies=E * s[:, 0], weights=w)
    )
    alike = jax.tree.leaves(run(jnp.ones(9)))
    for size in (1e-30, 1e38):  # the sum of the latter is infinite
        found = jax.tree.leaves(run(jnp.full(9, size)))
        for a, b in zip(found, alike, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5)


def test_of_samples_that_are_all_alike_nothing_moves():
    # The centered rows are zero: the matrix is singular but for its damping.
    tx, run = step()
    params, s, E = small()
    updates, state = run(params, tx.init(params), jnp.broadcast_to(s[:1], s.shape), E)
    assert all(np.all(np.abs(u) < 1e-6) for u in jax.tree.leaves(updates))
    assert int(state.status) == Status.RUNNING


def test_refuses_what_it_cannot_do():
    params, s, E = small()

    def tried(fn=real, params=params, samples=s, energies=E, **options):
        tx = fnopt.stochastic_reconfiguration(fn, **options)
        jax.eval_shape(
            lambda p: tx.update(None, tx.init(p), p, batch=samples, local_energies=energies), params
        )

    with pytest.raises(TypeError, match="log_amplitude_fn = 3, expected a function"):
        fnopt.stochastic_reconfiguration(3)
    with pytest.raises(ValueError, match="solver"):
        tried(solver="qr")
    with pytest.raises(ValueError, match="rank"):
        tried(rank=-1)
    with pytest.raises(ValueError, match=r"rank = 5 .* solver = 'cholesky'"):
        tried(rank=5)
    with pytest.raises(TypeError, match="real or complex scalar"):
        tried(lambda p, s: s * p["a"])
    with pytest.raises(TypeError, match=r"leaf 'w' is int32"):
        tried(params=params | {"w": jnp.ones((4, 6), jnp.int32)})
    with pytest.raises(ValueError, match=r"local_energies has shape \(8,\), expected \(9,\)"):
        tried(energies=E[:8])
    with pytest.raises(ValueError, match="batch is empty"):
        tried(samples=s[:0], energies=E[:0])
    many = jnp.broadcast_to(s[:1], (40_000, 4))
    with pytest.raises(ValueError, match=r"40000 rows.* 26 GB.*solver='cg'"):
        tried(samples=many, energies=jnp.ones(40_000))

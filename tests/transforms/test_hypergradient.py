"""Learning rates that descend, against the paper's updates written out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from tests.optimizers.written_out import START, STEPS, assert_same, gradient, path


def by_hand(direction, beta, normalized):
    """The steps of all leaves together: they share the rate."""
    p = {k: v.copy() for k, v in START.items()}
    rate, last, slots, out, rates = 0.1, None, {k: {} for k in p}, {k: [] for k in p}, []
    for t in range(STEPS):
        g = {k: gradient(p[k], t, k) for k in p}
        if last is not None:
            flat = [np.concatenate([x[k].ravel() for k in sorted(x)]) for x in (g, last)]
            product = flat[0] @ flat[1]
            if normalized:
                rate *= 1 + beta * product / np.linalg.norm(flat[0]) / np.linalg.norm(flat[1])
            else:
                rate = max(0.0, rate + beta * product)
        last = {k: direction(g[k], slots[k], t + 1) for k in p}
        for k in p:
            p[k] = p[k] - rate * last[k]
            out[k].append(p[k])
        rates.append(rate)
    assert np.ptp(rates) > 0.02
    return {k: np.stack(v) for k, v in out.items()}


def plain(g, s, t):
    return g


def adam(g, s, t):
    s["m"] = 0.9 * s.get("m", 0.0) + 0.1 * g
    s["v"] = 0.999 * s.get("v", 0.0) + 0.001 * g**2
    return s["m"] / (1 - 0.9**t) / (np.sqrt(s["v"] / (1 - 0.999**t)) + 1e-8)


@pytest.mark.parametrize(
    ("inner", "direction", "beta", "normalized"),
    [
        (fnopt.identity(), plain, 1e-3, False),
        (fnopt.scale_by_adam(), adam, 1e-3, False),
        (fnopt.scale_by_adam(), adam, 0.1, True),
    ],
    ids=["sgd", "adam", "adam-normalized"],
)
def test_agrees_with_the_paper(inner, direction, beta, normalized):
    ours = path(fnopt.hypergradient(inner, 0.1, beta, normalized=normalized))
    assert_same(ours, by_hand(direction, beta, normalized))


@jax.jit
def two_steps(tx, g):
    params = {"w": jnp.ones(2)}
    _, state = tx.update({"w": g}, tx.init(params), params)
    return tx.update({"w": g}, state, params)[1].learning_rate


def test_at_any_magnitude():
    """The cosine of gradients has no size; a product that is too large moves nothing."""
    g = jnp.ones(2)
    relative = fnopt.hypergradient(fnopt.identity(), 0.1, 0.5, normalized=True)
    rates = [float(two_steps(relative, size * g)) for size in (1e-24, 1.0, 1e20)]
    np.testing.assert_allclose(rates, 0.15, rtol=1e-5)
    absolute = fnopt.hypergradient(fnopt.identity(), 0.1, 0.5)
    assert float(two_steps(absolute, 1e20 * g)) == np.float32(0.1)


def test_no_rate_is_negative():
    """Gradients that turn round ask for less than nothing."""
    tx, g = fnopt.hypergradient(fnopt.identity(), 0.1, 2.0, normalized=True), jnp.ones(2)
    _, state = tx.update(g, tx.init(g), g)
    assert float(tx.update(-g, state, g)[1].learning_rate) == 0.0

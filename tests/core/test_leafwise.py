"""The step of a single leaf, which is one program, against the same leaf among others."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt

TX = fnopt.chain(
    fnopt.scale_by_adam(), fnopt.scale_by_learning_rate(fnopt.linear_schedule(1, 0, 5))
)


def steps(tx, params, grads, times=2):
    state = tx.init(params)
    for _ in range(times):
        updates, state = tx.update(grads, state, params)
    return updates, state


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.complex64])
def test_a_leaf_alone_and_among_others(dtype):
    p, g = jnp.ones(3, dtype), jnp.asarray([1.0, -2.0, 1e20], dtype)
    alone, state = steps(TX, {"a": p, "none": None}, {"a": g, "none": None})
    among, many = steps(TX, {"a": p, "b": p}, {"a": g, "b": g})
    assert alone["a"].dtype == dtype
    assert not any(x.weak_type for x in jax.tree.leaves(state))
    pairs = [(alone, among, 1e-2 if dtype == jnp.bfloat16 else 3e-6)]
    pairs += [(fnopt.slots(state)[s], fnopt.slots(many)[s], 3e-6) for s in ("mu", "nu")]
    for x, y, rtol in pairs:
        np.testing.assert_allclose(*(np.asarray(t["a"]).astype(complex) for t in (x, y)), rtol=rtol)


def test_numbers_that_change_do_not_trace_again():
    traced = []

    class counted(fnopt.scale_by_learning_rate):
        def leaf(self, h, g):
            traced.append(1)
            return super().leaf(h, g)

    params = jnp.ones(3)
    for rate in (0.5, 0.25, 0.125):
        tx = counted(rate)
        updates, _ = tx.update(params, tx.init(params))
        assert jnp.array_equal(updates, -rate * params)
    assert len(traced) == 1


def test_a_stack_of_optimizers_and_a_derivative_by_the_rate():
    params, rates = jnp.ones(2), jnp.asarray([0.5, 0.25])
    state = fnopt.sgd(0.5).init(params)

    def moved(rate):
        return fnopt.sgd(rate).update(params, state, params)[0]

    assert jnp.array_equal(jax.vmap(moved)(rates), -rates[:, None] * params)
    assert jax.grad(lambda rate: jnp.sum(moved(rate)))(jnp.asarray(0.5)) == -2


@pytest.mark.skipif(jax.device_count() < 2, reason="needs two devices")
def test_a_state_elsewhere_is_named():
    first, second = jax.devices()[:2]
    params = jax.device_put(jnp.ones(2), first)
    state = jax.device_put(TX.init(params), second)
    with pytest.raises(ValueError, match="on other devices"):
        TX.update(params, state, params)


class _State(NamedTuple):
    count: jax.Array
    mu: fnopt.core.Slot
    nu: fnopt.core.Slot


def _written(leaf=None, scalars=None):
    class mine(fnopt.core.Leafwise):
        State = _State
        b1: float = fnopt.core.hyper(default=0.9)

    def made(h, t):
        del h, t
        return {"gain": 0.5}

    def plain(h, g, mu, nu):
        return g * h.gain, mu, nu

    mine.leaf = lambda self, *args: (leaf or plain)(*args)
    mine.scalars = lambda self, h, t: (scalars or made)(h, t)
    return mine()


WRONG = {
    "too few": (
        lambda h, g, mu, nu: (g, mu),
        TypeError,
        r"^mine: mine.leaf returned 2 values, expected 3: the update and the new \['mu', 'nu'\]\.",
    ),
    "no tuple": (
        lambda h, g, mu, nu: g,
        TypeError,
        r"^mine: mine.leaf returned float32\[2\], expected 3: the update and",
    ),
    "nothing": (lambda h, g, mu, nu: None, TypeError, "mine.leaf returned NoneType, expected 3"),
    "misspelt": (
        lambda h, g, mu, nu: (g * h.gian, mu, nu),
        AttributeError,
        r"^mine: the argument `h` of `leaf` and `scalars` has no attribute 'gian', .*'gain'\]",
    ),
    "a scalar": (
        lambda h, g, mu, nu: (jnp.sum(g), mu, nu),
        ValueError,
        r"^mine: mine.leaf returned float32\[\] as the update of a leaf of shape \(2,\), expected "
        r"float32\[2\] like the gradient\.",
    ),
    "a number": (
        lambda h, g, mu, nu: (0.0, mu, nu),
        ValueError,
        r"mine.leaf returned float as the update of a leaf of shape \(2,\), expected",
    ),
    "a scalar slot": (
        lambda h, g, mu, nu: (g, mu, jnp.sum(nu)),
        ValueError,
        r"returned float32\[\] as the nu of a leaf of shape \(2,\), expected float32\[2\] like the "
        r"previous slot\.",
    ),
    "a pair as slot": (lambda h, g, mu, nu: (g, (mu, mu), nu), ValueError, "as the mu of a leaf"),
}


@pytest.mark.parametrize("leaves", [1, 2])
@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("compiled", [False, True])
def test_mistakes_in_a_formula_are_named(name, leaves, compiled):
    leaf, kind, message = WRONG[name]
    tx = _written(leaf)
    params = {f"w{i}": jnp.ones(2) for i in range(leaves)}
    update = jax.jit(tx.update) if compiled else tx.update
    with pytest.raises(kind, match=message):
        update(params, tx.init(params), params)


@pytest.mark.parametrize(
    ("scalars", "kind", "message"),
    [
        (lambda h, t: None, TypeError, r"mine.scalars returned NoneType, expected a dict"),
        (lambda h, t: h.b1, TypeError, r"mine.scalars returned float32\[\], expected a dict"),
        (lambda h, t: {"gain": jnp.ones(3)}, ValueError, r"float32\[3\] as 'gain', expected a sca"),
        (
            lambda h, t: {"gain": h.b2},
            AttributeError,
            r"scalars` has no attribute 'b2', expected one of \['b1'\]",
        ),
    ],
)
def test_mistakes_in_scalars_are_named(scalars, kind, message):
    tx, params = _written(scalars=scalars), {"w": jnp.ones(2)}
    with pytest.raises(kind, match=message):
        tx.update(params, tx.init(params), params)


def test_a_formula_without_slots_returns_the_update():
    class halved(fnopt.core.Leafwise):
        def leaf(self, h, g):
            return (g / 2,)

    params = jnp.ones(2)
    with pytest.raises(ValueError, match=r"halved\.leaf returned .* as the update of a leaf"):
        halved().update(params, halved().init(params))

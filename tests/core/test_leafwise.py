"""The step of a single leaf, which is one program, against the same leaf among others."""

from __future__ import annotations

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


def test_a_state_elsewhere_is_named():
    first, second = jax.devices()[:2]
    params = jax.device_put(jnp.ones(2), first)
    state = jax.device_put(TX.init(params), second)
    with pytest.raises(ValueError, match="on other devices"):
        TX.update(params, state, params)

"""Twenty steps of every optimizer that optax has too, in both widths, against its float64."""

from __future__ import annotations

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fnopt
from tests.optimizers.cases import OPTIMIZERS, cast, tree

STEPS = 20
# What accumulates: sums of 20 steps, in units of the dtype's resolution. In float32 the quotients
# of nearly equal numbers (AdaBelief's, centered RMSProp's) lose digits that float64 has to spare.
TOLERANCES = {jnp.dtype("float32"): 5e-5, jnp.dtype("float64"): 1e-9}
# Some numbers of the peer are float32 whatever the params are.
FLOAT32_INSIDE = {"accumulated_sgd", "adafactor", "adafactor_plain", "madgrad"}
FLOAT32_INSIDE |= {"schedule_free_adamw"}
# Each program runs once: what XLA could save is less than what it takes to find it.
QUICK = {"xla_backend_optimization_level": "0", "xla_llvm_disable_expensive_passes": True}


def path(tx, dtype, params, noise):
    """The params after every step, along gradients that depend on the params."""
    params, noise = cast(params, dtype), cast(noise, dtype)

    def body(carry, g):
        params, state = carry
        grads = jax.tree.map(lambda p, g: 0.5 * p + g, params, g)
        value = 0.5 * sum(jnp.sum(p * p) for p in jax.tree.leaves(params))
        updates, state = tx.update(grads, state, params, value=value)
        params = jax.tree.map(lambda p, u: p + u.astype(p.dtype), params, updates)
        return (params, state), params

    return jax.lax.scan(body, (params, tx.init(params)), noise)[1]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_twenty_steps_agree(name):
    def theirs(*args):
        with warnings.catch_warnings(), jax.numpy_dtype_promotion("standard"):
            warnings.simplefilter("ignore")
            peer = optax.with_extra_args_support(OPTIMIZERS[name](optax))
            return path(peer, jnp.float64, *args)

    def all_paths(*args):
        ours = [path(OPTIMIZERS[name](fnopt), dtype, *args) for dtype in TOLERANCES]
        return theirs(*args), *ours

    with jax.enable_x64(True):
        args = tree(0), tree(1, STEPS)
        expected, *found = jax.jit(all_paths, compiler_options=QUICK)(*args)
    for (dtype, tolerance), actual in zip(TOLERANCES.items(), found, strict=True):
        tolerance = max(tolerance, 1e-6 * (name in FLOAT32_INSIDE))
        for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
            assert a.dtype == dtype
            np.testing.assert_allclose(a, e, rtol=tolerance, atol=tolerance)

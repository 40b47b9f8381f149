"""The compiled step keeps no temporary of the params' size, in any optimizer."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import fnopt
from tests.optimizers.cases import ALL

# Momentum after a division reads the direction twice, for the slot and for the look-ahead, and
# XLA keeps what is dear to compute and read twice.
KEEPS_A_DIRECTION = {"rmsprop_nesterov", "adopt"}
# The sum goes through a conditional, which is a border for XLA's fusion.
HAS_A_CONDITIONAL = {"accumulated_sgd"}
# The norm of a whole leaf has to be known before its first element moves.
NEEDS_A_NORM = {"lamb", "lars", "fromage"}
# Measured to keep one, and not mended yet: slots that are read after they change.
NOT_MENDED = {
    "optimistic_gradient_descent",
    "optimistic_adam_v2",
    "optimistic_adam",
    "acprop",
    "cocob",
    "schedule_free_adamw",
    "schedule_free_sgd",
    "small_parts",
    "reduce_on_plateau",
}
# A sum over all leaves has to be known before the first number moves, so that what is summed (a
# direction, a distance from the start) is computed twice or kept; XLA keeps it.
NEEDS_A_SUM = {
    *("adafactor", "adafactor_plain", "novograd", "prodigy", "prodigy_safeguarded"),
    *("dadapt_adamw", "dog", "dog_first_rate", "dowg", "momo", "momo_adam", "mechanize", "sam"),
}
# Products of matrices, and the matrices of one shape side by side.
NEEDS_A_PRODUCT = {"muon", "muon_options", "muon_aol", "muon_spectral"}
EXEMPT = NEEDS_A_SUM | KEEPS_A_DIRECTION | HAS_A_CONDITIONAL | NEEDS_A_NORM | NOT_MENDED
EXEMPT |= NEEDS_A_PRODUCT
NAMES = [name for name in ALL if name not in EXEMPT]


def big(dtype=jnp.float32):
    layer = {"kernel": jnp.ones((512, 512), dtype), "bias": jnp.ones(512, dtype)}
    return {"blocks": [layer, layer, layer], "scale": jnp.ones((), dtype)}


KERNELS = {"blocks": [{"kernel": True, "bias": False}] * 3, "scale": False}


def make(name, monkeypatch):
    monkeypatch.setattr("tests.optimizers.cases.KERNELS", KERNELS)
    return ALL[name](fnopt)


def temporary(tx, params, as_argument=False):
    """Bytes of temporaries of one compiled step with donated params and state."""

    def step(params, state, grads, tx):
        updates, state = tx.update(grads, state, params, value=jnp.float32(1.0))
        return fnopt.apply_updates(params, updates), state

    args = (params, tx.init(params), params)
    if as_argument:
        lowered = jax.jit(step, donate_argnums=(0, 1)).lower(*args, tx)
    else:
        lowered = jax.jit(lambda *a: step(*a, tx), donate_argnums=(0, 1)).lower(*args)
    analysis = lowered.compile().memory_analysis()
    if analysis is None:
        pytest.skip("this backend does not report memory")
    return analysis.temp_size_in_bytes


def limit(params):
    """One percent of the params: room for partial sums, none for a leaf."""
    return sum(x.nbytes for x in jax.tree.leaves(params)) // 100


@pytest.mark.parametrize("name", NAMES)
def test_no_temporary_of_the_params_size(name, monkeypatch):
    params = big()
    assert temporary(make(name, monkeypatch), params) < limit(params)


@pytest.mark.parametrize("name", NAMES)
def test_nor_behind_clipping_by_global_norm(name, monkeypatch):
    """With the optimizer as an argument, so that its numbers are not constants."""
    params = big()
    tx = fnopt.chain(fnopt.clip_by_global_norm(1.0), make(name, monkeypatch))
    assert temporary(tx, params, as_argument=True) < limit(params)


@pytest.mark.parametrize("name", ["adamw", "lion", "diffgrad", "sgd_nesterov"])
def test_nor_for_bfloat16_params(name, monkeypatch):
    params = big(jnp.bfloat16)
    assert temporary(make(name, monkeypatch), params) < limit(params)


def test_clipping_by_value():
    params = big()
    tx = fnopt.chain(fnopt.clip(1.0), fnopt.adam(1e-3))
    assert temporary(tx, params) < limit(params)


def test_muon_of_twelve_layers_keeps_a_quarter_of_the_params():
    square, wide = jnp.ones((128, 128)), jnp.ones((128, 512))
    layer = {**dict.fromkeys("qkvo", square), "up": wide, "down": wide.T}
    params = {f"layer_{i}": layer for i in range(12)}
    assert temporary(fnopt.muon(0.1), params) < 25 * limit(params)

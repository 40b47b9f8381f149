from __future__ import annotations

import functools

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend import core as jex

from fnopt.costs import _flops_table, cost
from tests.costs.cost_models import f32

# Calls, loops and branches, which are opened and not counted.
OPENED = {
    *("call", "closed_call", "core_call", "eval_jaxpr", "jit", "pjit", "remat", "remat2"),
    *("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr", "custom_linear_solve"),
    *("scan", "while", "cond", "shard_map"),
}
# Known to be unknown, so that `exact` is false for a program that has them: because their work
# depends on the numbers, or because JAX uses them inside other transformations only.
UNCOUNTED = {
    "approx_top_k": "the algorithm is the backend's",
    "rng_uniform": "the algorithm is the backend's",
    "random_gamma": "rejection sampling",
    "select_and_scatter": "any function as the reduction",
    "cholesky_update": "a kernel",
    "symmetric_product": "a kernel",
    "geqp3": "a kernel",
    "ormqr": "a kernel",
    "scaled_dot": "a kernel",
    "get": "mutable arrays",
    "swap": "mutable arrays",
    "addupdate": "mutable arrays",
    "new_ref": "mutable arrays",
    "ref": "mutable arrays",
    "freeze": "mutable arrays",
    "custom_lin": "made and used up within a transformation",
    "linear_call": "a function with a transpose of its own",
    "xla_pmap": "gone since JAX 0.8",
    "composite": "a kernel with a reference implementation",
    "platform_index": "the platform isn't known",
    "stage": "whatever a backend makes of it",
}
COLLECTIVE = (
    *("psum", "pmax", "pmin", "ppermute", "all_gather", "all_to_all", "reduce_scatter", "psend"),
    *("precv", "pbroadcast", "preduced", "unreduced", "reduced_vary", "vary_unreduced", "pcast"),
)


def primitives() -> set[str]:
    """The primitives that the installed JAX shows in public."""
    modules = jax.lax, jax.lax.linalg, jax.extend.core.primitives
    values = [value for module in modules for value in vars(module).values()]
    return {value.name for value in values if isinstance(value, jex.Primitive)}


def test_every_primitive_of_the_installed_jax_has_a_rule_or_a_reason():
    found = primitives()
    assert len(found) > 150
    silent = {
        name
        for name in found - set(_flops_table.RULES) - OPENED - set(UNCOUNTED)
        if _flops_table.reason_unknown(name) == "no rule for this primitive"
        and not name.startswith(COLLECTIVE)
    }
    assert not silent, "give them a rule in costs/_flops_table.py, or say here why they have none"


def rope(x, base=1e4):
    """Rotary position embeddings, by `jnp.stack` and `jnp.tile`: 6 products or sums for a pair."""
    steps, width = x.shape
    rates = (base ** (-np.arange(0, width, 2) / width)).astype(x.dtype)
    angles = jnp.tile(jnp.arange(steps, dtype=x.dtype)[:, None] * rates, (1, 1))
    even, odd = jnp.unstack(x.reshape(steps, width // 2, 2), axis=-1)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    turned = jnp.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1)
    return jnp.tile(turned.reshape(steps, width), (2, 1))


def test_rotary_embeddings_are_counted_exactly():
    found = cost(rope)(f32(8, 16))
    pairs = 8 * 8
    assert found.exact, found.unknown
    assert found.elementwise_flops == 6 * pairs + pairs  # and one for each angle
    assert found.transcendentals == 2 * pairs


@pytest.mark.parametrize(
    ("fn", "flops", "transcendentals"),
    [
        (lambda x: jnp.stack([x, x]), 0, 0),
        (lambda x: jnp.unstack(x), 0, 0),
        (lambda x: jnp.tile(x, (2, 3)), 0, 0),
        (jax.grad(lambda x: jnp.stack([x, x]).sum()), 12, 0),
    ],
)
def test_moves_cost_no_operations(fn, flops, transcendentals):
    found = cost(fn)(f32(3, 4))
    assert found.exact, found.unknown
    assert (found.elementwise_flops, found.transcendentals) == (flops, transcendentals)


def test_logarithms_and_polynomials_are_counted():
    found = cost(jnp.log2)(f32(5))
    assert found.exact
    assert 5 <= found.transcendentals <= 6  # before JAX 0.12 the logarithm of 2 is one more
    found = cost(functools.partial(jnp.polyval, np.arange(4.0, dtype=np.float32)))(f32(5))
    assert found.exact, found.unknown
    assert 2 * 3 * 5 <= found.elementwise_flops <= 2 * 4 * 5
    found = cost(jax.grad(lambda x: jnp.tanh(x).sum()))(f32(5))
    assert found.exact, found.unknown
    assert found.elementwise_flops >= 2 * 5


REDUCTIONS = (jnp.sum, jnp.prod, jnp.max, jnp.min, jnp.argmax, jnp.argmin)


@pytest.mark.parametrize("fn", REDUCTIONS, ids=lambda fn: fn.__name__)
@pytest.mark.parametrize(("axis", "flops"), [(0, 2 * 4), (1, 3 * 3), (None, 11)])
def test_a_reduction_combines_one_time_less_than_it_has_numbers(fn, axis, flops):
    found = cost(functools.partial(fn, axis=axis), compile=True)(f32(3, 4))
    assert found.exact
    assert found.elementwise_flops == flops
    if not fn.__name__.startswith("arg"):  # where the compiler carries the places along
        assert found.compiled is not None
        assert found.compiled.flops == flops


@pytest.mark.parametrize("fn", REDUCTIONS, ids=lambda fn: fn.__name__)
def test_a_reduction_of_whole_numbers_is_free(fn):
    assert cost(fn)(jax.ShapeDtypeStruct((3, 4), jnp.int32)).flops == 0

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from fnopt.programs import jaxprs, trace_and_call
from fnopt.programs._packed_outputs import pack, unpack


def tree(n=20):
    keys = jax.random.split(jax.random.key(0), n)
    return {
        "few": [jnp.arange(3, dtype=jnp.float16), jnp.float16(2)],
        "keys": [*keys],
        "large": jnp.ones((40, 50)),
        "many": [jax.random.normal(key, (i % 3, 2)) for i, key in enumerate(keys)],
        "scalars": [jnp.bfloat16(i) for i in range(n)],
        "weak": [jnp.asarray(1.0) * i for i in range(n)],
        "whole": [jnp.asarray([i, i]) for i in range(n)],
    }


def same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert jax.typeof(x) == jax.typeof(y)
        assert isinstance(x, jax.Array)
        x, y = (jax.random.key_data(k) if k.dtype == keys_dtype() else k for k in (x, y))
        np.testing.assert_array_equal(x, y)


def keys_dtype():
    return jax.random.key(0).dtype


def test_a_tree_of_all_kinds_of_arrays_comes_out_as_it_was():
    given = tree()
    out = jax.jit(pack)(given)
    assert {kind: vector.dtype for kind, vector in out.vectors.items()} == {
        "bfloat16": ml_dtypes.bfloat16,
        "float32": np.float32,
    }
    same(unpack(out), given)


def test_a_program_of_many_leaves_has_few_outputs():
    given = {f"leaf_{i}": jnp.float32(i) for i in range(100)}
    out = jax.make_jaxpr(pack)(given)
    assert len(out.jaxpr.outvars) == 1
    assert jaxprs.program_size(jax.make_jaxpr(pack)({"one": jnp.ones(3)}).jaxpr) == 0


def test_leaves_lie_where_the_arguments_do_and_may_be_given_away():
    device = jax.devices()[-1]
    for given in (jnp.ones(20), jax.device_put(jnp.ones(20), device)):
        out = trace_and_call(lambda x: [2 * part for part in jnp.split(x, 20)], given)
        plain = jax.jit(lambda x: 2 * x)(given)
        assert {(leaf.device, leaf.committed) for leaf in out} == {(plain.device, plain.committed)}
        given_away = jax.jit(lambda leaves: [leaf + 1 for leaf in leaves], donate_argnums=0)(out)
        assert [float(leaf[0]) for leaf in given_away] == [3.0] * 20


@pytest.mark.parametrize("wrap", [jax.jit, jax.vmap])
def test_inside_of_other_programs_nothing_is_packed(wrap):
    def fn(x):
        return trace_and_call(lambda x: [jnp.sin(part) for part in jnp.split(x, 20)], x)

    x = jnp.ones((2, 20))
    got = wrap(fn)(x[0] if wrap is jax.jit else x)
    np.testing.assert_allclose(got[0][..., 0], np.full(got[0][..., 0].shape, np.sin(1.0)), 1e-6)

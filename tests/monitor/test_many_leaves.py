"""The health of many small leaves, of which those alike are measured at once."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt.monitor import health
from fnopt.monitor._measure import STATISTICS
from fnopt.programs import jaxprs
from tests.contract.trees import many_leaves


@functools.partial(jax.jit, static_argnums=2)
def look(grads, params, groups):
    return health(grads, params, stats=STATISTICS, groups=groups)


@pytest.mark.parametrize("groups", [None, ("leaf_?1", "leaf_?2", "*")])
@pytest.mark.parametrize("size", [1.0, 1e25, np.inf])
def test_the_health_of_many_leaves_is_that_of_each(groups, size):
    grads, params = many_leaves(40, size=size), many_leaves(40, jnp.bfloat16)
    found = look(grads, params, groups)
    labels = {}
    for name in grads:
        label = name if groups is None else found.names[_group(name, groups)]
        labels.setdefault(label, []).append(name)
    for i, name in enumerate(found.names):
        some = [{own: t[own] for own in labels[name]} for t in (grads, params)]
        alone = health(*(_one(t) for t in some), stats=STATISTICS)
        for stat in STATISTICS:
            got, want = getattr(found, stat)[i], getattr(alone, stat)[0]
            np.testing.assert_allclose(got, want, rtol=1e-5, err_msg=f"{stat} of {name}")


def _group(name, groups):
    return next(i for i, q in enumerate(groups) if fnopt.errors.matches(name, q))


def _one(leaves):
    return {"all": jnp.concatenate([x.ravel() for x in leaves.values()])}


def test_the_health_of_many_small_leaves_is_a_small_program():
    small = {"leaf": [jnp.ones(3)] * 400}
    for groups in (None, 2, [f"leaf/{i}*" for i in range(10)]):
        program = jax.make_jaxpr(lambda g, p, q=groups: health(g, p, groups=q))(small, small)
        assert jaxprs.program_size(program.jaxpr) < 1000


def test_health_of_arrays_is_compiled_once(monkeypatch):
    tree = {"a": jnp.ones(3), "b": [jnp.zeros((2, 2)), jnp.ones((), jnp.int32)]}
    first = health(tree, tree)
    seen = []
    monkeypatch.setattr("fnopt.monitor._measure.sum_of_squares", lambda *args: seen.append(args))
    again = health(tree, tree)
    assert not seen
    np.testing.assert_array_equal(first.norm, again.norm)

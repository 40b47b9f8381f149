"""Batched factorizations of one step are never begun side by side: `fnopt.sharding.sequential`.

On a CPU that ends in threads which wait for each other for ever. Whether it does depends on the
number of cores, so what is read is the order that the compiled program asks for.
"""

from __future__ import annotations

import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt.curvature import KroneckerModel, KroneckerSpec
from fnopt.sharding import wait_for

_INSTRUCTION = re.compile(r"^ *(?:ROOT )?%([\w.\-]+) = .*? ([\w\-]+)\((.*)$")
_CALLED = re.compile(r"(?:calls|to_apply|body|condition)=%([\w.\-]+)|branch_computations=\{(.*?)\}")


def _computations(text):
    """By name: the instructions, `(name, names in its operands, what it calls, line)`."""
    found, current = {}, []
    for line in text.splitlines():
        head = re.match(r"^(?:ENTRY )?%?([\w.\-]+) .*\{$", line)
        if head and " = " not in line:
            found[head[1]] = current = []
        elif match := _INSTRUCTION.match(line):
            operands = re.findall(r"%([\w.\-]+)", match[3].split("), ")[0])
            called = " ".join(a or b for a, b in _CALLED.findall(line))
            current.append((match[1], operands, re.findall(r"[\w.\-]+", called), line))
    return found


def _factorizations_side_by_side(text):
    """Pairs of instructions with LAPACK in them of which neither waits for the other."""
    computations = _computations(text)

    def has_lapack(name):
        rows = computations.get(name, [])
        return any("lapack" in line or any(map(has_lapack, called)) for *_, called, line in rows)

    pairs, count = [], 0
    for rows in computations.values():
        waits = {}
        for name, operands, _, _ in rows:
            waits[name] = set(operands).union(*(waits.get(x, ()) for x in operands))
        heavy = [
            n for n, _, called, line in rows if "lapack" in line or any(map(has_lapack, called))
        ]
        count += len(heavy)
        pairs += [(a, b) for a, b in itertools.combinations(heavy, 2) if a not in waits[b]]
    return pairs, count


def _params():
    shapes = {"a": (3, 4), "b": (4, 5), "c": (5, 2)}
    keys = jax.random.split(jax.random.key(0), len(shapes))
    pairs = zip(keys, shapes.items(), strict=True)
    return {name: jax.random.normal(key, shape) for key, (name, shape) in pairs}


@pytest.mark.parametrize(
    "tx",
    [
        fnopt.scale_by_shampoo(),
        fnopt.scale_by_soap(),
        fnopt.scale_by_kl_shampoo(),
        fnopt.scale_by_galore(2, 1),
    ],
    ids=lambda tx: type(tx).__name__,
)
def test_matrix_methods_factorize_in_turn(tx):
    params = _params()
    compiled = jax.jit(tx.update).lower(params, tx.init(params), params).compile()
    pairs, count = _factorizations_side_by_side(compiled.as_text())
    assert count >= 3
    assert not pairs


@pytest.mark.parametrize("eigenbasis", [False, True])
def test_kfac_factorizes_in_turn(eigenbasis):
    params, x = _params(), jnp.ones((2, 3))

    def model(params, x):
        return jnp.tanh(jnp.tanh(x @ params["a"]) @ params["b"]) @ params["c"]

    spec = KroneckerSpec(model, lambda y, x: jnp.sum(y * y), eigenbasis=eigenbasis)

    def refreshed(params, x, key):
        model = KroneckerModel(spec, params, x)
        factors = model.factors(model.outputs(params), key)
        return (model.bases if eigenbasis else model.inverses)(factors, jnp.ones(()))

    text = jax.jit(refreshed).lower(params, x, jax.random.key(0)).compile().as_text()
    pairs, count = _factorizations_side_by_side(text)
    assert count >= 4
    assert not pairs


def test_the_reader_sees_what_is_side_by_side():
    def two(x, y):
        return jnp.linalg.cholesky(x), jnp.linalg.cholesky(y)

    text = jax.jit(two).lower(jnp.eye(2), jnp.eye(3)).compile().as_text()
    pairs, count = _factorizations_side_by_side(text)
    assert count == 2
    assert len(pairs) == 1


def test_after_changes_nothing():
    x = jnp.asarray([-0.0, jnp.nan, jnp.inf, 1.0])
    out = wait_for(x, {"nan": jnp.full((2, 2), jnp.nan), "none": jnp.zeros((0, 3))})
    np.testing.assert_array_equal(out, x)
    np.testing.assert_array_equal(jnp.signbit(out), jnp.signbit(x))
    assert wait_for(x, jnp.zeros((0,))) is x

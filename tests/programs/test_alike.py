import functools
import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnopt.programs import alike_together, jaxprs

N = 30
DATA = np.random.default_rng(0).standard_normal((N, 3)).astype(np.float32)
X = jnp.asarray(np.random.default_rng(1).standard_normal(6 * N), jnp.float32)


def scalars(x):
    return [x[i] for i in range(N)]


def vectors(x):
    return jnp.split(x[: 3 * N], N)


def of_turns(x):
    """Leaves of two shapes that take turns, as weights and biases do."""
    leaves = jax.lax.split(x, (4, 2) * N)
    return [leaf.reshape(2, 2) for leaf in leaves[::2]], leaves[1::2]


def each_with_its_data(x):
    return jnp.stack([jnp.exp(-a * row) - row[0] for a, row in zip(scalars(x), DATA, strict=True)])


def each_with_a_number(x):
    return jnp.concatenate([jnp.sin(i * v + 1) for i, v in enumerate(vectors(x))])


def neighbours(x):
    v = scalars(x)
    return jnp.stack([a * b - jnp.cos(b) for a, b in zip(v[1:], v[:-1], strict=True)])


def products(x):
    weights, biases = of_turns(x)
    return jnp.concatenate([jnp.tanh(w @ b + 1) for w, b in zip(weights, biases, strict=True)])


def in_turns(x):
    weights, biases = of_turns(x)
    pairs = zip(weights, biases, strict=True)
    return jnp.concatenate([part for w, b in pairs for part in (w.ravel() ** 2, jnp.sin(b))])


def some_alone(x):
    parts = [jnp.exp(v) * 2 for v in vectors(x)]
    return jnp.concatenate([*parts, jnp.cumsum(x[:4]), parts[3] * parts[5]])


def summed(x):
    terms = [jnp.sum(v**2) * a for v, a in zip(vectors(x), scalars(x), strict=True)]
    return functools.reduce(operator.add, terms, 0.0)


def summed_with_others(x):
    total, each = jnp.sum(x), vectors(x)
    for v in each:
        total = jnp.sum(jnp.tanh(v)) + total
    return total * each[2]


def jitted(x):
    one = jax.jit(lambda v: jnp.where(v > 0, v, jnp.expm1(v)))
    return jnp.stack([one(2 * one(v)) for v in vectors(x)], axis=1)


def backwards(x):
    return jnp.stack([jnp.sin(v) * 3 - 1 for v in reversed(scalars(x))])


def activated(x):
    return jnp.stack([jax.nn.softplus(jax.nn.relu(v - 0.1)) for v in vectors(x)])


def through_rules(x):
    """Halves that differ in nothing but in the derivative that they are given."""
    return jnp.stack([scaled(i % 2 + 1.0)(v) for i, v in enumerate(vectors(x))])


def scaled(k):
    @jax.custom_jvp
    def fn(x):
        return jnp.round(x)

    fn.defjvp(lambda x, dx: (fn(*x), k * x[0] * dx[0]))
    return fn


def polynomials(x):
    return jnp.stack([1 + v + v**2 + v**3 + v**4 + v**5 for v in vectors(x)])


FUNCTIONS = [
    activated,
    through_rules,
    polynomials,
    each_with_its_data,
    each_with_a_number,
    neighbours,
    products,
    in_turns,
    some_alone,
    summed,
    summed_with_others,
    jitted,
    backwards,
]


def size(fn):
    return jaxprs.program_size(jax.make_jaxpr(lambda x: fn(x))(X).jaxpr)


def close(got, want):
    compare = functools.partial(np.testing.assert_allclose, rtol=2e-6, atol=2e-6, strict=True)
    jax.tree.map(compare, got, want)


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.__name__)
def test_it_gives_what_the_function_gives_in_fewer_operations(fn):
    together = alike_together(fn, X)
    close(jax.jit(together)(X), jax.jit(fn)(X))
    assert size(together) < 0.5 * size(fn)


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.__name__)
def test_its_derivatives_are_those_of_the_function(fn):
    def derivatives(fn):
        def flat(x):
            return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(fn(x))])

        _, curved = jax.jvp(lambda x: jax.jvp(flat, (x,), (X,))[1], (X,), (X,))
        value, pull = jax.vjp(flat, X)
        return curved, pull(jnp.cos(jnp.arange(value.size, dtype=value.dtype)))[0]

    close(
        jax.jit(lambda: derivatives(alike_together(fn, X)))(),
        jax.jit(lambda: derivatives(fn))(),
    )


@jax.custom_batching.custom_vmap
def other_in_a_batch(v):
    return jnp.sin(v)


other_in_a_batch.def_vmap(lambda k, is_batched, v: (jnp.cos(v), True))


def on_the_host(v):
    return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(v.shape, v.dtype), v)


@pytest.mark.parametrize("fn", [other_in_a_batch, on_the_host], ids=["rule", "callback"])
def test_what_a_batch_would_change_is_left_alone_inside_of_a_rule_too(fn):
    ruled = jax.custom_jvp(fn)
    ruled.defjvp(lambda point, tangent: (ruled(point[0]), jnp.cos(point[0]) * tangent[0]))
    ruled = jax.jit(ruled)  # whose program is one for all

    def more(v):  # of which most can be done at once
        for _ in range(8):
            v = jnp.sin(v) * 2
        return v

    def each(x):
        return jnp.stack([ruled(more(v)) for v in vectors(x)])

    together = alike_together(each, X)
    assert together is not each
    close(together(X), each(X))


@pytest.mark.parametrize("impl", ["rbg", "unsafe_rbg"])
def test_random_numbers_stay_those_of_their_keys(impl):
    def each(x):
        keys = [jax.random.fold_in(jax.random.key(0, impl=impl), i) for i in range(N)]
        noise = [jax.random.uniform(jax.random.split(key)[0], (3,)) for key in keys]
        return jnp.stack([jnp.sin(v) * e for v, e in zip(vectors(x), noise, strict=True)])

    together = alike_together(each, X)
    assert together is not each
    close(together(X), each(X))


def call_in(fn):
    """The equation that calls `alike_together` of a function of an array and of data."""
    closed = jax.make_jaxpr(lambda data: alike_together(lambda x: fn(x, data), X)(X))(DATA)
    return closed.jaxpr.eqns[-1]


def test_what_does_not_depend_on_the_argument_is_computed_ahead():
    def fn(x, data):
        rows = [jnp.sin(row) * 2 for row in data]
        return jnp.stack([row * a for row, a in zip(rows, scalars(x), strict=True)])

    inside = [eqn.primitive.name for eqn in jaxprs.equations(jaxprs.called(call_in(fn)).jaxpr)]
    assert inside.count("mul") == 1
    assert "sin" not in inside


def test_what_would_be_large_is_made_anew():
    def fn(x, data):
        table = jnp.broadcast_to(data[0], (3000, 3)) + 1
        alike = jnp.stack(
            [jnp.sum(jnp.sin(row * v)) for row, v in zip(data, vectors(x), strict=True)]
        )
        return alike + jnp.max(table * x[0])

    sizes = [var.aval.size for var in call_in(fn).invars]
    assert sorted(sizes)[-1] == X.size
    assert 3 in sizes
    close(alike_together(lambda x: fn(x, DATA), X)(X), fn(X, DATA))


def test_what_is_made_of_nothing_is_made_once():
    def fn(x):
        return jnp.stack([jnp.sum(jnp.arange(3.0) * v) for v in vectors(x)])

    together = alike_together(fn, X)
    close(together(X), fn(X))
    assert str(jax.make_jaxpr(together)(X)).count("iota[") <= 1


def network(x):
    h = jnp.ones(2)
    for w, b in zip(*of_turns(x), strict=True):
        h = jnp.tanh(w @ h + b)
    return h


def leaves_of_a_tree(x):
    return [jnp.sin(v) * 2 for v in vectors(x)]


def large(x):
    return jnp.stack([jnp.sum(jnp.sin(jnp.full(5000, 2.0) * v)) for v in scalars(x)])


def from_the_host(x):
    shape = jax.ShapeDtypeStruct((3,), x.dtype)
    return jnp.stack([2 * jax.pure_callback(lambda v: v, shape, v) for v in vectors(x)])


def shown(x):
    jax.debug.callback(lambda v: None, x[0])
    return each_with_a_number(x)


@pytest.mark.parametrize("fn", [network, leaves_of_a_tree, large, from_the_host, shown, jnp.sin])
def test_a_function_in_which_little_is_alike_stays_as_it_is(fn):
    assert alike_together(fn, X) is fn


def test_numbers_keep_their_dtype():
    def fn(x):
        parts = [v.astype(jnp.bfloat16) * 2 for v in vectors(x)]
        return jnp.stack([part.astype(jnp.int32) << 1 for part in parts])

    got, want = alike_together(fn, X)(X), fn(X)
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)

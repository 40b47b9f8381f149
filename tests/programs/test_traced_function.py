from __future__ import annotations

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt.programs import TracedFunction, is_data, jit_call, trace_function
from fnopt.programs._calls import _cached_program
from fnopt.residuals import RobustLoss
from fnopt.solvers import gauss_newton

ONE = jnp.float32(1)
DATA = jnp.asarray([1.0, -2.0, 3.0])


def structure(fn, *args):
    """What decides whether a program is compiled again."""
    found = trace_function(fn, *(args or (ONE,)))
    assert found is not None
    return jax.tree.structure(found)


def branching(x):
    return jax.lax.cond(x > 0, jnp.sin, jnp.cos, x)


def looping(x):
    steps = jax.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * 2), (0, x))[1]
    total, _ = jax.lax.scan(lambda c, d: (c + d * x, c), x, DATA)
    return steps + total


def network(x):
    return jnp.sum(jax.nn.softplus(jax.nn.relu(x * DATA) @ jnp.outer(DATA, DATA)))


def numeric(x):
    noise = jax.random.normal(jax.random.key(3), (3,))
    return jnp.linalg.solve(jnp.eye(3) * (2 + x), noise)[::2] + jnp.sort(DATA)[:2]


def reducing(x):
    return jax.lax.reduce(x * DATA, jnp.float32(0), lambda a, b: a + 2 * b, (0,))


FUNCTIONS = [branching, looping, network, numeric]


@pytest.mark.parametrize("fn", FUNCTIONS)
def test_values_and_derivatives_are_those_of_the_function(fn):
    found = trace_function(fn, ONE)
    x = jnp.float32(0.7)
    for derived in (lambda f: f, jax.jacfwd, lambda f: jax.jacfwd(jax.jacfwd(f)), jax.jit):
        np.testing.assert_array_equal(derived(found)(x), derived(fn)(x))


@pytest.mark.parametrize("fn", [*FUNCTIONS, reducing])
def test_two_traces_of_a_function_are_equal(fn):
    assert structure(fn) == structure(lambda x: fn(x))
    assert hash(structure(fn)) == hash(structure(lambda x: fn(x)))


def test_different_functions_are_unequal():
    functions = [
        *FUNCTIONS,
        lambda x: x,
        lambda x: -x,
        lambda x: (x,),
        lambda x: {"a": x},
        lambda x: x * 0.0,
        lambda x: x * -0.0,
        lambda x: x * np.float32("nan"),
        lambda x: x**2,
        lambda x: x**3,
        lambda x: x - x * 2,
        lambda x: x * 2 - x,
        lambda x: jax.lax.cond(x > 0, jnp.cos, jnp.sin, x),
        lambda x: jax.lax.fori_loop(0, 3, lambda i, c: c * x, x),
        lambda x: jax.lax.fori_loop(0, 4, lambda i, c: c * x, x),
        lambda x: jnp.zeros(2) + x,
        lambda x: jnp.zeros(3) + x,
    ]
    assert len({structure(fn) for fn in functions}) == len(functions)


def test_types_and_weak_types_are_part_of_the_key():
    def same(x):
        return x

    kinds = (ONE, jnp.ones(1), jnp.bfloat16(1), 1.0)
    assert len({structure(same, x) for x in kinds}) == len(kinds)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, lambda f: jax.jit(jax.jit(f))])
def test_captured_arrays_are_leaves(wrap):
    def closing(data):
        return trace_function(wrap(lambda x: x * data), ONE)

    one, two = closing(DATA), closing(2 * DATA)
    assert jax.tree.structure(one) == jax.tree.structure(two)
    np.testing.assert_array_equal(jax.tree.leaves(two)[0], 2 * DATA)
    np.testing.assert_array_equal(two(ONE), 2 * DATA)


def test_changes_of_what_the_function_reads_are_seen():
    table, array = {"scale": 1.0}, np.ones(2, np.float32)

    def f(x):
        return x * table["scale"] * array

    before = trace_function(f, ONE)
    table["scale"], array[:] = 2.0, 5.0
    after = trace_function(f, ONE)
    assert jax.tree.structure(before) != jax.tree.structure(after)
    assert after(ONE).tolist() == [10.0, 10.0]


def test_a_jitted_function_is_traced_once():
    traces = []

    @jax.jit
    def f(x):
        traces.append(x.shape)
        return x * DATA

    first, second = trace_function(f, DATA), trace_function(f, DATA)
    assert isinstance(first, TracedFunction)
    assert first.keyed == second.keyed
    np.testing.assert_array_equal(second(ONE + DATA), (ONE + DATA) * DATA)
    assert trace_function(f, ONE).returns.shape == DATA.shape
    assert traces == [DATA.shape, ONE.shape]


def test_a_jitted_function_of_a_static_argument_is_refused_as_by_jax():
    f = jax.jit(lambda x, n: x * n, static_argnums=1)
    with pytest.raises((TypeError, ValueError), match=r"[Nn]on-hashable"):
        trace_function(f, ONE, 2)


def with_slope(slope):
    @jax.custom_jvp
    def f(x):
        return 2 * x

    @f.defjvp
    def _(primals, tangents):
        return f(*primals), slope(primals[0]) * tangents[0]

    return f


def test_derivative_rules_are_compared_by_their_derivatives():
    same = structure(with_slope(lambda x: 3 * x))
    assert same == structure(with_slope(lambda x: 3 * x))
    assert same != structure(with_slope(lambda x: 4 * x))
    slope = with_slope(lambda x: 5 * x)  # another second derivative, and nothing else
    assert structure(with_slope(lambda x: 3 * x + 0 * slope(x))) != structure(
        with_slope(lambda x: 3 * x + 0 * with_slope(lambda x: 6 * x)(x))
    )


@jax.custom_vjp
def reverse_only(x):
    return x


reverse_only.defvjp(lambda x: (x, None), lambda _, g: (2 * g,))


@jax.custom_jvp
def with_symbolic_zeros(x):
    return x


with_symbolic_zeros.defjvp(lambda x, v: (x[0], 2 * x[0]), symbolic_zeros=True)


@pytest.mark.parametrize(
    "fn",
    [
        reverse_only,
        with_symbolic_zeros,
        with_slope(lambda x: DATA[0] * x),  # data that only the derivative reads
        lambda x: jax.lax.scan(lambda c, _: (jax.jit(lambda c: c * DATA[0])(c), None), x, length=2),
    ],
    ids=["custom_vjp", "symbolic zeros", "rule with data", "loop over jit with data"],
)
def test_functions_that_cannot_be_compared_have_no_value(fn):
    assert trace_function(fn, ONE) is None


def test_callbacks_are_compared_by_their_functions():
    shape = jax.ShapeDtypeStruct((), jnp.float32)
    sine, cosine = (
        structure(lambda x, f=f: jax.pure_callback(f, shape, x)) for f in (np.sin, np.cos)
    )
    assert sine == structure(lambda x: jax.pure_callback(np.sin, shape, x))
    assert sine != cosine


def test_a_callback_that_every_trace_creates_is_unequal():
    shape = jax.ShapeDtypeStruct((), jnp.float32)

    def fn(x):
        return jax.pure_callback(lambda x: 2 * x, shape, x)

    assert structure(fn) != structure(fn)


def test_a_function_that_captures_tracers_has_no_value():
    @jax.jit
    def outer(data):
        assert trace_function(lambda x: x * data, ONE) is None
        return data

    outer(ONE)


def test_precision_is_part_of_the_key(x64):
    del x64
    wide = structure(jnp.sin, 1.0)
    with jax.enable_x64(False):
        assert wide != structure(jnp.sin, 1.0)


def twice(fn, x, *, negative=False):
    y = fn(fn(x))
    return -y if negative else y


def test_equal_functions_share_a_compiled_program():
    _cached_program.cache_clear()
    for k in range(3):
        data = DATA + k
        got = jit_call(twice, trace_function(lambda x, d=data: x * d, DATA), DATA)
        np.testing.assert_array_equal(got, DATA * data * data)
    assert _cached_program.cache_info().misses == 1
    assert jit_call(twice, trace_function(lambda x: x, ONE), ONE, negative=True) == -1
    assert jit_call(twice, trace_function(lambda x: x, ONE), ONE) == 1
    assert _cached_program.cache_info().misses == 3


class mine(RobustLoss):
    def rho(self, z):
        return z


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        ({"a": 1.0, "b": (np.ones(2), None, True)}, True),
        (fnopt.levenberg_marquardt(ftol=1e-3), True),
        ([fnopt.residuals.huber(), fnopt.fixed()], True),
        (fnopt.tied(lambda p: p), False),
        (mine(), False),
        ((mine(), fnopt.residuals.huber()), False),
        ("huber", False),
        (jnp.sin, False),
    ],
)
def test_is_data(tree, expected):
    assert is_data(tree) is expected


def test_arguments_are_converted_to_the_traced_types():
    found = trace_function(lambda x: x * 2, jnp.bfloat16(1))
    assert isinstance(found, TracedFunction)
    assert found(1.0).dtype == jnp.bfloat16


def test_fits_follow_what_changes_and_compile_once():
    data = np.asarray([1.0, 2.0, 3.0], np.float32)
    held = types.SimpleNamespace(shift=jnp.zeros(3))
    table = {"scale": jnp.ones(3)}

    def mean():
        # A function of the same code, made anew in every call, as in a loop over data sets.
        def residuals(p):
            return p[0] * jnp.ones(3) - data * table["scale"] - held.shift

        return float(fnopt.least_squares(residuals, jnp.ones(1), solver=gauss_newton()).params[0])

    _cached_program.cache_clear()
    assert mean() == pytest.approx(2)
    data[:] = 7  # in place
    assert mean() == pytest.approx(7)
    table["scale"] = 2 * jnp.ones(3)
    assert mean() == pytest.approx(14)
    held.shift = jnp.ones(3)
    assert mean() == pytest.approx(15)
    assert _cached_program.cache_info().misses == 1

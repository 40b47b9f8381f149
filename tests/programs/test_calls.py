from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt.programs import trace_and_call
from fnopt.programs._calls import _cached_program


@pytest.fixture
def compilations():
    """How many programs were compiled since the test began."""
    _cached_program.cache_clear()
    return lambda: _cached_program.cache_info().misses


def test_other_data_of_the_same_shapes_need_no_compilation(compilations):
    for k in range(3):
        data, shift = np.arange(3.0, dtype=np.float32) + k, jnp.float32(k)
        got = trace_and_call(lambda x, d=data, s=shift: {"y": x * d + s}, jnp.float32(2))
        np.testing.assert_array_equal(got["y"], 2 * data + k)
    assert compilations() == 1


def test_every_shape_is_a_program_of_the_bounded_cache(compilations):
    for n in (2, 3, 2):
        assert float(trace_and_call(lambda x: jnp.prod(x + 1), jnp.ones(n))) == 2**n
    assert compilations() == 2


def test_data_in_loops_and_derivatives_are_arguments(compilations):
    for k in range(2):
        data = jnp.arange(3.0) + k

        def f(x, data=data):
            slope = jax.grad(lambda x: jnp.sum(jnp.sin(data * x)))
            return jax.lax.fori_loop(0, 2, lambda _, x: x - slope(x), x)

        np.testing.assert_allclose(trace_and_call(f, jnp.float32(1)), f(jnp.float32(1)), rtol=1e-5)
    assert compilations() == 1


def test_changes_of_what_the_function_reads_are_seen(compilations):
    table = {"scale": 1.0}
    array = np.ones(2, np.float32)

    def f(x):
        return x * table["scale"] * array

    assert trace_and_call(f, jnp.float32(1)).tolist() == [1.0, 1.0]
    table["scale"] = 2.0
    assert trace_and_call(f, jnp.float32(1)).tolist() == [2.0, 2.0]
    array[:] = 5.0
    assert trace_and_call(f, jnp.float32(1)).tolist() == [10.0, 10.0]
    assert compilations() == 2  # a Python number is part of the program, an array is not


@pytest.mark.parametrize("name", ["jit", "grad", "vmap"])
def test_calls_inside_transformations_are_plain_calls(name):
    x = jnp.ones(2) if name == "vmap" else jnp.float32(1)

    def inner(x):
        return trace_and_call(lambda y: jnp.sin(y) * x, x)

    wrap = getattr(jax, name)
    np.testing.assert_allclose(wrap(inner)(x), wrap(lambda x: jnp.sin(x) * x)(x), rtol=1e-6)


def test_a_call_inside_a_trace_compiles_nothing(compilations):
    closed = jax.make_jaxpr(lambda: trace_and_call(jnp.sin, jnp.float32(1)))()
    assert "sin" in str(closed)
    assert compilations() == 0


def test_every_call_runs_its_own_callback():
    seen = {"a": [], "b": []}
    for name, values in seen.items():

        def f(x, values=values):
            jax.debug.callback(lambda v: values.append(float(v)), x)
            return x + 1

        assert float(trace_and_call(f, jnp.float32(len(name)))) == 2.0
    jax.effects_barrier()
    assert seen == {"a": [1.0], "b": [1.0]}


def test_equal_programs_of_other_trees_and_types(compilations):
    one = jnp.float32(1)
    assert trace_and_call(lambda x: {"a": x}, one) == {"a": 1}
    assert trace_and_call(lambda x: (x,), one) == (1,)
    assert compilations() == 1
    weak = trace_and_call(lambda x: x, 1.0)
    assert weak.weak_type
    assert not trace_and_call(lambda x: x, one).weak_type


def test_functions_that_a_trace_creates_for_reductions_are_compared(compilations):
    for k in range(2):
        data = jnp.arange(3.0) + k

        def f(x, data=data):
            return jax.lax.reduce(x * data, jnp.float32(0), lambda a, b: jnp.maximum(a, b), (0,))

        assert float(trace_and_call(f, jnp.float32(2))) == 4 + 2 * k
    assert compilations() == 1


def test_precision_is_part_of_the_program():
    def f(x):
        return jnp.asarray(x) / 3

    with jax.enable_x64(True):
        assert trace_and_call(f, 1.0).dtype == jnp.float64
    assert trace_and_call(f, 1.0).dtype == jnp.float32


def test_errors_come_through():
    with pytest.raises(TypeError, match="my message"):
        trace_and_call(_raises, 1.0)


def _raises(x):
    raise TypeError("my message")


def test_without_compilation():
    with jax.disable_jit():
        assert float(trace_and_call(lambda x: x + 1, jnp.float32(1))) == 2


@jax.custom_vjp
def halved(x):
    return x / 2


halved.defvjp(lambda x: (x / 2, None), lambda _, g: (g / 2,))


def test_derivative_rules_are_no_part_of_an_evaluated_program(compilations):
    for k in range(2):

        @jax.custom_jvp
        def doubled(x):
            return 2 * x

        doubled.defjvp(lambda x, v, k=k: (2 * x[0], k * v[0]))
        got = trace_and_call(lambda x, f=doubled: f(x) + halved(x), jnp.float32(k))
        assert float(got) == 2.5 * k
    assert compilations() == 1


def test_data_that_only_a_loop_reads_are_part_of_the_key(compilations):
    # Within a loop a function under jit may close over arrays, which are no arguments then.
    for k in (1, 2, 1):
        data = jnp.full(2, k, jnp.float32)

        def f(x, data=data):
            body = jax.jit(lambda x: x * data)
            return jax.lax.fori_loop(0, 2, lambda _, x: body(x), x)

        np.testing.assert_array_equal(trace_and_call(f, jnp.ones(2)), data * data)
    assert compilations() <= 2


def test_old_names_warn_and_work():
    with pytest.warns(DeprecationWarning, match="write fnopt.programs.trace_and_call"):
        assert fnopt.programs.call_compiled is trace_and_call
    with pytest.raises(AttributeError, match="no attribute 'other'"):
        _ = fnopt.programs.other

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from fnopt.costs import cost
from tests.costs.cost_models import f32

X = f32(8, 8)
ONE = 2 * 8**3


def counter(start, test, step):
    """A loop with one product an iteration, as people write it."""

    def fn(x, *bounds):
        def go_on(carry):
            return test(carry[0], *bounds)

        def body(carry):
            return step(carry[0]), carry[1] @ carry[1]

        return lax.while_loop(go_on, body, (start, x))[1]

    return fn


@pytest.mark.parametrize(
    ("start", "test", "step", "trips"),
    [
        (0, lambda i: i < 10, lambda i: i + 1, 10),
        (0, lambda i: i <= 10, lambda i: i + 1, 11),
        (3, lambda i: i < 10, lambda i: 2 + i, 4),
        (10, lambda i: i > 0, lambda i: i - 1, 10),
        (10, lambda i: i >= 0, lambda i: i - 3, 4),
        (10, lambda i: i >= 0, lambda i: i + -5, 3),
        (5, lambda i: i < 5, lambda i: i + 1, 0),
        (0, lambda i: i != 10, lambda i: i + 2, 5),
        (0, lambda i: (i < 10) & (2 * i <= 13), lambda i: (i + 2) - 1, 7),
        (0, lambda i: i.astype(jnp.int16) < jnp.int16(4), lambda i: i + 1, 4),
        (jnp.int32(1), lambda i: i < 2 * 3, lambda i: i + jnp.int32(1), 5),
    ],
)
def test_a_counter_with_known_bounds_is_understood(start, test, step, trips):
    c = cost(counter(start, test, step))(X)
    assert [loop.trips for loop in c.loops] == [trips]
    assert c.matmul_flops == trips * ONE
    assert c.exact


@pytest.mark.parametrize(
    ("start", "test", "step"),
    [
        (0, lambda i: i < 10, lambda i: i * 2),
        (0, lambda i: i < 10, lambda i: i - 1),
        (0, lambda i: i != 10, lambda i: i + 3),
        (1.0, lambda i: i < 10, lambda i: i * 1.5),
        (0, lambda i: i * i < 50, lambda i: i + 1),
    ],
)
def test_anything_else_is_unknown_and_says_so(start, test, step):
    c = cost(counter(start, test, step))(X)
    assert [loop.trips for loop in c.loops] == [None]
    assert c.matmul_flops == ONE
    (unknown,) = c.unknown
    assert (unknown.name, unknown.count) == ("while", 1)
    assert "ONE iteration is counted; pass trip_counts={'while': n}" in str(c)


def test_whole_numbers_among_the_arguments_are_bounds():
    def fn(x, n):
        return lax.fori_loop(0, n + 1, lambda i, x: x @ x, x)

    assert cost(fn)(X, 6).matmul_flops == 7 * ONE
    assert cost(fn)(X, jnp.int32(6)).matmul_flops == 7 * ONE
    assert not cost(fn)(X, jax.ShapeDtypeStruct((), jnp.int32)).exact


def test_fori_loops_with_fixed_bounds_in_any_nesting():
    def fn(x, n):
        def inner(i, x):
            return lax.fori_loop(0, n, lambda i, x: x @ x, x)

        x = lax.fori_loop(2, 5, inner, x)
        return lax.scan(lambda x, _: (inner(0, x), None), x, length=4)[0]

    c = cost(fn)(X, 6)
    assert c.matmul_flops == (3 + 4) * 6 * ONE
    assert [loop.trips for loop in c.loops] == [3, 6, 4, 6]
    assert c.exact


def test_the_condition_is_evaluated_once_more_than_the_body():
    def fn(x):
        return lax.while_loop(
            lambda c: c[0] < 5 + 0 * jnp.sum(c[1] @ c[1]).astype(int),
            lambda c: (c[0] + 1, c[1]),
            (0, x),
        )[1]

    assert cost(fn, trip_counts=5)(X).matmul_flops == 6 * ONE


def two_loops(x):
    def until(limit, x):
        return lax.while_loop(lambda x: jnp.sum(x) < limit, lambda x: x @ x, x)

    with jax.named_scope("first"):
        x = until(1.0, x)
    return until(3.0, until(2.0, x))


def test_trip_counts_can_be_given():
    assert cost(two_loops, trip_counts=4)(X).matmul_flops == 12 * ONE
    named = {"first/while": 2, "while": 3, "while_2": 5}
    c = cost(two_loops, trip_counts=named)(X)
    assert c.matmul_flops == 10 * ONE
    assert c.exact
    assert {loop.name: loop.trips for loop in c.loops} == named
    some = cost(two_loops, trip_counts={"while": 3})(X)
    assert [u.name for u in some.unknown] == ["first/while", "while_2"]


def test_a_name_goes_before_what_is_known():
    fn = counter(0, lambda i: i < 10, lambda i: i + 1)
    assert cost(fn, trip_counts={"while": 3})(X).matmul_flops == 3 * ONE
    assert cost(fn, trip_counts=3)(X).matmul_flops == 10 * ONE


def test_unknown_loops_inside_scans_count_once_an_iteration():
    c = cost(lambda x: lax.scan(lambda x, _: (two_loops(x), None), x, length=7)[0])(X)
    assert c.matmul_flops == 7 * 3 * ONE
    assert {u.count for u in c.unknown} == {7}


def test_loops_that_never_run_cost_nothing():
    c = cost(lambda x: lax.scan(lambda x, _: (two_loops(x), None), x, length=0)[0])(X)
    assert (c.flops, c.exact) == (0, True)


def test_trip_counts_are_checked():
    with pytest.raises(ValueError, match=r"the unknown key 'wile', .* loops: \['first/while', "):
        cost(two_loops, trip_counts={"wile": 3})(X)
    with pytest.raises(ValueError, match=r"trip_counts of 'while' is -1, expected an integer >= 0"):
        cost(two_loops, trip_counts={"while": -1})
    with pytest.raises(ValueError, match=r"trip_counts is 2.5, expected an integer"):
        cost(two_loops, trip_counts=2.5)


def test_the_compiler_counts_loop_bodies_once():
    def rnn(x):
        return lax.scan(lambda x, _: (x @ x, None), x, length=50)[0]

    c = cost(rnn, compile=True)(X)
    assert c.matmul_flops == 50 * ONE
    assert c.compiled.flops == pytest.approx(ONE, rel=0.02)
    assert "(2.0% of the total above); the compiler counts the body" in str(c)

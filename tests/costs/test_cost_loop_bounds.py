"""Loops that end by a count, or earlier: how often they run at most."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from fnopt.costs import cost, grad_cost
from tests.costs.cost_models import f32

X = f32(8, 8)
ONE = 2 * 8**3
LONGEST = 200

# A condition is a function `(xp, carry) -> bool`, of jax.numpy to count it and of NumPy to run it.


def integer(xp, x):
    return xp.asarray(x).astype(xp.int32)


NUMBERS = {
    "i": lambda xp, c: c["i"],
    "i + 1": lambda xp, c: c["i"] + 1,
    "2 * i - 3": lambda xp, c: 2 * c["i"] - 3,
    "50 - i": lambda xp, c: 50 - c["i"],
    "-i": lambda xp, c: -c["i"],
    "float(i)": lambda xp, c: xp.asarray(c["i"]).astype(xp.float32),
    "int8(i)": lambda xp, c: xp.asarray(c["i"]).astype(xp.int8),
    "j": lambda xp, c: integer(xp, c["j"]),
    "i + j": lambda xp, c: c["i"] + integer(xp, c["j"]),
    "max(i, j)": lambda xp, c: xp.maximum(c["i"], integer(xp, c["j"])),
    "min(i, 20)": lambda xp, c: xp.minimum(c["i"], 20),
    "where(e, i, j)": lambda xp, c: xp.where(c["e"] > 0.5, c["i"], integer(xp, c["j"])),
    "i * i": lambda xp, c: c["i"] * c["i"],
    "bound": lambda xp, c: c["n"],
    "min(bound, 9)": lambda xp, c: xp.minimum(c["n"], 9),
}
RELATIONS = ["less", "less_equal", "greater", "greater_equal", "not_equal", "equal"]


@st.composite
def comparison(draw):
    number, name = NUMBERS[draw(st.sampled_from(sorted(NUMBERS)))], draw(st.sampled_from(RELATIONS))
    bound, swapped = draw(st.integers(-30, 60)), draw(st.booleans())

    def holds(xp, c):
        sides = (number(xp, c), bound)
        return getattr(xp, name)(*(sides[::-1] if swapped else sides))

    return holds


def joined(parts):
    def both(a, b):
        return lambda xp, c: xp.logical_and(a(xp, c), b(xp, c))

    def either(a, b):
        return lambda xp, c: a(xp, c) | b(xp, c)

    def inverse(a):
        return lambda xp, c: xp.logical_not(a(xp, c))

    def chosen(a, b, d):
        return lambda xp, c: xp.where(a(xp, c), b(xp, c), d(xp, c))

    def differ(a):
        return lambda xp, c: a(xp, c) != xp.asarray(True)

    return st.one_of(
        st.builds(both, parts, parts),
        st.builds(both, parts, parts),
        st.builds(either, parts, parts),
        st.builds(inverse, parts),
        st.builds(chosen, parts, parts, parts),
        st.builds(differ, parts),
    )


OTHERS = st.sampled_from(
    [
        lambda xp, c: c["e"] > 0.01,
        lambda xp, c: c["go"],
        lambda xp, c: xp.asarray(True),
        lambda xp, c: xp.asarray(False),
    ]
)
CONDITIONS = st.recursive(st.one_of(comparison(), comparison(), OTHERS), joined, max_leaves=6)


def body(xp, c, step, stride, flag):
    return {
        "i": c["i"] + step,
        "j": xp.asarray(c["j"] + stride).astype(xp.int8),
        "e": c["e"] * xp.float32(0.8),
        "go": flag(xp, c),
        "n": c["n"],
    }


def executed(test, step, start):
    """The trips that NumPy makes; infinite if they are many."""
    with np.errstate(over="ignore"):
        carry = start
        for trips in range(LONGEST):
            if not test(np, carry):
                return trips
            carry = step(np, carry)
    return math.inf


def counted(test, step, start):
    def fn(start):
        return lax.while_loop(lambda c: jnp.asarray(test(jnp, c)), lambda c: step(jnp, c), start)

    known = {name: start[name] for name in ("i", "j", "go")}
    rest = {name: start[name] for name in ("e", "n")}
    (loop,) = cost(lambda rest: fn({**known, **rest}))(jax.eval_shape(lambda: rest)).loops
    return loop


@settings(max_examples=100, deadline=None)
@given(
    CONDITIONS,
    CONDITIONS,
    st.integers(-20, 40),
    st.integers(-3, 3),
    st.integers(-3, 3),
    st.booleans(),
    st.integers(-10, 30),
)
def test_a_bound_is_never_below_what_runs(test, flag, start, step, stride, go, bound):
    """Whatever the condition is, also where small numbers overflow."""
    carry = {
        "i": np.int32(start),
        "j": np.int8(7 * start % 100),
        "e": np.float32(1.0),
        "go": np.bool_(go),
        "n": np.int32(bound),
    }
    if not test(np, carry):  # few loops would begin at all
        ends, test = test, lambda xp, c: xp.logical_not(ends(xp, c))
    step = functools.partial(body, step=step, stride=stride, flag=flag)
    loop, real = counted(test, step, carry), executed(test, step, carry)
    if loop.trips is not None and min(loop.trips, real) < LONGEST:
        assert loop.trips >= real
        assert loop.at_most or loop.trips == real


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 40)), min_size=1, max_size=4),
    st.integers(1, 5),
    st.booleans(),
)
def test_it_is_exact_where_only_counters_decide(limits, step, up):
    def test(xp, c):
        count = c["i"] if up else -c["i"]
        holds = count < limits[0][1]
        for with_and, limit in limits[1:]:
            more = xp.logical_not(count >= limit)
            holds = xp.logical_and(holds, more) if with_and else xp.logical_or(holds, more)
        return holds

    carry = {"i": np.int32(0), "j": np.int8(0), "e": np.float32(1), "go": np.bool_(1)}
    carry["n"] = np.int32(0)
    change = step if up else -step
    step = functools.partial(body, step=change, stride=0, flag=lambda xp, c: c["go"])
    assert counted(test, step, carry)[1:] == (executed(test, step, carry), False)


def search(x, most=37, step=lambda i: i + 1, holds=jnp.logical_and):
    """An iteration that ends when it has converged, or after `most` steps."""

    def go_on(carry):
        error, i, _ = carry
        return holds(error > 1e-6, i < most)

    def body(carry):
        _, i, x = carry
        x = x @ x
        return jnp.max(x), step(i), x

    return lax.while_loop(go_on, body, (jnp.inf, 0, x))[2]


def flagged(x):
    """The same with a flag that the body sets."""

    def body(carry):
        done, i, x = carry
        x = x @ x
        return done | (jnp.max(x) < 1e-6) | (i + 1 >= 37), i + 1, x

    return lax.while_loop(lambda c: ~c[0], body, (False, 0, x))[2]


def with_cond(x):
    """The same with a choice in the condition, and a jitted step in the body."""

    @jax.jit
    def after(i):
        return i + 1

    def go_on(carry):
        return lax.cond(carry[0] < 37, lambda: jnp.max(carry[1]) > 1e-6, lambda: False)

    return lax.while_loop(go_on, lambda c: (after(c[0]), c[1] @ c[1]), (0, x))[1]


def accelerated(x):
    """Steps of one or two."""
    return search(x, step=lambda i: jnp.where(i % 2 == 0, i + 2, i + 1))


@pytest.mark.parametrize(
    "fn",
    [
        search,
        functools.partial(search, holds=lambda a, b: jnp.where(b, a, False)),
        functools.partial(search, holds=lambda a, b: ~(~b | ~a)),
        functools.partial(search, holds=lambda a, b: jnp.all(jnp.stack([a, b]))),
        functools.partial(search, most=jnp.minimum(X.shape[0] + 30, 37)),
        functools.partial(search, step=lambda i: (i.astype(jnp.uint8) + 1).astype(jnp.int32)),
        flagged,
        with_cond,
        accelerated,
    ],
)
def test_an_early_end_makes_a_bound(fn):
    c = cost(fn)(X)
    assert [(loop.trips, loop.at_most) for loop in c.loops] == [(37, True)]
    assert c.matmul_flops == 37 * ONE
    assert (c.exact, c.at_most) == (False, True)
    assert "total (at most)" in str(c)
    assert "at most: while is counted with its limit of 37 iterations" in str(c)


def test_batches_end_with_their_last_example():
    c = cost(jax.vmap(search))(f32(5, 8, 8))
    assert c.loops[0][1:] == (37, True)
    assert c.matmul_flops == 5 * 37 * ONE


def test_starts_and_bounds_may_themselves_be_bounded():
    def powers(first, last):
        return lax.fori_loop(first, last, lambda _, x: x @ x, jnp.ones((8, 8)))

    some = jax.ShapeDtypeStruct((4,), jnp.int32)
    clipped = jax.vmap(lambda n: powers(0, jnp.clip(n, 0, 9)))
    assert cost(clipped)(some).loops[0][1:] == (9, True)
    resumed = jax.vmap(lambda n: powers(jnp.clip(n, 3, 6), 9))
    assert cost(resumed)(some).loops[0][1:] == (6, True)
    from_anywhere = jax.vmap(lambda n: powers(jnp.minimum(n, 3), 9))
    assert cost(from_anywhere)(some).loops[0][1:] == (None, False)


def test_a_loop_within_loops_is_bounded_by_their_counters():
    def triangle(x):
        def row(i, x):
            return lax.fori_loop(0, i, lambda _, x: x @ x, x)

        return lax.fori_loop(0, 6, row, x)

    assert cost(triangle)(X).loops[1][1:] == (5, True)

    def outer(x, n):
        def step(carry):
            i, n, x = carry
            return i + 1, n, lax.fori_loop(i, n, lambda _, x: x @ x, x)

        return lax.while_loop(lambda c: c[0] < c[1], step, (0, n, x))

    assert [loop[1:] for loop in cost(outer)(X, 6).loops] == [(6, False), (6, True)]


def test_what_overflows_has_no_bound():
    def until(start, test, step):
        return cost(lambda: lax.while_loop(test, step, start))().loops[0].trips

    assert until(jnp.int8(0), lambda i: i <= 127, lambda i: i + 1) is None
    assert until(jnp.uint8(3), lambda i: i >= 0, lambda i: i - 1) is None
    assert until(jnp.uint8(3), lambda i: i > 0, lambda i: i - 1) == 3
    assert until(0, lambda i: i.astype(jnp.int8) < 127, lambda i: i + 1) == 127
    assert until(0, lambda i: i.astype(jnp.int8) <= 127, lambda i: i + 1) is None
    assert until(0.0, lambda t: t < 2.0**25, lambda t: t + 1) is None  # stands still at 2 ** 24
    assert until(0.0, lambda t: t < 10.5, lambda t: t + 1) == 11
    most = jnp.iinfo(jnp.int32).max  # "without a limit", as in jax.random.poisson
    assert until(0, lambda i: i < most, lambda i: i + 1) is None


def test_given_counts_go_before_bounds():
    assert cost(search, trip_counts={"while": 50})(X).matmul_flops == 50 * ONE
    few = cost(search, trip_counts=5)(X)
    assert (few.matmul_flops, few.exact) == (5 * ONE, True)
    many = cost(search, trip_counts=500)(X)
    assert (many.matmul_flops, many.at_most) == (37 * ONE, True)


def test_exact_bounded_and_incomplete_parts_are_told_apart():
    def fn(w, x):
        with jax.named_scope("solver"):
            y = lax.stop_gradient(search(x))
        with jax.named_scope("refine"):
            y = lax.while_loop(lambda y: jnp.max(y) > 1, lambda y: y @ y, y)
        with jax.named_scope("head"):
            return jnp.sum(y @ w)

    c = cost(fn)(X, X)
    assert c.inexact == {"solver": "at most", "refine": "incomplete"}
    assert (c.exact, c.at_most) == (False, False)
    names = [line.split("  ")[0] for line in str(c).splitlines()]
    assert [*names[2:5], names[6]] == [
        "solver (at most)",
        "refine (incomplete)",
        "head",
        "total (incomplete)",
    ]
    assert repr(c).endswith("parts=3, unknown=1)")
    known = cost(fn, trip_counts={"refine/while": 3})(X, X)
    assert known.inexact == {"solver": "at most"}
    assert repr(known).endswith("parts=3, at_most=True)")
    g = grad_cost(fn, trip_counts={"refine/while": 3})(X, X)
    assert (g.forward.at_most, g.backward.exact, g.exact, g.at_most) == (True, True, False, True)
    rows = [line.split("  ")[0] for line in str(g).splitlines()]
    assert {"forward (at most)", "backward", "total (at most)"} <= set(rows)
    assert (c + known).inexact == c.inexact

"""Patterns read from programs, against the nonzeros of dense Jacobians."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fnopt
from fnopt.jacobians import dependence

N = 12
D = np.diff(np.eye(N), 2, axis=0).astype(np.float32)
I = np.asarray([1, 3, 1])  # noqa: E741
X = jnp.linspace(0.5, 1.5, N)


def grid(x):
    return x.reshape(3, 4)


@jax.custom_jvp
def straight_through(x):
    return jnp.round(x)


straight_through.defjvp(lambda p, t: (straight_through(p[0]), t[0]))


@jax.custom_vjp
def reversible(x):
    return jnp.sin(x)


reversible.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (g * jnp.cos(x),))


def stencil(u):
    return (jnp.roll(grid(u), 1, 0) + grid(u) ** 2 - jnp.pad(grid(u), 1)[1:-1, 2:]).T


def cholesky(x):
    B = x.reshape(6, 2)
    return jnp.linalg.cholesky(jnp.einsum("bi,bj->bij", B, B) + np.eye(2, dtype=np.float32))


def recurrence(x):
    return jax.lax.scan(lambda c, v: (c * v, c + v), x[0], x[1:4])[1]


def filled(x):
    return jax.lax.fori_loop(0, 3, lambda i, y: y.at[i].set(y[i] * x[i + 1]), x)


def long_scan(x):
    return jax.lax.scan(lambda c, _: (jnp.sin(c + x), None), x, None, length=30_000)[0]


def while_loop(x):
    return jax.lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] * x), (0, x))[1]


def no_turns(x):
    return jax.lax.scan(lambda c, v: (c * v, v), x, x.reshape(N, 1)[:0])


def updated(x):
    x = jax.lax.dynamic_update_slice(x, x[:2] * x[2], (20,))
    return jnp.split(x, [3, 5])[1:]


def grouped_convolution(x):
    kernel = jnp.ones((4, 1, 2), x.dtype)
    options = {"rhs_dilation": (2,), "feature_group_count": 2}
    return jax.lax.conv_general_dilated(x.reshape(1, 2, 6), kernel, (2,), [(1, 0)], **options)


EXACT = {
    "stencil": stencil,
    "index": lambda x: jnp.sin(x[I]) * x[0],
    "set": lambda x: x.at[I].set(x[:3] ** 2),
    "add at": lambda x: x.at[I].add(x[5:8] ** 2),
    "take along": lambda x: jnp.take_along_axis(grid(x), np.asarray([[0], [1], [3]]), 1),
    "segments": lambda x: jax.ops.segment_sum(x, np.arange(N) % 3, 3),
    "out of bounds": lambda x: x.at[np.asarray([2, 50])].get(mode="fill", fill_value=0),
    "cumsum": lambda x: jnp.cumsum(grid(x), 1)[:, ::-1],
    "backwards": lambda x: jax.lax.cumsum(x, reverse=True),
    "convolve": lambda x: jnp.convolve(x, np.asarray([1.0, -2.0, 0.0, 1.0]), mode="same"),
    "groups of channels": grouped_convolution,
    "windows": lambda x: jax.lax.reduce_window(x, 0.0, jax.lax.add, (3,), (2,), "SAME"),
    "sparse matrix": lambda x: D @ x,
    "from the right": lambda x: grid(x) @ D[:4, :5],
    "where": lambda x: jnp.where(np.arange(N) > 5, x, x[::-1]),
    "gaps": lambda x: jax.lax.pad(x, jnp.float32(0), [(2, -3, 1)]),
    "scan": recurrence,
    "no turns": no_turns,
    "split and update": updated,
    "long scan": long_scan,
    "loop by index": filled,
    "while": while_loop,
    "branches": lambda x: jax.lax.cond(True, lambda y: y, lambda y: y[::-1], x),
    "checkpoint": lambda x: jax.checkpoint(lambda y: jnp.sin(y) * y[0])(x),
    "straight through": straight_through,
    "a tree": lambda x: {"a": x[1:] * x[0], "b": jnp.sum(x[:3])},
    "constant": lambda x: jnp.ones(2) * jax.lax.stop_gradient(x[0]),
    "complex": lambda x: jnp.exp(1j * x[:6].astype(jnp.complex64)),
}
COVERED = {
    "sort": jnp.sort,
    "by value": lambda x: x[jnp.argsort(x)[:2]],
    "where by value": lambda x: jnp.where(x > 1, x, x[::-1]),
    "largest": lambda x: jnp.max(grid(x), 1) * x[:3],
    "fft": lambda x: jnp.fft.rfft(grid(x)),
    "cholesky": cholesky,
    "solve": lambda x: jnp.linalg.solve(np.eye(3, dtype=np.float32) + 1, x[:3]),
    "product": lambda x: grid(x) @ grid(x).T,
    "branch by value": lambda x: jax.lax.cond(x[0] > 1, lambda y: y, lambda y: y[::-1], x),
}


def full(pattern, shape):
    P = np.zeros(shape, bool)
    P[pattern] = True
    return P


@pytest.fixture(scope="module")
def nonzeros():
    """Where the Jacobian of each function has entries at some point: all in one program."""
    cases = EXACT | COVERED
    dense = jax.jit(fnopt.jacobian(lambda x: [fn(x) for fn in cases.values()], form="matrix"))
    there = np.any([np.asarray(dense(x)) != 0 for x in (jnp.cos(5 * X), X + 0.3)], axis=0)
    sizes = [dense_size(jax.eval_shape(fn, X)) for fn in cases.values()]
    return dict(zip(cases, np.split(there, np.cumsum(sizes)[:-1]), strict=True))


def dense_size(outputs):
    return sum(a.size * (1 + jnp.iscomplexobj(a)) for a in jax.tree.leaves(outputs))


@pytest.mark.parametrize("name", [*EXACT, *COVERED])
def test_patterns_hold_all_entries(nonzeros, name):
    fn, want = EXACT.get(name) or COVERED[name], nonzeros[name]
    got = full(fnopt.sparsity_pattern(fn)(X), want.shape)
    assert not np.any(want & ~got)
    if name in EXACT:
        np.testing.assert_array_equal(got, want)


STEPS = [
    lambda x: jnp.pad(x[1:] * x[:-1], (0, 1)),
    lambda x: jnp.concatenate([x[::2], x[:2]]),
    lambda x: x + x[0],
    lambda x: jnp.cumsum(x),
    lambda x: x.at[-1].multiply(x[0]),
    lambda x: jnp.where(x > 0, x, jnp.roll(x, 1)),
    lambda x: jnp.where(np.arange(5) % 2 == 0, jnp.sin(x), 0),
    lambda x: jnp.flip(x) - x,
]


@settings(max_examples=8, deadline=None)
@given(st.lists(st.sampled_from(STEPS), min_size=1, max_size=4))
def test_programs_of_several_steps(steps):
    def fn(x):
        for step in steps:
            x = step(x)
        return x

    x = X[:5]
    dense = np.asarray(fnopt.jacobian(fn, form="matrix")(jnp.sin(7 * x)))
    assert not np.any((dense != 0) & ~full(fnopt.sparsity_pattern(fn)(x), dense.shape))


def test_reverse_mode_where_there_is_no_other():
    rows, cols = fnopt.sparsity_pattern(lambda x: reversible(x)[1:] - x[:-1])(X)
    i = np.arange(N - 1)
    np.testing.assert_array_equal(rows, np.repeat(i, 2))
    np.testing.assert_array_equal(cols, np.stack([i, i + 1], 1).ravel())


def test_a_loop_of_unknown_length_lets_all_through():
    def shifted(state):
        return state[0] + 1, state[1], *state[1:-1]

    def fn(x):
        zeros = (jnp.zeros(()),) * 40
        end = jax.lax.while_loop(lambda s: s[0] < 50, shifted, (0, x[0], *zeros))
        return jnp.stack(end[1:])

    rows, _ = fnopt.sparsity_pattern(fn)(X)
    assert set(rows.tolist()) == set(range(41))


def test_a_bundle_adjustment_has_its_blocks():
    cameras, points = np.asarray([0, 0, 1, 1, 2]), np.asarray([0, 1, 1, 2, 0])

    def reprojection(p):
        c, x = p["camera"][cameras], p["point"][points]
        y = jnp.cross(c[:, :3], x) + x
        return c[:, 3:] * y[:, :2] / y[:, 2:]

    p = {"camera": jnp.ones((3, 4)), "point": jnp.ones((3, 3))}
    want = np.zeros((5, 2, 21), bool)
    for k, (camera, point) in enumerate(zip(cameras, points, strict=True)):
        want[k, :, 4 * camera : 4 * camera + 4] = True
        want[k, :, 12 + 3 * point : 15 + 3 * point] = True
    got = full(fnopt.sparsity_pattern(reprojection)(p), (10, 21))
    np.testing.assert_array_equal(got, want.reshape(10, 21))


def test_what_is_traced_outside_is_unknown():
    def moved(x, i):
        return x[i] * x[np.asarray([0, 0])]

    known = fnopt.sparsity_pattern(moved)(X[:3], jnp.asarray([1, 2]))
    np.testing.assert_array_equal(known, [[0, 0, 1, 1], [0, 1, 0, 2]])
    found = []
    jax.jit(lambda x, i: found.append(fnopt.sparsity_pattern(moved)(x, i)))(X[:3], I[:2])
    np.testing.assert_array_equal(found[0], [[0, 0, 0, 1, 1, 1], [0, 1, 2, 0, 1, 2]])


def test_a_dense_one_that_is_too_large_says_why():
    with pytest.raises(
        ValueError, match=r"400000000 nonzeros in the Jacobian of shape \(20000, 20000\)"
    ):
        fnopt.sparsity_pattern(lambda x: x * jnp.sum(x))(jnp.ones(20_000))


@given(st.integers(0, 2**32 - 1))
def test_unions_are_those_of_python(seed):
    rng = np.random.default_rng(seed)
    sets = dependence.Sets(5)
    ids, plain = list(sets.inputs), [{i} for i in range(5)]
    ids, plain = [dependence.EMPTY, *ids], [set(), *plain]
    for _ in range(4):
        groups, which = rng.integers(0, 3, 6), rng.integers(0, len(ids), 6)
        found = sets.gather(groups, np.asarray(ids)[which], 3)
        ids += found.tolist()
        plain += [set().union(*(plain[k] for k in which[groups == g])) for g in range(3)]
    at, members = sets.members(np.asarray(ids))
    assert [set(members[at == k].tolist()) for k in range(len(ids))] == plain

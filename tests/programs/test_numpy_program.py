"""Programs that NumPy runs: each operation as XLA computes it, and when XLA takes over."""

from __future__ import annotations

import contextlib
import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback
from jax.extend.core import ClosedJaxpr

from fnopt.programs import tiered_call, trace_and_call
from fnopt.programs._numpy_program import NotInNumpyError, NumpyProgram, OverBudgetError
from fnopt.programs._numpy_rules import _ELEMENTWISE, _RULES
from fnopt.programs._tiers import TieredProgram, call_types

X = np.asarray([[0.5, -1.25, 0.75], [-0.25, 0.1, -0.9]], np.float32)
SPECIAL = np.asarray([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-30, 3.5, -2.5], np.float32)
INTEGERS = np.asarray([7, -7, 3, -2, 0], np.int32)
SQUARE = np.asarray([[2.0, 0.3, -0.1], [0.3, 1.5, 0.2], [-0.1, 0.2, 1.0]], np.float32)
FLAGS = np.asarray([[True, False, True], [False, False, True]])

KEY = jax.random.key(0)

UNARY = [
    *("neg", "abs", "sign", "square", "sqrt", "cbrt", "exp", "exp2", "expm1", "log", "log1p"),
    *("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh"),
    *("atanh", "floor", "ceil", "is_finite", "stop_gradient", "erf", "lgamma", "rsqrt", "logistic"),
]
BINARY = ["add", "sub", "mul", "div", "max", "min", "pow", "atan2", "nextafter", "rem"]
COMPARISONS = ["eq", "ne", "lt", "le", "gt", "ge"]


def program(fn, *args):
    closed, out = jax.make_jaxpr(fn, return_shape=True)(*args)
    return NumpyProgram(closed.jaxpr, closed.consts, jax.tree.structure(out))


def check(fn, *args, rtol=4e-6):
    """NumPy's results are those of XLA."""
    got, expected = program(fn, *args)(args), jax.jit(fn)(*args)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert (a.shape, a.dtype, a.weak_type) == (b.shape, b.dtype, b.weak_type)
        np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-6)


@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_array(name):
    fn = getattr(lax, name)
    check(lambda x, special: (fn(x), fn(special), fn(x[0, 0])), X, SPECIAL)


@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two_arrays(name):
    fn = getattr(lax, name)
    other = SPECIAL[::-1].copy()
    check(lambda x, a, b: (fn(x, x + 2), fn(a, b), fn(x[0, 0], x[0, 1])), X, SPECIAL, other)


@pytest.mark.parametrize("name", COMPARISONS)
def test_comparisons(name):
    fn = getattr(lax, name)
    check(lambda a, b, i: (fn(a, b), fn(i, i[::-1])), SPECIAL, SPECIAL[::-1].copy(), INTEGERS)


WHOLE = [
    lambda i: (i // 2, i % 3, lax.div(i, jnp.int32(2)), lax.rem(i, jnp.int32(3))),
    lambda i: (i & 3, i | 4, i ^ 1, ~i, i << 1, i >> 1, -i, abs(i), i**2, jnp.sum(i), jnp.max(i)),
    lambda i: (i.astype(jnp.float32), (i > 0) & (i < 5), ~(i > 0), jnp.cumsum(i), jnp.argsort(i)),
    lambda i: i[jnp.argmax(i)],
    lambda i: (lax.select_n(i % 2, i, -i), lax.select_n(i % 3, i, -i, 2 * i)),
]


@pytest.mark.parametrize("fn", WHOLE)
def test_whole_numbers(fn):
    check(fn, INTEGERS)


SHAPES = [
    lambda x, b: (x.T, x.reshape(6), x[None], x[:, :1], x[::-1, 1:], x[:, ::2], jnp.squeeze(x[:1])),
    lambda x, b: (jnp.broadcast_to(x[0], (4, 3)), jnp.broadcast_to(x[:, :1], (2, 5)), x[0, 0] + x),
    lambda x, b: (jnp.concatenate([x, x + 1]), jnp.stack([x, -x], 1), jnp.split(x, 3, axis=1)),
    lambda x, b: (jnp.pad(x, 1), lax.pad(x, 2.0, [(1, 0, 0), (0, -1, 0)]), jnp.eye(3) + x[0]),
    lambda x, b: (x.sum(), x.sum(0), x.prod(1), x.max(0), x.min(), b.any(0), b.all(), x[:0].sum()),
    lambda x, b: (x[:0].max(initial=-1.0), jnp.argmax(x, 1), jnp.sort(x, 1), jnp.flip(x)),
    lambda x, b: (jnp.cumsum(x, 1), jnp.cumprod(x, 0), lax.cummax(x), lax.cumsum(x, reverse=True)),
    lambda x, b: (jnp.where(b, x, -x), jnp.where(x[0, 0] > 0, x, -x), jnp.clip(x, -0.2, 0.2)),
    lambda x, b: (x.astype(jnp.int32), b.astype(jnp.float32), (4 * x).astype(jnp.int32)),
    lambda x, b: lax.bitcast_convert_type(x, jnp.int32),
    lambda x, b: [lax.dynamic_slice(x, (i, 1), (1, 2)) for i in (-1, 0, 1, 5)],
    lambda x, b: [lax.dynamic_update_slice(x, 0 * x[:1, :2], (i, i)) for i in (-3, 0, 9)],
    lambda x, b: (
        x.at[0].add(1.0),
        x[jnp.asarray([1, 0, 1])],
        jnp.take_along_axis(x, FLAGS[:1].astype(int), 0),
    ),
    lambda x, b: (x @ x.T, x[0] @ x[1], x @ x[0], x[0] @ x.T, jnp.einsum("ij,ik->ijk", x, x)),
    lambda x, b: (
        jnp.tensordot(x, x, 2),
        jax.vmap(jnp.dot)(x, x),
        jnp.einsum("ij,jk,il->kl", x, x.T, x),
        jnp.outer(x[0], x[1]),
    ),
    lambda x, b: (
        lax.complex(x, x) * lax.complex(x, -x),
        jnp.abs(lax.complex(x, x)),
        lax.complex(x, x).real,
        lax.convert_element_type(x, jnp.complex64),
        lax.clamp(-0.1, x, x + 1),
    ),
    lambda x, b: (x**2, x**3, (x + 2) ** -2, (x + 2) ** 0.5, x**0),
]


@pytest.mark.parametrize("fn", SHAPES)
def test_arrays(fn):
    check(fn, X, FLAGS)


def test_random_numbers():
    def fn(x):
        keys = jax.random.split(jax.random.key(3))
        return x + jax.random.normal(keys[0], x.shape), jax.random.bits(keys[1])

    check(fn, X)


LINEAR = [
    lambda a: (jnp.linalg.qr(a)[1], jnp.linalg.svd(a)[1], jnp.linalg.cholesky(a)),
    lambda a: (jnp.linalg.cholesky(-a), jnp.linalg.svd(a * jnp.nan), jnp.linalg.inv(a)),
    lambda a: jnp.linalg.qr(a, mode="raw"),
    lambda a: (jnp.linalg.solve(a, a[0]), jnp.linalg.eigvalsh(a)),
    lambda a: [
        lax.linalg.triangular_solve(
            a, a[:, :2], left_side=True, lower=lower, transpose_a=transpose, unit_diagonal=unit
        )
        for lower in (True, False)
        for transpose in (True, False)
        for unit in (True, False)
    ],
    lambda a: lax.linalg.triangular_solve(a * jnp.zeros((3, 1)), a[:, :1], left_side=True),
    lambda a: jax.vmap(lambda b: jnp.linalg.qr(b, mode="raw"))(jnp.stack([a, a + 1])),
    lambda a: jax.vmap(
        lambda b: lax.linalg.triangular_solve(b, b[:, :2], left_side=True, transpose_a=True)
    )(jnp.stack([a, a + 1])),
]


@pytest.mark.parametrize("fn", LINEAR)
def test_linear_algebra(fn):
    check(fn, SQUARE, rtol=2e-5)


def _newton(x):
    """A loop in a loop, a branch, a scan and a custom derivative."""

    def step(carry):
        i, x = carry
        x = lax.while_loop(lambda x: x > 10, lambda x: x / 2, x)
        x = lax.cond(x > 1, lambda x: 0.5 * (x + 2 / x), lambda x: x + 1, x)
        return i + 1, jax.nn.relu(x)

    total, rows = lax.scan(lambda c, row: (c + row, c * row), x, X[0], reverse=True)
    return lax.while_loop(lambda c: c[0] < 7, step, (0, x))[1], total, rows


@pytest.mark.parametrize("start", [100.0, 0.5, -3.0])
def test_control_flow(start):
    x = jnp.float32(start)
    check(_newton, x)
    check(lambda x: jax.jvp(lambda x: _newton(x)[1], (x,), (x,)), x)
    check(lambda i: lax.switch(i, [lambda: 1.0 * X, lambda: 2.0 * X, lambda: 3.0 * X]), INTEGERS[0])


def test_loops_that_are_mapped_over():
    check(jax.vmap(_newton), jnp.asarray([100.0, 0.5, -3.0]))


def test_what_stands_twice_is_computed_once():
    calls = []

    def count(x):
        calls.append(1)
        return np.sin(x)

    def fn(x):
        def host(x):
            return jax.pure_callback(count, x, x, vmap_method="sequential")

        return host(x) + 2 * host(x) + host(x * 2)

    program(fn, jnp.float32(1))([jnp.float32(1)])
    assert len(calls) == 2


def test_callbacks_see_numbers_in_their_order():
    seen = []

    def note(i, x):
        seen.append((int(i), float(x)))
        return np.float32(x + 1)

    def fn(x):
        def body(i, x):
            jax.debug.callback(lambda x: seen.append(float(x)), x)
            return io_callback(note, x, i, x, ordered=True)

        return lax.fori_loop(0, 2, body, x)

    run = program(fn, jnp.float32(3))
    assert float(run([jnp.float32(3)], budget=1)) == 5  # none is called twice, so it isn't ended
    assert seen == [3.0, (0, 3.0), 4.0, (1, 4.0)]


def test_a_callback_of_constants_runs_only_in_the_branch_that_is_taken():
    def refuse(x):
        raise RuntimeError("refused")

    def fn(x):
        kind = jax.ShapeDtypeStruct((), x.dtype)
        return lax.cond(x > 0, lambda: x + 1, lambda: jax.pure_callback(refuse, kind, 1.0))

    run = program(fn, jnp.float32(3))
    assert float(run([jnp.float32(3)])) == 4
    with pytest.raises(RuntimeError, match="refused"):
        run([jnp.float32(-3)])


def test_linear_solves_with_their_own_derivative():
    check(lambda b: lax.custom_linear_solve(lambda x: SQUARE @ x, b, lambda _, b: b @ SQUARE), X[0])


def test_every_rule_is_used_by_these_tests(monkeypatch):
    used = set()
    both = {**dict.fromkeys(_ELEMENTWISE, _ELEMENTWISE), **dict.fromkeys(_RULES, _RULES)}

    class Seen(dict):
        def get(self, name, default=None):
            if name in self:
                used.add(name)
            return super().get(name, default)

    for table in ("_ELEMENTWISE", "_RULES"):
        values = _ELEMENTWISE if table == "_ELEMENTWISE" else _RULES
        monkeypatch.setattr(f"fnopt.programs._numpy_rules.{table}", Seen(values))
    for name in UNARY:
        program(getattr(lax, name), X)
    for name in (*BINARY, *COMPARISONS):
        program(getattr(lax, name), X, X)
    for fns, args in ((WHOLE, [INTEGERS]), (SHAPES, [X, FLAGS]), (LINEAR, [SQUARE])):
        for fn in fns:
            program(fn, *args)
    program(lambda x: jax.grad(lambda x: _newton(x)[1])(x), X[0, 0])
    # Names of other releases of JAX, and of markers that pass a value on.
    assert set(both) - used <= {
        "copy",
        "copy_p",
        "name",
        "tap",
        "pvary",
        "reshape",
        "add_any",
        "cummin",
    }


@pytest.mark.parametrize(
    ("fn", "args"),
    [
        (lambda x: (lax.exp2(lax.complex(x, x)), lax.integer_pow(x, 70)), [X]),
        (lambda i: lax.integer_pow(i, 200), [np.asarray([1, -1], np.int8)]),
        (lambda x: lax.bitcast_convert_type(x, jnp.uint8), [np.float32(1)]),
        (lambda b: jnp.max(b, axis=1, initial=False), [np.zeros((2, 0), bool)]),
        (lambda a: jnp.linalg.svd(a, compute_uv=False), [np.stack([SQUARE, np.nan * SQUARE])]),
        (lambda x: 1 / lax.sign(x), [SPECIAL]),
    ],
)
def test_what_numpy_computes_otherwise_or_not_at_all(fn, args):
    check(fn, *args)


@pytest.mark.parametrize(
    ("fn", "args"),
    [
        (lambda x, unused: x + 1, [X, jnp.ones(3, jnp.bfloat16)]),
        (lambda x: x + lax.fori_loop(0, 10**9, lambda i, c: c * 0.5 + 1, 0.0)[None], [X]),
        (lambda x: x + jnp.sum(jnp.zeros((20_000, 20_000)) + 1), [X]),
        (
            lambda x: lax.scan(
                lambda k, _: (jax.random.split(k)[0], x), jax.random.key(0), None, 3
            ),
            [X],
        ),
    ],
)
def test_what_is_not_run_at_all_while_the_program_is_made(fn, args):
    jaxpr = jax.make_jaxpr(fn)(*args)
    with contextlib.suppress(NotInNumpyError):
        NumpyProgram(jaxpr.jaxpr, jaxpr.consts, None)


def test_the_first_data_of_a_program_are_not_kept():
    x = jnp.arange(12.0)
    reference = weakref.ref(x)
    trace_and_call(lambda x: x.sum() * 7.5, x)
    del x
    gc.collect()
    assert reference() is None


def test_options_that_are_equal_and_of_other_types_are_other_programs():
    assert tiered_call(_full, np.float32(3), value=2).dtype == np.int32
    assert tiered_call(_full, np.float32(3), value=2.0).dtype == np.float32


def _full(x, value):
    return jnp.full((2,), value, dtype=type(value)) + jnp.zeros_like(x, dtype=type(value))


def test_settings_are_read_in_every_call():
    x = jnp.float32(-1)
    assert jnp.isnan(tiered_call(jnp.log, x))
    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        tiered_call(jnp.log, x)


def test_a_mesh_of_one_device():
    mesh = jax.make_mesh((1,), ("d",), (jax.sharding.AxisType.Auto,))
    x = jax.device_put(X, jax.NamedSharding(mesh, jax.P("d", None)))
    assert float(tiered_call(jnp.sum, x)) == pytest.approx(X.sum())


def test_a_callback_returns_what_it_said():
    shape = jax.ShapeDtypeStruct((3,), np.float32)
    run = program(lambda x: jax.pure_callback(lambda x: np.float32(1), shape, x), X)
    with pytest.raises(ValueError, match=r"returned float32\[\], expected float32\[3\]"):
        run([X])


def test_results_share_no_memory_with_arrays_that_a_user_may_change():
    buffer = np.zeros(1024 + 16, np.float32)
    start = (-buffer.ctypes.data) % 64 // 4  # JAX takes over aligned arrays as they are
    x = buffer[start : start + 1024]
    out = program(lambda x: x.reshape(32, 32), x)([x])
    x[:] = 1
    assert not np.any(out)


@pytest.mark.parametrize(
    ("fn", "x"),
    [
        (lambda x: jnp.sum(jnp.outer(x, x)), np.ones(2**13, np.float32)),
        (lambda x: 2.0, X),  # of a weak type
        (lambda x: x.astype(jnp.bfloat16) + 1, X),
    ],
)
def test_what_numpy_does_not_run(fn, x):
    with pytest.raises(NotInNumpyError):
        program(fn, x)


def _long(x):
    return lax.fori_loop(0, 300, lambda _, x: jnp.cos(x), x)


def test_a_run_over_budget_ends():
    run = program(_long, X)
    with pytest.raises(OverBudgetError):
        run([X], budget=100)


def test_xla_takes_over_where_numpy_has_cost_as_much():
    call = TieredProgram(lambda x: _long(x), call_types([X]))
    expected = jax.jit(_long)(X)
    tiers = []
    for _ in range(40):
        np.testing.assert_allclose(call(X), expected, rtol=1e-5)
        tiers.append(call.compiled._cache_size())
    assert (tiers[0], tiers[-1]) == (0, 1)
    assert tiers == sorted(tiers)


def test_other_shapes_and_precisions_are_other_programs():
    def both(x):
        return tiered_call(jnp.cumsum, x)

    assert (both(X[0]).shape, both(X).shape) == ((3,), (6,))
    assert both(np.ones(2)).dtype == np.float32
    with jax.enable_x64(True):
        assert both(np.ones(2)).dtype == np.float64


def test_results_are_on_the_device_of_the_arguments():
    device = jax.devices()[-1]
    out = tiered_call(jnp.sum, jax.device_put(X, device))
    assert out.devices() == {device}
    assert tiered_call(jnp.sum, X).devices() == {jax.devices()[0]}


def test_jaxprs_that_close_over_arrays():
    closed = jax.make_jaxpr(lambda x: x @ jnp.asarray(X))(X.T)
    assert isinstance(closed, ClosedJaxpr)
    check(lambda x: x @ jnp.asarray(X), X.T.copy())

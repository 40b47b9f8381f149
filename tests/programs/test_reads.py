"""What functions read: no record is used again where anything of it may have changed."""

from __future__ import annotations

import functools
import math
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy import random as noise

import fnopt
from fnopt.programs import reads, recorded
from fnopt.programs._reads import UnseenError

X = jnp.float32(2)
factor, table, listed, settings = 3.0, np.asarray([1.0, 2.0], np.float32), [4.0], {"a": 5.0}
module = types.SimpleNamespace(constant=6.0)
model = math  # a module of a library, or one of the user's


def helper(x):
    return factor * x


@jax.jit
def jitted(x, power=2):
    return x**power


class Model:
    scale = 2.0

    def __call__(self, x):
        return self.scale * x


def by_factor(x):
    return factor * x


def by_helper(x):
    return helper(x) + jnp.exp(x)


def by_partial(x):
    return functools.partial(helper)(x)


def by_table(x):
    return jnp.sum(x * table)


def by_nested(x):
    return sum(jnp.sin(x) * a for a in (factor, 1.0))


def by_recursion(x, n=3):
    return x if n == 0 else math.pi * by_recursion(x, n - 1)


def by_jitted(x):
    return jitted(x) + np.float32(1)


def closing(a):
    return lambda x: a * x


SEEN = [
    by_factor,
    by_helper,
    by_table,
    by_nested,
    by_recursion,
    by_jitted,
    jitted,
    closing(2.0),
    closing(jnp.ones(3)),
    closing(np.ones(3)),
    functools.partial(by_recursion, n=2),
    jnp.sin,
]


@pytest.mark.parametrize("fn", SEEN)
def test_what_is_seen_whole_is_traced_once(fn):
    found = recorded(fn, X)
    assert found is not None
    assert recorded(fn, X) is found
    assert recorded(fn, jnp.float32(2)[None]) is not found
    np.testing.assert_array_equal(found(X), fn(X))


def test_a_closure_made_anew_over_the_same_is_the_same():
    a = jnp.ones(3)
    assert recorded(closing(a), X) is recorded(closing(a), X)
    assert recorded(closing(a), X) is not recorded(closing(jnp.ones(3)), X)
    assert recorded(closing(0.0), X) is not recorded(closing(-0.0), X)
    assert recorded(closing(1), X) is not recorded(closing(1.0), X)
    assert reads(closing(True)) != reads(closing(1))


def test_weak_types_and_trees_are_told_apart():
    assert recorded(closing(2.0), 1.0) is not recorded(closing(2.0), jnp.float32(1))
    assert recorded(lambda x: x, {"a": X}) is not recorded(lambda x: x, {"b": X})


def by_list(x):
    return listed[0] * x


def by_dict(x):
    return settings["a"] * x


def by_object(x):
    return module.constant * x


def by_noise(x):
    return np.random.standard_normal() * x


def by_imported_noise(x):
    return noise.standard_normal() * x


def by_import(x):
    from tests.programs import test_reads

    return test_reads.factor * x


def by_function_attribute(x):
    return by_function_attribute.scale * x


by_function_attribute.scale = 2.0


def by_name(x):
    return globals()["factor"] * x


def by_print(x):
    print(x.shape)
    return x


def counting():
    count = 0

    def fn(x):
        nonlocal count
        count += 1
        return count * x

    return fn


UNSEEN = [
    by_list,
    by_dict,
    by_object,
    by_noise,
    by_imported_noise,
    by_import,
    by_function_attribute,
    by_name,
    by_print,
    Model(),
    Model().__call__,
    closing(np.ones(2**14)),
]


@pytest.mark.parametrize("fn", UNSEEN)
def test_what_is_not_seen_is_traced_in_every_call(fn):
    first = recorded(fn, X)
    assert first is None or recorded(fn, X) is not first


def test_a_counter_counts_every_trace():
    fn = counting()
    values = [float(recorded(fn, X)(X)) for _ in range(3)]
    assert values == sorted(set(values))


@pytest.mark.parametrize(
    ("fn", "name", "value"),
    [
        (by_factor, "factor", 4.0),
        (by_factor, "factor", jnp.float32(4)),
        (by_nested, "factor", -3.0),
        (by_helper, "factor", 5.0),
        (by_helper, "helper", closing(7.0)),
        (by_partial, "helper", closing(7.0)),
        (by_table, "table", np.asarray([3.0, 4.0], np.float32)),
        (by_list, "listed", [7.0]),
        (by_object, "module", types.SimpleNamespace(constant=7.0)),
        (by_recursion, "math", types.SimpleNamespace(pi=3.0)),
        (by_jitted, "jitted", closing(9.0)),
    ],
)
def test_a_changed_global_is_seen(monkeypatch, fn, name, value):
    before = float(recorded(fn, X)(X))
    monkeypatch.setitem(globals(), name, value)
    after = float(recorded(fn, X)(X))
    assert after == pytest.approx(float(fn(X)), rel=1e-6)
    assert after != before


def test_changes_in_place_are_seen(monkeypatch):
    data = np.asarray([1.0, 2.0], np.float32)
    held = closing(data)
    assert recorded(held, X)(X).tolist() == [2, 4]
    data[0] = 5  # what the first record had is now something else
    assert recorded(held, X)(X).tolist() == [10, 4]
    assert recorded(closing(np.asarray([1.0, 2.0], np.float32)), X)(X).tolist() == [2, 4]
    monkeypatch.setitem(settings, "a", 7.0)
    assert float(recorded(by_dict, X)(X)) == 14
    monkeypatch.setattr(by_function_attribute, "scale", 7.0)
    assert float(recorded(by_function_attribute, X)(X)) == 14
    monkeypatch.setattr(by_recursion, "__defaults__", (0,))
    assert float(recorded(by_recursion, X)(X)) == 2
    method = Model()
    assert float(recorded(method, X)(X)) == 4
    method.scale = 7.0
    assert float(recorded(method, X)(X)) == 14


def test_settings_of_jax_are_seen():
    def wide(x):
        return jnp.sum(jnp.arange(2.0)) + jnp.zeros_like(x, shape=(), dtype=float)

    narrow = recorded(wide, X)
    with jax.enable_x64(True):
        assert recorded(wide, X).returns.dtype == jnp.float64
    assert recorded(wide, X) is narrow
    for other in (
        jax.default_matmul_precision("float32"),
        jax.numpy_dtype_promotion("standard"),
        jax.default_prng_impl("rbg"),
        jax.disable_jit(),
    ):
        with other:
            assert recorded(wide, X) is not narrow


def test_arguments_of_classes_are_traced_in_every_call():
    @jax.tree_util.register_pytree_node_class
    class Line:
        power = 1

        def __init__(self, a):
            self.a = a

        def __call__(self, x):
            return self.a * x**self.power

        def tree_flatten(self):
            return (self.a,), None

        @classmethod
        def tree_unflatten(cls, aux, children):
            return cls(*children)

    def call(line):
        return line(jnp.float32(3))

    line = Line(X)
    assert float(recorded(call, line)(line)) == 6
    Line.power = 2
    assert float(recorded(call, line)(line)) == 18


def test_traced_and_deleted_arrays_are_no_values():
    def loss(a):
        found = recorded(closing(a), X)
        return 0.0 * a if found is None else jnp.nan * a

    assert float(jax.grad(loss)(1.0)) == 0.0
    gone = jnp.ones(3)
    assert recorded(closing(gone), X) is not None
    gone.delete()
    with pytest.raises(UnseenError):
        reads(closing(gone))


def test_functions_of_libraries_that_were_replaced_are_seen(monkeypatch):
    def of_module(x):
        return jnp.exp(x) + jax.numpy.linalg.norm(x[None]) + math.pi

    before = float(recorded(of_module, X)(X))
    assert recorded(of_module, X) is recorded(of_module, X)
    for module, name in ((jnp, "exp"), (jnp.linalg, "norm")):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, lambda x: jnp.float32(0))
            assert float(recorded(of_module, X)(X)) != before
    with monkeypatch.context() as patch:
        patch.setattr(math, "pi", 3.0)
        assert float(recorded(of_module, X)(X)) != before
    assert float(recorded(of_module, X)(X)) == before


def with_module(held):
    """Functions that hold a module in a cell, in defaults, in an argument of `partial`."""

    def by_default(x, held=held):
        return x + held.random.standard_normal(3)

    def by_word(x, *, held=held):
        return x + held.random.standard_normal(3)

    def by_argument(held, x):
        return x + held.random.standard_normal(3)

    return (
        lambda x: x + held.random.standard_normal(3),
        lambda x: jnp.stack([x + held.random.standard_normal() for _ in range(3)]),
        by_default,
        by_word,
        functools.partial(by_argument, held),
    )


@pytest.mark.parametrize("fn", with_module(np))
def test_a_module_is_read_wherever_it_is_held(fn):
    with pytest.raises(UnseenError):
        reads(fn)


def test_a_member_of_a_module_in_a_cell_that_was_replaced_is_seen(monkeypatch):
    held = jnp
    fn = lambda x: held.exp(x)  # noqa: E731
    before = float(recorded(fn, X)(X))
    assert recorded(fn, X) is recorded(fn, X)
    monkeypatch.setattr(jnp, "exp", lambda x: jnp.float32(0))
    assert float(recorded(fn, X)(X)) != before


def test_one_value_under_another_name_is_seen(monkeypatch):
    def either(x):
        return x * len if "len" in held else x / factor

    held = ("len",)
    monkeypatch.setitem(globals(), "len", 3.0)
    before = reads(either)
    monkeypatch.delitem(globals(), "len")
    assert before != reads(either)


def test_modules_that_hold_each_other_are_read_once(monkeypatch):
    def of_modules(x):
        return jax.numpy.exp(x) + jax.numpy.linalg.norm(x[None])

    monkeypatch.setattr(jnp.linalg, "numpy", jax.numpy, raising=False)
    assert reads(of_modules) == reads(of_modules)


def test_whatever_a_function_is_made_of_is_read_anew():
    fn = closing(2.0)
    assert float(recorded(fn, X)(X)) == 4
    fn.__code__ = (lambda a: lambda x: a - x)(1).__code__
    assert float(recorded(fn, X)(X)) == 0
    fn.__closure__[0].cell_contents = 5.0
    assert float(recorded(fn, X)(X)) == 3
    words = lambda x, *, by=2.0: x * by  # noqa: E731
    assert float(recorded(words, X)(X)) == 4
    words.__kwdefaults__["by"] = 3.0
    assert float(recorded(words, X)(X)) == 6
    base = np.asarray([1.0, 2.0, 3.0], np.float32)
    view = closing(base[1:])
    assert recorded(view, X)(X).tolist() == [4, 6]
    base[2] = 0
    assert recorded(view, X)(X).tolist() == [4, 0]
    globals()["factor"], before = 11.0, factor
    assert float(recorded(by_factor, X)(X)) == 22
    exec(f"factor = {before}", globals())
    assert float(recorded(by_factor, X)(X)) == 2 * before


def test_wrappers_with_a_state_are_traced_in_every_call():
    calls = np.zeros(1)

    def counted(fn):
        @functools.wraps(fn)
        def wrapper(x):
            calls[0] += 1
            return fn(x)

        return wrapper

    fn = counted(by_factor)
    seen = []
    for _ in range(3):
        recorded(fn, X)
        seen.append(float(calls[0]))
    assert seen[0] < seen[1] < seen[2]


def test_large_arrays_are_not_kept():
    for large in (jnp.ones(2**15), np.ones(2**14)):
        with pytest.raises(UnseenError):
            reads(closing(large))


def test_fits_see_what_changes():
    data = np.asarray([1.0, 2.0, 3.0], np.float32)

    def residuals(p):
        return p[0] * jnp.ones(3) - data

    assert float(fnopt.least_squares(residuals, jnp.ones(1)).params[0]) == pytest.approx(2)
    data[:] = 7
    assert float(fnopt.least_squares(residuals, jnp.ones(1)).params[0]) == pytest.approx(7)

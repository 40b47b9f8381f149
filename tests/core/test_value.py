import copy
import dataclasses
import pickle
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt


class ramp(fnopt.Schedule):
    slope: Any = fnopt.hyper(default=0.5, ge=0)
    up: bool = fnopt.static(default=True)

    def __call__(self, count):
        return jnp.asarray(count, jnp.float32) * self.slope


def test_numbers_are_leaves_and_flags_are_static():
    leaves, treedef = jax.tree.flatten(ramp(2.0, up=False))
    assert leaves == [2.0]
    assert treedef != jax.tree.structure(ramp(2.0))
    assert treedef == jax.tree.structure(ramp(3.0, up=False))


def test_leaves_have_names():
    (path, _), *_ = jax.tree_util.tree_leaves_with_path(ramp())
    assert jax.tree_util.keystr(path) == ".slope"


@pytest.mark.parametrize("number", [2, np.int64(2), np.float32(2), 2.0], ids=repr)
def test_numbers_become_python_floats(number):
    assert type(ramp(number).slope) is float
    assert ramp(number) == ramp(2.0)


def test_arrays_stay_arrays_and_integers_among_them_become_floats():
    assert ramp(np.ones(2, np.float32)).slope.dtype == jnp.float32
    assert jnp.issubdtype(ramp(jnp.arange(2)).slope.dtype, jnp.floating)


def test_traced_and_placeholder_leaves_are_not_checked():
    assert jax.jit(lambda s: ramp(s).slope)(-1.0) == -1.0
    assert jax.tree.map(lambda _: "anything", ramp()).slope == "anything"


def test_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        ramp().slope = 1.0  # pyright: ignore[reportAttributeAccessIssue]


def test_an_init_of_its_own_is_told_that_fields_are_the_arguments():
    class mine(fnopt.Transformation):
        def __init__(self, rate):
            self.rate = rate  # pyright: ignore[reportAttributeAccessIssue]

        def update(self, updates, state, params=None, **extra_args):
            return updates, state

    with pytest.raises(
        dataclasses.FrozenInstanceError, match=r"mine\.rate = 0.1.*fields.*declare `rate: "
    ):
        mine(0.1)


def test_equality_looks_at_arrays_too():
    a, b = ramp(jnp.ones(2)), ramp(jnp.ones(2))
    assert a == b
    assert hash(a) == hash(b)
    assert a != ramp(jnp.zeros(2))
    assert a != ramp(1.0)
    assert ramp() != fnopt.constant_schedule(0.5)


def test_copies_are_equal():
    value = ramp(3.0)
    assert copy.deepcopy(value) == value
    assert pickle.loads(pickle.dumps(value)) == value
    assert dataclasses.replace(value, slope=4.0) == ramp(4.0)


def test_repr_evaluates_to_the_value():
    assert eval(repr(ramp(3.0, up=False))) == ramp(3.0, up=False)
    assert repr(ramp(jnp.ones((2, 3)))) == "ramp(slope=float32[2, 3], up=True)"


@pytest.mark.parametrize(
    ("bad", "error", "text"),
    [
        ("0.5", TypeError, "ramp: slope = '0.5' is a str, expected a number or an array."),
        (True, TypeError, "ramp: slope = True is a bool"),
        (None, TypeError, "slope = None is a NoneType"),
        (-1, ValueError, r"ramp: slope = -1.0, expected slope >= 0."),
        (jnp.asarray([1.0, -1.0]), ValueError, "expected slope >= 0"),
        (fnopt.constant_schedule(1.0), TypeError, "slope can't be scheduled"),
    ],
)
def test_wrong_numbers(bad, error, text):
    with pytest.raises(error, match=text):
        ramp(bad)


class options(fnopt.Schedule):
    k: int = fnopt.static(default=3, least=1)
    chunk: int | None = fnopt.static(default=None, least=0)
    kind: str = fnopt.static(default="linear", choices=("linear", "cosine"))
    fn: Callable[..., Any] = fnopt.static(default=abs)
    mu_dtype: Any = fnopt.static(default=None, convert=fnopt.numerics.as_dtype)
    words: Any = fnopt.static(default=())


def test_unhashable_static_field():
    with pytest.raises(
        TypeError, match=r"static field words = \[1\] can't be hashed, expected a hashable"
    ):
        options(words=[1])


@pytest.mark.parametrize("bad", ["no", None, 1, float("nan"), [1], np.ones(2), jnp.asarray(True)])
def test_a_flag_is_true_or_false(bad):
    with pytest.raises(TypeError, match=r"ramp: up = .*, expected True or False"):
        ramp(up=bad)
    assert ramp(up=np.bool_(True)) == ramp(up=True)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("field", "bad", "error", "text"),
    [
        ("k", 2.0, TypeError, "options: k = 2.0, expected an integer >= 1."),
        ("k", True, TypeError, "k = True, expected an integer"),
        ("k", None, TypeError, "k = None, expected an integer"),
        ("k", jnp.asarray(float("nan")), TypeError, "k = .*, expected an integer"),
        ("k", 0, ValueError, "options: k = 0, expected an integer >= 1."),
        ("chunk", -1, ValueError, "chunk = -1, expected an integer >= 0"),
        ("chunk", "2", TypeError, "chunk = '2', expected an integer >= 0"),
        ("kind", 1.0, TypeError, "kind = 1.0, expected a string"),
        ("kind", "sine", ValueError, "options: kind is 'sine', expected one of 'linear', 'cosine'"),
        ("fn", "abs", TypeError, "fn = 'abs', expected a function"),
        ("mu_dtype", "S", TypeError, "options: mu_dtype = 'S': 'S' is not a floating dtype"),
        ("mu_dtype", "int8", TypeError, "'int8' is not a floating dtype, expected a dtype such as"),
        ("mu_dtype", np.float32(1), TypeError, "is not a floating dtype"),
        ("mu_dtype", -1, TypeError, "-1 is not a floating dtype"),
    ],
)
def test_static_fields_are_what_they_are_annotated_as(field, bad, error, text):
    with pytest.raises(error, match=text):
        options(**{field: bad})


def test_whole_numbers_are_stored_as_pythons():
    made = options(k=np.int64(2), chunk=jnp.asarray(0))  # pyright: ignore[reportArgumentType]
    assert (type(made.k), made.k, type(made.chunk), made.chunk) == (int, 2, int, 0)
    assert options(mu_dtype="float8_e4m3fn").mu_dtype == jnp.float8_e4m3fn


def test_undeclared_flag_says_how_to_declare_it():
    class careless(fnopt.Transformation):
        nesterov: bool = False

    with pytest.raises(
        TypeError, match=r"nesterov = False is not numeric, expected a number; declare .*static"
    ):
        careless()


def test_a_schedule_must_be_callable():
    class empty(fnopt.Schedule):
        pass

    with pytest.raises(NotImplementedError, match="empty must define __call__"):
        empty()(0)


def test_a_function_for_a_learning_rate_says_how_to_wrap_it():
    with pytest.raises(TypeError, match=r"Wrap a function as fnopt.schedule\(fn\)"):
        fnopt.adam(lambda count: 0.1)  # pyright: ignore[reportArgumentType]


def test_a_class_that_cloudpickle_brings_back_is_still_known_by_its_name():
    cloudpickle = pytest.importorskip("cloudpickle")
    code = {}
    text = "class brought(fnopt.Schedule):\n    slope: float = 1.0\n"
    exec(text, {"fnopt": fnopt, "__name__": "__main__"}, code)
    value = code["brought"](2.0)
    config = fnopt.to_config(value)
    assert cloudpickle.loads(cloudpickle.dumps(value)) == value
    assert fnopt.from_config(config) == value

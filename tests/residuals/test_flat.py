import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnopt.residuals import flat_residual


def test_pytrees_are_laid_end_to_end_and_back():
    params = {"a": jnp.arange(2.0), "b": jnp.ones((2, 2))}
    x, flat = flat_residual(lambda p, t: {"u": p["a"] * t, "v": p["b"].sum()}, params, (2.0,))
    assert (flat.m, flat.n) == (3, 6)
    np.testing.assert_array_equal(flat.r(x), [0, 2, 4])
    assert jax.tree.map(jnp.shape, flat.unflatten(flat.r(x))) == {"u": (2,), "v": ()}
    assert jax.tree.map(jnp.shape, flat.unravel(x)) == {"a": (2,), "b": (2, 2)}


@pytest.mark.parametrize("container", [list, tuple, lambda f: dict(enumerate(f))])
def test_several_functions(container):
    functions = container([lambda p: p - 1, lambda p: jnp.stack([p, 2 * p])])
    x, flat = flat_residual(functions, jnp.float32(3))
    np.testing.assert_array_equal(flat.r(x), [2, 3, 6])
    assert len(flat.unflatten(flat.r(x))) == 2


def test_a_complex_residual_is_two_real_ones():
    x, flat = flat_residual(lambda p: jax.lax.complex(p, -p), jnp.asarray([1.0, 2.0]))
    assert flat.m == 4
    np.testing.assert_array_equal(flat.r(x), [1, 2, -1, -2])
    np.testing.assert_array_equal(flat.unflatten(flat.r(x)), [1 - 1j, 2 - 2j])


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_low_precision_is_computed_in_float32(dtype):
    x, flat = flat_residual(lambda p: p * 2, jnp.ones(3, dtype))
    assert x.dtype == flat.r(x).dtype == jnp.float32
    assert flat.unravel(x).dtype == dtype


def test_mixed_dtypes_meet_in_the_widest(x64):
    params = {"a": jnp.ones(1, jnp.float32), "b": jnp.ones(1, jnp.float64)}
    x, flat = flat_residual(lambda p: [p["a"], p["b"]], params)
    assert x.dtype == flat.r(x).dtype == jnp.float64
    assert flat.unravel(x)["a"].dtype == jnp.float32


BAD = [
    (3.0, 1.0, TypeError, r"residual_fn is 3.0, a float, expected a function of the params"),
    (jnp.ones(2), 1.0, TypeError, r"residual_fn is an array, float32\[2\]"),
    ([], 1.0, TypeError, "an empty list"),
    ([lambda p: p, 2], 1.0, TypeError, r"a list of function, int"),
    (lambda p: None, 1.0, TypeError, r"returned None.*Is there a return statement"),
    (lambda p: jnp.arange(3), 1.0, TypeError, r"the only leaf of the outputs is int32\[3\]"),
    (lambda p: {"u": p, "k": jnp.arange(2)}, 1.0, TypeError, r"leaf 'k' of the outputs"),
    (lambda p: jnp.zeros((0, 3)), 1.0, ValueError, r"no residuals \(shapes \[\(0, 3\)\]\).*empty"),
    (lambda p: p, jnp.arange(3), TypeError, r"params: the only leaf is int32"),
    (lambda p: p, {"w": 1}, TypeError, r"params: leaf 'w' is int"),
    (
        lambda p: p,
        {"w": jnp.complex64(1)},
        TypeError,
        r"leaf 'w' of the params is complex.*imaginary part",
    ),
    (lambda p: jnp.ones(1), {}, ValueError, r"params contain no numbers"),
    (lambda p: jnp.ones(1), {"w": jnp.zeros(0)}, ValueError, r"params contain no numbers"),
    (lambda p: p, {"act": jax.nn.relu, "w": 1.0}, TypeError, r"leaf 'act' is"),
]


@pytest.mark.parametrize(("fn", "params", "error", "text"), BAD)
def test_bad_input_is_refused_by_name(fn, params, error, text):
    with pytest.raises(error, match=text):
        flat_residual(fn, params)

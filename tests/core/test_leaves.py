import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt.core import check_same_tree, map_leaves, slot_zeros
from fnopt.jacobians import ravel


def test_computes_in_float32_and_stores_slots_as_they_were():
    seen = []

    def leaf(g, m):
        seen.append((g.dtype, m.dtype))
        return g + m, m

    g = {"w": jnp.ones(2, jnp.bfloat16)}
    m = {"w": jnp.ones(2, jnp.float16)}
    u, m = map_leaves(leaf, g, m=m, outputs=2)
    assert seen == [(jnp.float32, jnp.float32)]
    assert (u["w"].dtype, m["w"].dtype) == (jnp.float32, jnp.float16)


def test_hyper_parameters_come_in_the_compute_dtype(x64):
    seen = []
    map_leaves(
        lambda h, g: seen.append(h.max_delta.dtype) or g,
        [jnp.ones(1, jnp.float16), jnp.ones(1, jnp.float64), jnp.ones(1, jnp.complex64)],
        hyper=fnopt.clip(1.0),
    )
    assert seen == [jnp.float32, jnp.float64, jnp.float32]


def test_no_leaves():
    assert map_leaves(lambda g, m: (g, m), {}, m={}, outputs=2) == ({}, {})


def test_slots_follow_params():
    params = {"h": jnp.ones(2, jnp.bfloat16), "c": jnp.ones((), jnp.complex64), "none": None}
    assert slot_zeros(params)["h"].dtype == jnp.float32
    assert slot_zeros(params)["c"].dtype == jnp.complex64
    assert slot_zeros(params, real=True)["c"].dtype == jnp.float32
    assert slot_zeros(params, jnp.bfloat16)["h"].dtype == jnp.bfloat16
    assert slot_zeros({"w": 1.0}, fill=0.1)["w"].weak_type is False
    assert slot_zeros({"w": np.ones(2)}, fill=0.1)["w"].tolist() == pytest.approx([0.1, 0.1])


def test_many_missing_leaves_are_listed_shortly():
    tree = {f"layer{i}": jnp.ones(1) for i in range(20)}
    with pytest.raises(ValueError, match="… and 12 more"):
        check_same_tree({"bias": jnp.ones(1)}, tree, "gradients", "params")


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_global_norm(dtype):
    tree = {"a": jnp.full(4, 100.0, dtype), "b": [jnp.full((), 150.0, dtype), None]}
    assert float(fnopt.global_norm(tree)) == 250.0
    assert fnopt.global_norm(tree).dtype == jnp.float32


def test_global_norm_of_zero_has_a_zero_derivative():
    assert jax.grad(fnopt.global_norm)(jnp.zeros(3)).tolist() == [0, 0, 0]
    assert float(fnopt.global_norm({})) == 0.0


@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf])
def test_global_norm_shows_bad_values(bad):
    assert float(fnopt.global_norm(jnp.asarray([1.0, bad]))) == pytest.approx(bad, nan_ok=True)


def test_global_norm_of_complex_numbers():
    assert float(fnopt.global_norm(jnp.asarray([3 + 4j], jnp.complex64))) == 5.0


def test_ravel_round_trip():
    tree = {
        "a": jnp.arange(6.0).reshape(2, 3),
        "b": jnp.ones((), jnp.bfloat16),
        "c": jnp.zeros((0, 2)),
    }
    vector, unravel = ravel(tree)
    assert vector.shape == (7,)
    assert vector.dtype == jnp.float32
    back = unravel(vector)
    jax.tree.map(np.testing.assert_array_equal, back, tree)
    assert [x.dtype for x in jax.tree.leaves(back)] == [x.dtype for x in jax.tree.leaves(tree)]


def test_ravel_names_the_leaf_that_is_no_number():
    with pytest.raises(TypeError, match=r"params: leaf 'n' is int32\[3\], expected a floating"):
        ravel({"n": jnp.arange(3)}, "params")


@pytest.mark.parametrize("gradient", [np.ones(2), np.float64(1)])
def test_arrays_of_numpy_follow_the_x64_setting(gradient):
    # What was found for one setting is not remembered for the other.
    for x64, expected in ((False, jnp.float32), (True, jnp.float64), (False, jnp.float32)):
        with jax.enable_x64(x64):
            new = map_leaves(lambda g, m: (g + m, m), gradient, outputs=2, slot=gradient)
            assert [x.dtype for x in new] == [expected, expected]
            tx = fnopt.scale(-0.5)
            assert tx.update(gradient, tx.init(gradient))[0].dtype == expected

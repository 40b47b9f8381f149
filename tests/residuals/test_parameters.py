import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnopt.residuals import box_of, fixed, interval, parametrize, positive, tied

PARAMS = {"peak": {"height": 2.0, "width": jnp.asarray([0.5, 1.5])}, "base": 0.25}


def test_what_is_held_tied_or_transformed_comes_back():
    made = parametrize(
        PARAMS,
        {
            "base": tied(lambda p: p["peak"]["height"] / 8),
            "*/height": interval(1.0, 5.0),
            "peak": positive(),
        },
    )
    assert len(made.free) == 2
    params = made.assemble(made.free)
    assert params["base"].shape == ()
    np.testing.assert_allclose(params["base"], 0.25, rtol=1e-6)
    np.testing.assert_allclose(params["peak"]["height"], 2, rtol=1e-6)
    np.testing.assert_allclose(params["peak"]["width"], [0.5, 1.5], rtol=1e-6)


def test_a_branch_is_held():
    made = parametrize(PARAMS, {"peak": fixed()})
    assert made.free == (0.25,)
    np.testing.assert_array_equal(made.assemble((7.0,))["peak"]["width"], [0.5, 1.5])


BAD = [
    ({"bas": fixed()}, ValueError, "'bas' matches no leaf of"),
    ({"base": 1.0}, TypeError, "the constraint of 'base' is 1.0, expected fnopt.fixed"),
    (
        [{"type": "eq", "fun": len}],
        TypeError,
        "SciPy's constraints, tie a param, pass a projection",
    ),
    (len, TypeError, "constraints is <built-in function len>, expected fnopt.fixed"),
    ({"base": tied(lambda p: p["q"])}, ValueError, r"'base' is tied .* KeyError: 'q'.*peak/width"),
    ({"base": tied(lambda p: p.q)}, ValueError, "'base' is tied to a function that raised Attrib"),
    (fixed(), ValueError, "all params are fixed or tied"),
    ({"base": interval(1.0, 2.0)}, ValueError, "leaf 'base' starts at 0.25, outside the range of"),
]


@pytest.mark.parametrize(("constraints", "error", "text"), BAD)
def test_bad_constraints_are_refused_by_name(constraints, error, text):
    with pytest.raises(error, match=text):
        parametrize(PARAMS, constraints)


def test_a_tie_of_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"leaf 'base' is tied to an expression of shape \(2,\)"):
        parametrize(PARAMS, {"base": tied(lambda p: p["peak"]["width"])})


def tree_of(*ties):
    params = dict.fromkeys("abcd", 1.0)
    return parametrize(params, dict(zip("abc", map(tied, ties), strict=True)))


def test_a_tie_to_what_is_tied_itself_in_any_order():
    compiled = jax.jit(lambda b, unused: 2 * b)
    ties = (lambda p: compiled(p["b"], p["c"]), lambda p: jnp.sin(p["c"]) + p["d"])
    made = tree_of(*ties, lambda p: -p["d"])
    got = made.assemble((0.5,))
    np.testing.assert_allclose(got["b"], 0.5 - np.sin(0.5), rtol=1e-6)
    np.testing.assert_allclose(got["a"], 2 * got["b"], rtol=1e-6)


CIRCLES = {
    "'a' needs 'b' needs 'a'": (lambda p: p["b"], lambda p: p["a"] ** 2, lambda p: p["d"]),
    "'b' needs 'c' needs 'b'": (
        lambda p: jnp.exp(p["b"]),
        lambda p: -p["c"],
        lambda p: p["b"][...],
    ),
    "'a' needs 'a'": (lambda p: sum(jax.tree.leaves(p)), lambda p: p["d"], lambda p: p["d"]),
}


@pytest.mark.parametrize("circle", CIRCLES)
def test_ties_in_a_circle_are_named(circle):
    with pytest.raises(ValueError, match=rf"form a cycle \({circle}\), expected no cycle"):
        tree_of(*CIRCLES[circle])


def test_what_is_held_may_be_an_integer():
    params = {"order": 3, "key": jax.random.key(0), "a": 1.0}
    made = parametrize(params, {"order": fixed(), "key": fixed()})
    assert made.assemble((7.0,))["order"].dtype == jnp.int32
    with pytest.raises(TypeError, match="leaf 'order' is int, expected a floating array"):
        parametrize(params, {"key": fixed()})


def test_ends_that_are_not_known_yet():
    def back(upper):
        made = parametrize({"a": 1.0}, {"a": interval(0.0, upper)})
        return made.assemble(made.free)["a"]

    np.testing.assert_allclose(jax.jit(back)(4.0), 1, rtol=1e-6)


@pytest.mark.parametrize("ends", [(2.0, 1.0), (-np.inf, 1.0), (1.0, np.inf)])
def test_crossed_and_infinite_ends_are_refused(ends):
    with pytest.raises(ValueError, match="expected lower < upper, both finite"):
        interval(*ends)


BAD_BOUNDS = [
    (3.0, TypeError, r"bounds = 3.0, expected a pair \(lower, upper\)"),
    ((2.0, 1.0), ValueError, "bounds of leaf 'base' are crossed: lower 2.0 and upper 1.0"),
    ((None, {"base": 0.0, "peak": 9.0}), ValueError, r"leaf 'base' starts at 0.25, outside"),
    (({"bas": 0.0}, None), ValueError, r"has the leaves \['bas'\], expected a single"),
]


@pytest.mark.parametrize(("bounds", "error", "text"), BAD_BOUNDS)
def test_bad_bounds_are_refused_by_name(bounds, error, text):
    with pytest.raises(error, match=text):
        box_of(bounds, PARAMS, jnp.float32)


def test_numbers_in_a_list_bound_an_array():
    (box,) = box_of(([0.0, -1.0], (np.inf, 1)), jnp.asarray([0.5, 0.5]), jnp.float32)
    np.testing.assert_array_equal(box.lower, [0, -1])
    np.testing.assert_array_equal(box.upper, [np.inf, 1])
    upper = jax.jit(lambda u: box_of((0.0, [u, 1.0]), jnp.ones(2), jnp.float32)[0].upper)(3.0)
    np.testing.assert_array_equal(upper, [3, 1])

"""The page of deviations from optax: every line of it is run."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt.interop import optax_api

optax = pytest.importorskip("optax")
PAGE = Path(fnopt.__file__).parents[1] / "docs" / "coming_from" / "optax_deviations.md"
CHECKS: dict[str, Callable[[], None]] = {}
# Lines that other tests hold: digits, slopes and values that take more than a step to see.
ELSEWHERE = {
    "`1 - b**t` in the bias correction": "tests/numerics/test_moments.py",
    "`radam` at the first steps": "tests/optimizers/cases.py",
    "`polyak_sgd`, `momo`, `momo_adam` without a": "tests/optimizers/test_lower_bound.py",
    "`reduce_on_plateau` and `rtol` of": "tests/transforms/test_linesearch.py",
    "`scale_by_backtracking_linesearch` if no": "tests/transforms/test_linesearch.py",
    "derivatives with respect to hyper-parameters": "tests/contract/test_transforms.py",
    "params that aren't floating": "tests/interop/test_laxer.py",
    "losses of shapes that broadcast": "tests/interop/test_laxer.py",
    "losses of vectors": "tests/interop/test_laxer.py",
    "`lookahead(...).init` of params": "tests/interop/test_laxer.py",
    "whole numbers (`key`": "tests/interop/test_laxer.py",
    "`grad=` of line searches": "tests/transforms/test_linesearch.py",
}


def check(beginning: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    def registered(fn: Callable[[], None]) -> Callable[[], None]:
        CHECKS[beginning] = fn
        return fn

    return registered


def run(tx: Any, grads: list[Any], params: Any) -> tuple[list[Any], Any]:
    state, made = tx.init(params), []
    for g in grads:
        updates, state = tx.update(g, state, params)
        made.append(updates)
    return made, state


def both(name: str, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    theirs = getattr(optax, name, None) or getattr(optax.contrib, name)
    return theirs(*args, **kwargs), getattr(fnopt, name)(*args, **kwargs)


ONE = jnp.ones(2)


@check("state for bfloat16")
def _() -> None:
    p = ONE.astype(jnp.bfloat16)
    theirs, ours = both("adam", 0.1)
    assert theirs.init(p)[0].mu.dtype == jnp.bfloat16
    assert ours.init(p)[0].mu.dtype == jnp.float32


@check("updates between the members")
def _() -> None:
    p, seen = ONE.astype(jnp.bfloat16), []

    def look(updates: Any, params: Any) -> Any:
        seen.append(updates.dtype)
        return updates

    for lib in (optax, fnopt):
        run(lib.chain(lib.scale(0.5), lib.add_decayed_weights(0.1), lib.stateless(look)), [p], p)
    assert seen == [jnp.bfloat16, jnp.float32]


@check("an element whose gradients")
def _() -> None:
    theirs, ours = (run(tx, [ONE * 0], ONE)[0][0] for tx in both("adam", 0.1, eps=0.0))
    assert jnp.isnan(theirs).all()
    assert (ours == 0).all()


@check("a finite gradient whose square")
def _() -> None:
    grads = [ONE * 1e30, *[ONE] * 3]
    (*_, theirs), their_state = run(optax.adam(0.1), grads, ONE)
    (*_, _), our_state = run(fnopt.adam(0.1), grads, ONE)
    assert jnp.isinf(their_state[0].nu).all()
    assert (theirs == 0).all()
    assert jnp.isfinite(our_state[0].nu).all()


@check("change from a constant to a schedule")
def _() -> None:
    for lib, same in ((optax, False), (fnopt, True)):
        states = [lib.adam(rate).init(ONE)[1] for rate in (0.1, lib.linear_schedule(0.1, 0.0, 3))]
        assert (type(states[0]) is type(states[1])) == same


@check("functions as learning rates")
def _() -> None:
    optax.sgd(lambda step: 0.1)
    with pytest.raises(TypeError, match="schedule"):
        fnopt.sgd(lambda step: 0.1)
    fnopt.sgd(fnopt.schedule(lambda step: 0.1))


@check("`adan`")
def _() -> None:
    # The first step has no change; the second one of the gradient's size.
    theirs, ours = (run(tx, [ONE, ONE * 2], ONE)[0] for tx in both("adan", 0.1))
    np.testing.assert_allclose(theirs[0], ours[0], rtol=1e-5)
    assert not np.allclose(theirs[1], ours[1], rtol=1e-3)


@check("`rprop` |")
def _() -> None:
    theirs, ours = (run(tx, [ONE, ONE], ONE)[0] for tx in both("rprop", 0.1))
    assert (theirs[0] == 0).all()
    assert (ours[0] != 0).all()


@check("`rprop`, gradients of 1e-36")
def _() -> None:
    theirs, ours = (run(tx, [ONE * 1e-36] * 4, ONE)[0] for tx in both("rprop", 0.01))
    np.testing.assert_array_equal(theirs[2], theirs[3])
    assert (jnp.abs(ours[3]) > jnp.abs(ours[2])).all()


@check("`adadelta(learning_rate=None)`")
def _() -> None:
    theirs = run(optax.adadelta(), [ONE], ONE)[0][0]
    ours = run(fnopt.adadelta(), [ONE], ONE)[0][0]
    assert (theirs > 0).all()
    assert (ours < 0).all()


@check("`ademamix(mu_dtype=...)`")
def _() -> None:
    for tx, dtype in zip(
        both("ademamix", 0.1, mu_dtype=jnp.bfloat16), (jnp.bfloat16, jnp.float32), strict=True
    ):
        assert tx.init(ONE)[0].nu.dtype == dtype


@check("step counts of `ademamix`")
def _() -> None:
    for tx, counts in zip(both("ademamix", 0.1), (2, 1), strict=True):
        assert sum("count" in name for name in tx.init(ONE)[0]._fields) == counts


@check("first step of `optimistic_gradient_descent`")
def _() -> None:
    theirs, ours = (tx.init(ONE)[0] for tx in both("optimistic_gradient_descent", 0.1))
    assert "is_initial_step" in theirs._fields
    assert "count" in ours._fields


@check("norms in `lamb`, `lars`")
def _() -> None:
    theirs, ours = (run(tx, [ONE], ONE * 1e20)[0][0] for tx in both("lars", 0.1))
    assert not jnp.isfinite(theirs).all()
    assert jnp.isfinite(ours).all()


@check("`polyak_sgd`, `scaling`")
def _() -> None:
    def step(lib: Any, scaling: float) -> Any:
        tx = lib.polyak_sgd(scaling=scaling, max_learning_rate=1e9)
        return tx.update(ONE, tx.init(ONE), ONE, value=1.0)[0]

    np.testing.assert_allclose(step(optax, 0.5), 2 * step(optax, 1.0), rtol=1e-5)
    np.testing.assert_allclose(step(fnopt, 0.5), 0.5 * step(fnopt, 1.0), rtol=1e-5)


@check("`centralize`")
def _() -> None:
    g = jnp.arange(6.0).reshape(2, 3) ** 2
    found = [run(lib.centralize(), [g], g)[0][0] for lib in (optax, optax_api, fnopt)]
    np.testing.assert_allclose(found[0], g - g.mean(1, keepdims=True), rtol=1e-6)
    np.testing.assert_allclose(found[1], found[0], rtol=1e-6)
    np.testing.assert_allclose(found[2], g - g.mean(0, keepdims=True), rtol=1e-6)


@check("`lookahead` |")
def _() -> None:
    theirs, ours = (lib.lookahead(lib.sgd(0.1), 2, 0.5) for lib in (optax, fnopt))
    assert "slow" in ours.init(ONE)._fields
    pair = optax.LookaheadParams.init_synced(ONE)
    assert "slow" not in theirs.init(pair)._fields
    assert isinstance(theirs.update(ONE, theirs.init(pair), pair)[0], optax.LookaheadParams)


@check("`sm3`")
def _() -> None:
    for p in (jnp.ones(()), jnp.ones((0, 2))):
        assert run(fnopt.sm3(0.1), [p], p)[0][0].shape == p.shape
    with pytest.raises((ValueError, TypeError, IndexError)):
        run(optax.sm3(0.1), [jnp.ones((0, 2))], jnp.ones((0, 2)))
    p = ONE.astype(jnp.complex64)
    assert run(fnopt.sm3(0.1), [p], p)[0][0].dtype == jnp.complex64


@check("`prodigy`, `dadapt_adamw`, a first gradient")
def _() -> None:
    for name in ("prodigy", "dadapt_adamw"):
        theirs, ours = (run(tx, [ONE * 0, ONE], ONE)[0][1] for tx in both(name))
        assert jnp.isnan(theirs).all(), name
        assert jnp.isfinite(ours).all(), name


@check("`adafactor`, `scale_by_factored_rms`")
def _() -> None:
    theirs, ours = (tx.init(ONE) for tx in both("scale_by_factored_rms"))
    assert {"v_row", "v_col", "v"} <= {*theirs._fields}
    assert theirs.v_row.shape == (1,)
    assert len(fnopt.slots(ours)) == 1


@check("`schedule_free` for 16-bit")
def _() -> None:
    p = ONE.astype(jnp.bfloat16)
    for tx, dtype in zip(both("schedule_free_sgd", 0.1), (jnp.bfloat16, jnp.float32), strict=True):
        assert tx.init(p).z.dtype == dtype


@check("`scale_by_distance_over_gradients(param_dtype")
def _() -> None:
    p = jnp.ones(())
    theirs = optax.scale_by_distance_over_gradients().init(p)
    ours = fnopt.scale_by_distance_over_gradients().init(p)
    assert any(x.shape == (1,) for x in jax.tree.leaves(theirs))
    assert all(x.shape == () for x in jax.tree.leaves(ours))


@check("numbers in the state of `dog`")
def _() -> None:
    p = ONE.astype(jnp.bfloat16)
    for name in ("dog", "prodigy"):
        numbers = [
            {x.dtype for x in jax.tree.leaves(tx.init(p)) if x.shape == () and x.dtype.kind != "i"}
            for tx in both(name)
        ]
        assert jnp.dtype(jnp.bfloat16) in numbers[0], name
        assert numbers[1] == {jnp.dtype(jnp.float32)}, name


@check("`sophia(verbose=...)`")
def _() -> None:
    optax.contrib.sophia(0.1, verbose=False)
    with pytest.raises(TypeError, match="verbose"):
        fnopt.sophia(0.1, verbose=False)


@check("noise of `noisy_sgd`, signs of `sophia`")
def _() -> None:
    for make in (lambda lib: lib.noisy_sgd(0.1, key=0), lambda lib: lib.sophia(0.1)):
        theirs = make(optax if hasattr(optax, make.__code__.co_names[0]) else optax.contrib)
        states = theirs.init(ONE), make(fnopt).init(ONE)
        keys = [
            sum(jnp.issubdtype(x.dtype, jax.dtypes.prng_key) for x in jax.tree.leaves(state))
            for state in states
        ]
        assert keys[1] == 0
        assert "key" in str(jax.tree_util.tree_flatten_with_path(states[0]))


@check("`sam(sync_period=1)`")
def _() -> None:
    found = []
    for lib in (optax.contrib, fnopt):
        tx = lib.sam(fnopt.sgd(0.1), fnopt.sgd(0.05), sync_period=1)
        p, state = ONE, tx.init(ONE)
        for _ in range(3):
            updates, state = tx.update(ONE, state, p)
            p = p + updates
        found.append(p)
    np.testing.assert_allclose(found[1], ONE - 3 * 0.1, rtol=1e-5)
    assert not np.allclose(found[0], found[1], rtol=1e-3)


@check("`sam` in opaque mode")
def _() -> None:
    def step(lib: Any, plateau: Any) -> Any:
        tx = lib.sam(plateau(), fnopt.sgd(0.05), opaque_mode=True)
        more = {"grad_fn": lambda p, i: p, "value": 1.0}
        return tx.update(ONE, tx.init(ONE), ONE, **more)

    step(fnopt, fnopt.reduce_on_plateau)
    with pytest.raises(TypeError, match="value"):
        step(optax.contrib, optax.contrib.reduce_on_plateau)


@check("a state of another class")
def _() -> None:
    theirs, ours = both("scale", 2.0)
    other = optax.adam(0.1).init(ONE)
    theirs.update(ONE, other)
    with pytest.raises(TypeError, match="expected EmptyState"):
        ours.update(ONE, other)
    for nothing in (None, (), {}):
        ours.update(ONE, nothing)


@check("the state of `galore`")
def _() -> None:
    theirs, ours = both("galore", 0.1, rank=1)
    p = jnp.ones((3, 2))
    assert theirs.init(p)[0].projector.shape == (3, 1)
    assert [x.shape for x in ours.init(p)[0].projector] == [(1, 3, 1)]


@check("the state of `muon`")
def _() -> None:
    theirs, ours = both("muon", 0.1)
    assert theirs.init(ONE).inner_states.keys() == ours.init(ONE).keys()


@check("the state of `polyak_sgd`")
def _() -> None:
    theirs, ours = both("polyak_sgd")
    assert not jax.tree.leaves(theirs.init(ONE)[0])
    assert np.isinf(fnopt.tree.get(ours.init(ONE), "best_value"))


@check("`warmup_cosine_decay_schedule(peak_value=0)`")
def _() -> None:
    args = {"peak_value": 0.0, "warmup_steps": 1, "decay_steps": 2, "end_value": -3.0}
    assert optax.warmup_cosine_decay_schedule(0.2, **args)(2) == 0
    assert fnopt.warmup_cosine_decay_schedule(0.2, **args)(2) == -3


@check("`exponential_decay` with `decay_rate=0`")
def _() -> None:
    for name, number in (("decay_rate", 0.0), ("transition_steps", -1)):
        args = {"init_value": 1.0, "decay_rate": 0.5, "transition_steps": 1, name: number}
        assert float(optax.exponential_decay(**args)(3)) == 1
        with pytest.raises(ValueError, match=name):
            fnopt.exponential_decay(**args)


@check("`dice_loss(apply_softmax=False)`")
def _() -> None:
    p = jnp.full((1, 4, 2), 0.7)
    with pytest.raises(ValueError, match="valid probability"):
        optax.losses.dice_loss(p, p, apply_softmax=False)
    found = fnopt.losses.dice_loss(p, p, apply_softmax=False)
    np.testing.assert_allclose(found, 1 - (4 * 0.49 + 1) / (4 * 0.7 + 1), rtol=1e-6)


@check("a wrong argument")
def _() -> None:
    tx = optax.scale_by_lion(mode="none")
    with pytest.raises(ValueError, match="none"):
        tx.update(ONE, tx.init(ONE))
    with pytest.raises(ValueError, match="none"):
        fnopt.scale_by_lion(mode="none")


@check("`lbfgs`, a pair of differences")
def _() -> None:
    theirs, ours = both("scale_by_lbfgs", scale_init_precond=False)
    weights = []
    for tx in (theirs, ours):
        state = tx.init(ONE)
        for p in (ONE, 2 * ONE):  # of -x^2 / 2
            _, state = tx.update(-p, state, p)
        weights.append(jnp.min(state.weights_memory))
    assert weights[0] < 0
    assert weights[1] == 0


@check("`mu_dtype`, `accumulator_dtype` that are real")
def _() -> None:
    theirs, ours = both("adam", 0.1, mu_dtype=jnp.float32)
    for tx, dtype in ((theirs, jnp.float32), (ours, jnp.complex64)):
        assert tx.init(ONE + 0j)[0].mu.dtype == dtype


@check("state of leaves that a mask excludes")
def _() -> None:
    mask, params = {"a": True, "b": False}, {"a": ONE, "b": {"c": ONE, "d": ONE}}
    theirs = optax.masked(optax.trace(0.9), mask).init(params).inner_state.trace
    ours = fnopt.masked(fnopt.trace(0.9), mask).init(params).inner_state.trace
    assert isinstance(theirs["b"], optax.MaskedNode)
    assert ours["b"] == {"c": None, "d": None}


@check("order of `tree.get_all_with_path`")
def _() -> None:
    state = {"a": {"x": 2}, "x": 1}
    for lib, expected in ((optax, [1, 2]), (fnopt, [2, 1])):
        assert [x for _, x in lib.tree.get_all_with_path(state, "x")] == expected


@check("`apply_updates` for a param")
def _() -> None:
    assert optax.apply_updates(None, ONE) is None
    with pytest.raises(ValueError, match="None, but its update isn't"):
        fnopt.apply_updates(None, ONE)


@check("integer gradients")
def _() -> None:
    g = jnp.arange(2)
    assert optax.scale(2.0).update(g, optax.EmptyState(), ONE)[0][1] == 2
    for lib in (optax_api, fnopt):
        with pytest.raises(TypeError, match="int32"):
            lib.scale(2.0).update(g, fnopt.core.EmptyState(), ONE)


@check("the numbers of `inject_hyperparams`")
def _() -> None:
    for lib, dtype in ((optax, jnp.bfloat16), (optax_api, jnp.float32)):
        tx = lib.inject_hyperparams(lib.scale_by_adam)(b2=0.999)
        found = tx.init(ONE.astype(jnp.bfloat16)).hyperparams["b2"]
        assert found.dtype == dtype
        assert (found == 1) == (dtype == jnp.bfloat16)


@check("`isinstance(tx, GradientTransformationExtraArgs)`")
def _() -> None:
    for lib in (optax, optax_api):
        tx = lib.GradientTransformation(lib.init_empty_state, lambda g, s, p=None: (g, s))
        is_one = isinstance(tx, lib.GradientTransformationExtraArgs)
        assert is_one == (lib is optax_api)


@check("a gradient of `None` for a leaf")
def _() -> None:
    params = {"a": ONE, "b": jnp.arange(2)}
    grads = {"a": ONE, "b": None}
    theirs = optax.trace(0.9)
    assert theirs.update(grads, theirs.init(params))[0]["b"] is None
    ours = optax_api.trace(0.9)
    with pytest.warns(UserWarning, match="aren't floating arrays"):
        state = ours.init(params)
    assert ours.update(grads, state, params)[0]["b"] is None
    full = fnopt.trace(0.9)
    with pytest.raises(ValueError, match=r"gradients lack \['b'\]"):
        full.update(grads, full.init({"a": ONE, "b": ONE}))


@check("class labels of floating")
def _() -> None:
    args = jnp.ones((2, 3)), jnp.asarray([0.0, 2.0])
    optax.losses.multiclass_hinge_loss(*args)
    for lib in (fnopt, optax_api):
        with pytest.raises(TypeError, match="expected integers"):
            lib.losses.multiclass_hinge_loss(*args)


@check("an extra argument that no")
def _() -> None:
    known = {"value": 1.0, "grad": ONE, "value_fn": lambda p: jnp.sum(p)}
    for lib in (optax, optax_api, fnopt):
        tx = lib.chain(lib.sgd(1.0), lib.scale_by_backtracking_linesearch(2))
        with pytest.raises(TypeError, match="valeu"):
            tx.update(ONE, tx.init(ONE), ONE, **known, valeu=2.0)
        if lib is optax:
            with pytest.raises(TypeError, match="other"):
                tx.update(ONE, tx.init(ONE), ONE, **known, other=2.0)
        else:
            tx.update(ONE, tx.init(ONE), ONE, **known, other=2.0)


@check("`isinstance(tx, GradientTransformation)`")
def _() -> None:
    assert isinstance(optax.adam(0.1), optax.GradientTransformation)
    assert not isinstance(optax_api.adam(0.1), optax.GradientTransformation)
    assert isinstance(fnopt.interop.to_optax(optax_api.adam(0.1)), optax.GradientTransformation)


LINES = [
    line for line in re.findall(r"^\| (.*) \|$", PAGE.read_text(), re.M) if line[:5] != "Topic"
]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("beginning", CHECKS)
def test_the_line_is_true(beginning):
    with jax.numpy_dtype_promotion("standard"):  # optax mixes dtypes
        CHECKS[beginning]()


def test_every_line_is_run_here_or_elsewhere():
    known = [*CHECKS, *ELSEWHERE]
    for line in LINES:
        assert sum(line.startswith(beginning) for beginning in known) == 1, line
    assert len(LINES) == len(known)
    for path in ELSEWHERE.values():
        assert (PAGE.parents[2] / path).exists(), path

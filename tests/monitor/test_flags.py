from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt.monitor import Flag, FlagReport, health, health_flags
from fnopt.monitor._groups import biases_of, weights_of


def observe(watch, state, **norms):
    h = health({name: jnp.asarray([x]) for name, x in norms.items()})
    return watch.update(h, state), h.names


def watched(watch, sequence):
    """The flags of layer `x` beside two healthy ones, after each observation."""
    state, codes = watch.init(3), []
    update = jax.jit(lambda w, s, x: observe(w, s, a=1.0, b=2.0, x=x)[0])
    for value in sequence:
        state = update(watch, state, jnp.float32(value))
        codes.append(int(state.code[2]))
        assert not state.code[:2].any()
    return codes


def test_dead_rises_and_falls_after_patience():
    # one odd batch changes nothing in either direction
    seen = watched(health_flags(patience=2), [1, 0, 1, 0, 0, 1, 0, 0, 1, 1])
    assert seen == [0, 0, 0, 0, 1, 1, 1, 1, 1, 0]


def test_dead_is_relative_to_the_other_layers():
    watch = health_flags(patience=1, dead=1e-6, release=10)
    # the median is 1: below 1e-6 it is dead, and only above 1e-5 alive again
    assert watched(watch, [2e-6, 5e-7, 5e-6, 2e-5]) == [0, 1, 1, 0]


def test_flags_do_not_depend_on_the_scale_of_the_loss():
    watch = health_flags(patience=1, limit=1e30)
    for scale in (1e-10, 1e10):
        state = watch.init(3)
        state, names = observe(watch, state, a=scale, b=2 * scale, c=1e-8 * scale)
        assert watch.report(names, state).dead == ("c",)


def test_all_layers_dead_are_found():
    watch = health_flags(patience=1)
    state, names = observe(watch, watch.init(3), a=0.0, b=0.0, c=0.0)
    assert watch.report(names, state).dead == names


def test_exploding_is_relative_to_the_own_past():
    watch = health_flags(patience=2, exploding=100, release=10, decay=0.9)
    # a spike is none; back below a tenth of the bound it is over
    seen = watched(watch, [1, 1, 500, 1, 500, 500, 50, 50, 5, 5])
    assert seen == [0, 0, 0, 0, 0, 2, 2, 2, 2, 0]


def test_exploding_does_not_become_usual():
    assert watched(health_flags(patience=1, exploding=100), [1] + [1e4] * 300)[-1] == 2


def test_slow_growth_and_a_bad_start_meet_the_limit():
    watch = health_flags(patience=1, limit=1e3)
    assert watched(watch, 1.05 ** np.arange(160))[-1] == 2
    assert watched(watch, [1e4])[-1] == 2


def test_nonfinite_rises_at_once_and_falls_after_patience():
    assert watched(health_flags(patience=2), [1, np.nan, 1, np.inf, 1, 1]) == [0, 3, 3, 3, 3, 0]


def test_usual_norm_is_a_geometric_mean():
    watch = health_flags(decay=0.5)
    state = watch.init(1)
    expected = None
    for x in (2.0, 8.0, 0.0, np.nan, 32.0):
        state, _ = observe(watch, state, w=x)
        if x > 0:
            expected = x if expected is None else np.sqrt(expected * x)
    np.testing.assert_allclose(state.usual, [expected], rtol=1e-6)


def test_state_is_strongly_typed_and_keeps_its_types():
    watch = health_flags()
    state = watch.init(2)
    after, _ = observe(watch, state, a=1.0, b=0.0)
    for x, y in zip(state, after, strict=True):
        assert (x.dtype, x.shape, x.weak_type) == (y.dtype, y.shape, False)


def test_empty_arrays_are_never_dead():
    watch = health_flags(patience=1)
    h = health({"a": jnp.ones(2), "b": jnp.zeros((0, 3))})
    assert not watch.report(h.names, watch.update(h, watch.init(2)))


def test_under_vmap_and_scan():
    watch = health_flags(patience=2)

    def run(xs):
        def body(state, x):
            state = watch.update(health({"a": jnp.ones(2), "b": x[None]}), state)
            return state, state.code

        return jax.lax.scan(body, watch.init(2), xs)[1][-1]

    codes = jax.vmap(run)(jnp.asarray([[1.0, 1.0], [0.0, 0.0]]))
    np.testing.assert_array_equal(codes, [[0, 0], [0, Flag.DEAD]])


def test_report():
    report = FlagReport(("a", "b"), (), ("c",))
    assert str(report) == "dead: a, b; nonfinite: c"
    assert report
    assert not FlagReport((), (), ())
    assert str(FlagReport((), (), ())) == (
        "no layer is flagged (half-dead layers are only flagged if 'zeros' is among the statistics)"
    )


def test_is_a_value():
    watch = health_flags(dead=1e-5, patience=7)
    assert fnopt.from_config(json.loads(json.dumps(fnopt.to_config(watch)))) == watch


def test_wrong_use():
    with pytest.raises(ValueError, match="patience = 0, expected an integer >= 1"):
        health_flags(patience=0)
    with pytest.raises(ValueError, match=r"release = 0\.5, expected release >= 1"):
        health_flags(release=0.5)
    watch = health_flags()
    with pytest.raises(ValueError, match=r"statistics \('max',\), expected 'norm'"):
        watch.update(health({"w": jnp.ones(2)}, stats="max"), watch.init(1))
    with pytest.raises(ValueError, match=r"shape \(1,\), expected \(2,\).*Call init\(1\)"):
        watch.update(health({"w": jnp.ones(2)}), watch.init(2))


def test_vanishing_gradients_of_many_layers_are_flagged():
    # 14 sigmoid layers, of which none is negligible beside the median one
    norms = {f"layer_{i:02d}": float(x) for i, x in enumerate(np.geomspace(2e-10, 0.13, 14))}
    watch = health_flags(patience=1)
    state, names = observe(watch, watch.init(14), **norms)
    report = watch.report(names, state)
    assert report.vanishing == names[:3]
    assert report.dead == ()
    assert "vanishing: layer_00" in str(report)
    assert state.code.tolist() == [Flag.VANISHING] * 3 + [Flag.FINE] * 11
    state, _ = observe(watch, state, **dict.fromkeys(names, 1.0))
    assert watch.report(names, state).vanishing == ()


def test_half_dead_layers_are_flagged_where_zeros_are_counted():
    watch = health_flags(patience=1)
    tree = {"a": jnp.asarray([1.0, 0.0, 0.0]), "b": jnp.ones(3), "c": jnp.zeros(3)}
    h = health(tree, stats=("norm", "zeros"))
    report = watch.report(h.names, watch.update(h, watch.init(3)))
    assert report == FlagReport(("c",), (), (), ("c",), ("a",))
    h = health(tree)
    assert watch.report(h.names, watch.update(h, watch.init(3))).half_dead == ()


def flagged(tree, watch=None, **options):
    watch = watch or health_flags(patience=1)
    h = health(tree, **options)
    return watch.report(h.names, watch.update(h, watch.init(len(h.names))))


def dense(weights, bias):
    return {"kernel": jnp.full((4, 6), weights), "bias": jnp.full(6, bias)}


def test_a_bias_that_never_has_a_gradient_is_no_dead_layer():
    # Of attention's keys, and before a normalization: what is left of it is rounding.
    tree = {"key": dense(1.0, 1e-9), "conv": dense(0.1, 0.0), "out": dense(1.0, 1.0)}
    assert not flagged(tree)
    tree["conv"] = dense(0.0, 0.0)
    assert flagged(tree).dead == ("conv/bias", "conv/kernel")
    tree["conv"] = dense(0.0, 1.0)
    assert flagged(tree).dead == ("conv/kernel",)


def test_a_flag_of_a_bias_falls_when_its_weights_are_alive():
    watch = health_flags(patience=1)
    state = watch.init(4)
    for conv, up in ((dense(0.0, 0.0), True), (dense(1.0, 0.0), False)):
        h = health({"conv": conv, "out": dense(1.0, 1.0)})
        state = watch.update(h, state)
        assert bool(watch.report(h.names, state)) == up


def test_zeros_that_are_no_inactive_units():
    stats = ("norm", "zeros")
    rows = jnp.zeros((40, 3)).at[:4].set(1.0)
    # An embedding of which few rows were looked up, and inputs that are always zero.
    healthy = {"embedding": {"table": rows}, "first": {"w": rows, "b": jnp.ones(3)}}
    assert not flagged(healthy, stats=stats)
    units = jnp.asarray([1.0, 0.0, 0.0])
    assert flagged({"first": {"w": rows * units, "b": units}}, stats=stats).half_dead == (
        "first/b",
        "first/w",
    )
    stacked = {"layers": {"w": jnp.ones((2, 4, 3)) * units, "b": jnp.ones((2, 3)) * units}}
    assert flagged(stacked, stats=stats).half_dead == ("layers/b", "layers/w")
    assert flagged(stacked, stats=stats, groups=1).half_dead == ("layers",)


def test_biases_and_weights():
    shapes = {
        "conv/bias": (8, 1, 1),
        "conv/weight": (8, 3, 3, 3),
        "heads/b": (4, 16),
        "heads/w": (64, 4, 16),
        "norm/bias": (8,),
        "norm/scale": (8,),
        "b1": (8,),
        "b2": (8,),
        "w1": (8, 8),
        "w2": (8, 8),
        "table": (50, 8),
        "all": None,
    }
    names = tuple(shapes)
    weights = weights_of(names, tuple(shapes.values()))
    found = {name: names[w] for name, w in zip(names, weights, strict=True) if names[w] != name}
    assert found == {
        "conv/bias": "conv/weight",
        "heads/b": "heads/w",
        "b1": "w1",
        "b2": "w2",
    }
    biases = dict(zip(names, biases_of(weights, tuple(shapes.values())), strict=True))
    assert names[biases["w2"]] == "b2"
    assert biases["table"] is None
    assert names[biases["norm/scale"]] == "norm/scale"
    assert names[biases["all"]] == "all"


def test_a_fit_that_converges_may_tremble():
    falling = [10.0 ** -(i / 20) for i in range(120)]
    assert max(watched(health_flags(patience=1), [*falling, 0.1, 0.1, 1.0])) == 0


def test_what_was_negligible_at_first_may_grow():
    # The gradient of a bias is rounding at a symmetric start.
    assert watched(health_flags(patience=1, dead=0, vanishing=0), [1e-9, 1.0, 1.0])[-1] == 0
    assert watched(health_flags(patience=1, dead=0), [1e-9, 1.0, 1e4])[-1] == Flag.EXPLODING

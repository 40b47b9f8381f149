from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
import zoo
from jax.ad_checkpoint import checkpoint_name

from fnopt.gradients.ghost import ghost_report
from fnopt.taps import tap


def rules(problem, **options):
    report = ghost_report(problem.loss, **options)(*problem[1:])
    return {p.name: (p.rule, p.enters) for p in report.params}


def test_every_rule():
    assert rules(zoo.transformer(64)) | {"blocks": None} == {
        "blocks": None,
        "place": ("params", ("add",)),
        "table": ("matrix", ("gather", "dot_general")),
        **{
            f"blocks/{i}/{name}": rule
            for i in range(2)
            for name, rule in {
                "b1": ("params", ("add",)),
                "b2": ("params", ("add",)),
                "c1": ("params", ("add",)),
                "c2": ("params", ("add",)),
                "s1": ("params", ("mul",)),
                "s2": ("params", ("mul",)),
                "o": ("gram", ("dot_general",)),
                "qkv": ("gram", ("dot_general",)),
                "w1": ("gram", ("dot_general",)),
                "w2": ("gram", ("dot_general",)),
            }.items()
        },
    }


def test_names_are_looked_through():
    # A tapped weight is the weight: still never formed, and tied to its other uses.
    def loss(w, x):
        named = checkpoint_name(tap("w", w).T, "turned")
        return jnp.sum(jnp.tanh(jnp.tanh(x @ w) @ named))

    (w,) = ghost_report(loss)(jnp.ones((40, 30)), jnp.ones((5, 40))).params
    assert (w.rule, w.enters) == ("gram", ("dot_general", "dot_general"))


def test_reasons():
    report = ghost_report(zoo.learned_start().loss)(*zoo.learned_start()[1:])
    by_name = {p.name: p for p in report.params}
    assert (by_name["h0"].rule, by_name["h0"].why) == ("vmap", "the first carry of a scan")
    assert report.coverage == pytest.approx(36 / 42)
    ignored = ghost_report(zoo.ignored().loss)(*zoo.ignored()[1:]).params
    assert [p.rule for p in ignored] == ["none", "none", "gram"]
    merged = ghost_report(zoo.lora_merged().loss)(*zoo.lora_merged()[1:]).params
    assert {p.why for p in merged} == {
        "computed from the params before it is combined with the example"
    }


def test_the_choice_between_inner_products_and_matrices():
    def loss(w, x):
        return jnp.sum(jnp.tanh(x @ w) ** 2)

    w = jnp.ones((32, 32))
    chosen = {r: ghost_report(loss)(w, jnp.ones((2, r, 32))).params[0].rule for r in (1, 2, 4, 8)}
    assert chosen == {1: "gram", 2: "gram", 4: "gram", 8: "matrix"}


def test_it_prints_a_table():
    text = str(ghost_report(zoo.mlp().loss)(*zoo.mlp()[1:]))
    lines = text.splitlines()
    assert lines[0].split() == ["param", "shape", "rule", "enters", "by", "why"]
    assert lines[1].startswith("h/0")
    assert "(6, 6)" in lines[1]
    assert "dot_general" in lines[1]
    assert lines[-1].startswith("100.0 % of the params without vmap; stored per example: ")


def test_bytes():
    problem = zoo.mlp(64)
    report = ghost_report(problem.loss)(*problem[1:])
    numbers = 64 * 64 + 64 + 64 * 3 + 3
    assert report.gradient_bytes == 4 * numbers
    # Two inputs, two cotangents, and the gradients of the biases.
    assert report.bytes_per_example == 4 * (64 + 64 + 64 + 3 + 64 + 3)


def test_complex_params_are_left_to_vmap():
    def loss(w, x):
        return jnp.sum(jnp.abs(w * x.astype(jnp.complex64)) ** 2)

    (param,) = ghost_report(loss)(jnp.ones(3, jnp.complex64), jnp.ones((2, 3))).params
    assert (param.rule, param.why) == ("vmap", "complex64 params")


def test_nothing_is_computed():
    def loss(w, x):
        jax.debug.callback(lambda: pytest.fail("the loss ran"))
        return jnp.sum(w * x)

    assert ghost_report(loss)(jnp.ones(3), jnp.ones((2, 3))).coverage == 1.0

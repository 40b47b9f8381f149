"""Passes over memory of every elementwise optimizer: array reads and writes of its compiled step.

A step is as fast as memory lets it be. XLA on a CPU compiles one loop for each output array, and
that loop reads all arrays of its formula; an accelerator joins some of these loops. The count is
that of the optimized program, so it does not depend on the machine's speed or load.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest

import fnopt
from fnopt.programs import jaxprs
from tests.contract.registry import CASES

SIZE = 1_000_003  # no other array of a program has it

# The arrays that each output is computed from: `p` are the params, `g` is the gradient, a slot by
# its name is its old value, with a prime its new value.
ADAM = "mu: mu g, nu: nu g, p: p mu' nu'"
FORMULAS = {
    "sgd": "p: p g",
    "sgd_nesterov": "trace: trace g, p: p g trace'",
    "sgdr": "trace: trace g, p: p trace'",
    "trace": "trace: trace g, p: p trace'",
    "sign_sgd": "p: p g",
    "signum": "trace: trace g, p: p trace'",
    "clip": "p: p g",
    "lion": "mu: mu g, p: p g mu'",
    "rmsprop": "nu: nu g, p: p g nu'",
    "rmsprop_centered": "mu: mu g, nu: nu g, trace: trace g mu' nu', p: p trace'",
    "adagrad": "total: total g, p: p g total'",
    "adadelta": "e_g: e_g g, e_x: e_x g e_g', p: p g e_g' e_x'",
    "rprop": "size: size g previous, previous: g previous size', p: p previous'",
    "sm3": "mu: mu g, nu: nu g mu', p: p nu'",
    "madgrad": "v: v g, s: s g, p: p x0 v' s'",
    "adabelief": "mu: mu g, nu: nu g mu', p: p mu' nu'",
    "adan": "m: m g, v: v g previous, n: n g previous, previous: g, p: p m' v' n'",
    "adopt": "mu: mu g nu, nu: nu g, p: p mu'",
    "acprop": "mu: mu g, nu: nu g mu, p: p g nu",
    "diffgrad": "mu: mu g, nu: nu g, previous: g, p: p g previous mu' nu'",
    "ademamix": "m1: m1 g, m2: m2 g, nu: nu g, p: p m1' m2' nu'",
    "simplified_ademamix": "m: m g, n: n g, p: p g m' n'",
    "optimistic_gradient_descent": "previous: g, p: p g previous",
    "cocob": "c: c g, scale: scale g, total: total g, r: r g p p0, p: p p0 c' scale' total' r'",
    "schedule_free_sgd": "z: z g, p: p z z'",
    "schedule_free_adamw": "nu: nu g, z: z g nu', p: p z z'",
    **dict.fromkeys(["adam", "adamw", "adamw_scheduled_decay", "adamp", "radam", "yogi"], ADAM),
    **dict.fromkeys(["adamax", "adamaxw", "adabound"], ADAM),
    **dict.fromkeys(["amsgrad", "amsbound"], "mu: mu g, nu: nu g, top: top nu', p: p mu' top'"),
    **dict.fromkeys(["nadam", "nadamw", "qhadam"], "mu: mu g, nu: nu g, p: p g mu' nu'"),
    **dict.fromkeys(
        ["optimistic_adam", "optimistic_adam_v2"],
        "mu: mu g, nu: nu g, previous: g mu' nu', p: p previous previous'",
    ),
    # A vector has no matrix method: these step it by Adam, with Nesterov's look-ahead or without.
    **dict.fromkeys(["muon", "normuon"], "mu: mu g, nu: nu g, p: p g mu' nu'"),
    **dict.fromkeys(["galore", "kl_shampoo", "matrix_parts", "psgd_kron", "shampoo", "soap"], ADAM),
    "riemannian": ADAM,  # where no param lives on a manifold
}


class Excess(NamedTuple):
    """What a step takes beyond its formula.

    Attributes:
        passes: Further reads and writes.
        temporaries: Arrays of the params' size that it keeps besides.
        reason: Why.
    """

    passes: int
    temporaries: int
    reason: str


# An old value that is read by the update has to outlive the loop that overwrites it. Where the
# update can't be written with the new value, `write_after` orders the loops, for one more read.
EXCESS = {
    "adopt": Excess(1, 0, "`nu` is stored after the mean that it divides"),
    "diffgrad": Excess(3, 0, "`previous` is stored after the direction, which is stored for it"),
    "adan": Excess(2, 0, "`previous` is stored after `v` and `n`"),
    "acprop": Excess(5, 1, "`nu` is stored after the direction, `mu` after `nu`"),
    "cocob": Excess(5, 1, "the reward reads the old params"),
    "optimistic_gradient_descent": Excess(3, 1, "XLA repeats the direction and copies `previous`"),
    "optimistic_adam": Excess(5, 2, "as above, with the direction of Adam in memory"),
    "optimistic_adam_v2": Excess(5, 2, "as above, with the direction of Adam in memory"),
    "schedule_free_sgd": Excess(2, 1, "`z` is copied for the average, which reads its old value"),
    "schedule_free_adamw": Excess(2, 1, "`z` is copied for the average, which reads its old value"),
}

# What brings the elements of an array together, chooses a program or draws numbers.
_NOT_ELEMENTWISE = re.compile(r"reduce_(?!precision)|arg|cum|dot_general|cond|while|scan|random")


def passes_needed(formula: str) -> int:
    """The reads of every output and its write."""
    return sum(1 + len(output.split(":")[1].split()) for output in formula.split(","))


def step_of(case: Any, dtype: Any = jnp.float32) -> tuple[Any, tuple[Any, ...]]:
    """A whole step as a function, and the types of its params, state and gradients."""
    tx, params = case.make(), {"w": jax.ShapeDtypeStruct((SIZE,), dtype)}

    def step(params: Any, state: Any, grads: Any) -> Any:
        updates, state = tx.update(grads, state, params, **case.extras)
        return fnopt.apply_updates(params, updates), state

    return step, (params, jax.eval_shape(tx.init, params), params)


def is_elementwise(case: Any) -> bool:
    """Whether no operation of a step brings the elements of an array together."""
    step, types = step_of(case)
    names = {e.primitive.name for e in jaxprs.equations(jax.make_jaxpr(step)(*types).jaxpr)}
    return not any(map(_NOT_ELEMENTWISE.match, names))


def passes(program: str) -> int:
    """Arrays that the kernels of an optimized program read and write."""
    entry = program[program.index("\nENTRY ") :]
    # a line is `%name = type opcode(%operand, ...), attributes`
    lines = re.findall(r"^ +(?:ROOT )?%?(\S+) = (\(.*?\)|\S+) ([\w-]+)\((.*)$", entry, re.M)
    arrays = {name for name, kind, _, _ in lines if str(SIZE) in kind}
    return sum(_passes_of(arrays, *line) for line in lines)


def _passes_of(arrays: set[str], name: str, kind: str, opcode: str, rest: str) -> int:
    if opcode in ("parameter", "constant", "tuple", "get-tuple-element", "bitcast"):
        return 0
    assert opcode not in ("call", "while", "conditional"), f"{name} is not one loop"
    operands = set(re.findall(r"%([\w.-]+)", rest[: rest.index(")")]))
    return kind.count(str(SIZE)) + len(arrays & operands)


def test_every_elementwise_optimizer_is_counted():
    found = {c.name for c in CASES if c.minimize is not None and is_elementwise(c)}
    assert found == FORMULAS.keys()


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="other compilers join loops")
@pytest.mark.parametrize("case", [c for c in CASES if c.name in FORMULAS], ids=repr)
def test_a_step_reads_and_writes_what_its_formula_needs(case: Any):
    step, types = step_of(case)
    program = jax.jit(step, donate_argnums=(0, 1)).lower(*types).compile()
    excess = EXCESS.get(case.name, Excess(0, 0, ""))
    assert passes(program.as_text() or "") == passes_needed(FORMULAS[case.name]) + excess.passes
    temporaries = program.memory_analysis().temp_size_in_bytes / (4 * SIZE)
    assert round(temporaries, 2) == excess.temporaries


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="other compilers join loops")
@pytest.mark.parametrize("name", ["sgd", "adamw", "lion", "rmsprop", "amsgrad"])
def test_casts_of_bfloat16_params_take_no_pass(name: str):
    step, types = step_of(next(c for c in CASES if c.name == name), jnp.bfloat16)
    program = jax.jit(step, donate_argnums=(0, 1)).lower(*types).compile()
    assert passes(program.as_text() or "") == passes_needed(FORMULAS[name])
    assert program.memory_analysis().temp_size_in_bytes < SIZE / 100


def test_a_read_too_many_is_counted():
    """The count by hand of two loops: one of two arrays, and one of three."""

    def step(p: Any, m: Any, g: Any) -> Any:
        m = 0.9 * m + g
        return p - jnp.sqrt(m) + 0 * g, m

    x = jax.ShapeDtypeStruct((SIZE,), jnp.float32)
    program = jax.jit(step, donate_argnums=(0, 1)).lower(x, x, x).compile()
    assert passes(program.as_text() or "") == (2 + 1) + (3 + 1)

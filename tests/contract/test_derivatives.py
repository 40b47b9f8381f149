"""Derivatives through three steps, by the first params and by every hyper-parameter.

Central differences in float64 are the right values. One program is compiled for each optimizer: its
values serve the differences, too.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from tests.contract.registry import CASES, Case

RANDOM = np.random.default_rng(0)
A, B, START = (RANDOM.standard_normal((3, 3)) for _ in range(3))
PARAMS = {"b": RANDOM.standard_normal(3), "idle": np.ones(2), "w": START}

# Parts that don't descend by themselves: their updates are taken as gradients.
UPHILL = {
    *("reduce_on_plateau", "identity", "scale", "add_decayed_weights", "trace", "ema"),
    *("keep_params_nonnegative", "masked", "record_health", "snapshot", "emit_health"),
    *("scale_by_lbfgs", "small_parts", "centralize", "zero_nans", "clip"),
}
ROUNDED = {
    "stored_in_less": "slots of 8 and 16 bits are steps of their values",
    "narrow_params": "params are rounded to their dtype",
}
EVERY = [  # what is computed every tenth step by default
    Case("soap_each_step", lambda: fnopt.soap(1e-2, precondition_frequency=1)),
    Case("kl_shampoo_each_step", lambda: fnopt.kl_shampoo(1e-2, precondition_frequency=1)),
    Case("shampoo_each_step", lambda: fnopt.shampoo(1e-2, precondition_frequency=1)),
    Case("galore_each_step", lambda: fnopt.galore(1e-2, 2, update_proj_gap=1)),
]
MATRIX_CASES = [*EVERY, *(case for case in CASES if case.name in ("muon", "psgd_kron", "normuon"))]


def generic(p: Any) -> Any:
    """Gradients of full rank that change from step to step; none of `idle`."""
    w, b = p["w"], p["b"]
    squares = 0.05 * jnp.sum((jnp.asarray(A) @ w @ jnp.asarray(B) - 1) ** 2)
    walls = 0.3 * jnp.sum(jnp.cosh(w)) + jnp.sum(jnp.cosh(b - 0.3))
    return squares + walls + jnp.sum(jnp.sin(w @ b))


def of_rank_one(p: Any) -> Any:
    """Gradients of rank one by `w`, and zeros by `b`."""
    return jnp.cosh(jnp.asarray(A[0]) @ p["w"] @ jnp.asarray(B[0]) + 0.3)


def of_equal_values(p: Any) -> Any:
    """Gradients whose singular values are equal, at an orthogonal matrix."""
    return 0.5 * jnp.sum(p["w"] ** 2) + jnp.sum(jnp.cosh(p["b"]))


def is_number(x: Any) -> bool:
    return isinstance(x, float) or jnp.issubdtype(jnp.result_type(x), jnp.floating)


def nudged(name: str, x: Any) -> jax.Array:
    """Beside a default such as 1 or 0, where many formulas bend; no formula bends at `eps_root`."""
    x = np.asarray(x, np.float64)
    return jnp.asarray(np.where((x == 0) & (not name.endswith("eps_root")), 1e-2, 0.95 * x))


def outer(p: Any) -> Any:
    return sum(jnp.sum(jnp.sin((1 + i) * x + 0.3)) for i, x in enumerate(jax.tree.leaves(p)))


def after_steps(case: Case, loss: Any, tx: Any, params: Any) -> Any:
    def step(carry: Any, _: Any) -> Any:
        params, state = carry
        value, grads = jax.value_and_grad(loss)(params)
        given = {"value": value, "obj_fn": loss, "logits_fn": lambda p: loss(p) * jnp.ones((1, 2))}
        extras = {name: given[name] for name in case.extras}
        updates, state = tx.update(grads, state, params, **extras)
        scale = -1e-2 if case.name in UPHILL else 1.0
        updates = jax.tree.map(lambda u: scale * u, updates)
        return (fnopt.apply_updates(params, updates), state), None

    (params, _), _ = jax.lax.scan(step, (params, tx.init(params)), length=3)
    return outer(params)


class Steps:
    """The value after three steps as a function of numbers, and its derivative, as one program."""

    def __init__(self, case: Case, loss: Any = generic, params: Any = PARAMS) -> None:
        tx = case.make()
        found, treedef = jax.tree.flatten(tx)
        names = fnopt.leaf_paths(tx)
        self.names = jax.tree.leaves(names)
        self.numbers = [
            nudged(name, x) if is_number(x) else x
            for name, x in zip(self.names, found, strict=True)
        ]
        self.params = jax.tree.map(jnp.asarray, params)
        finite = [is_number(x) and bool(np.isfinite(x).all()) for x in found]
        self.free = [i for i, yes in enumerate(finite) if yes]

        @jax.jit
        @functools.partial(jax.value_and_grad, argnums=(0, 1))
        def run(free: Any, params: Any) -> Any:
            numbers = list(self.numbers)
            for i, x in zip(self.free, free, strict=True):
                numbers[i] = x
            return after_steps(case, loss, treedef.unflatten(numbers), params)

        self.run = run

    def slope(self, direction: Any, h: float) -> tuple[float, float, float]:
        """The derivative in a direction, the difference of fourth order, and its rounding."""
        free = [self.numbers[i] for i in self.free]
        point = free, self.params

        def value(t: float) -> float:
            moved = jax.tree.map(lambda x, d: x + t * d, point, direction)
            return float(self.run(*moved)[0])

        def central(h: float) -> float:
            return (value(h) - value(-h)) / (2 * h)

        middle, grads = self.run(*point)
        pairs = zip(*map(jax.tree.leaves, (grads, direction)), strict=True)
        rounding = 100 * np.finfo(np.float64).eps * abs(float(middle)) / h
        return (
            sum(float(jnp.vdot(g, d)) for g, d in pairs),
            (4 * central(h / 2) - central(h)) / 3,
            rounding,
        )

    def by_params(self) -> tuple[float, float, float]:
        random = np.random.default_rng(1)
        direction = jax.tree.map(
            lambda x: jnp.asarray(random.standard_normal(x.shape)), self.params
        )
        return self.slope(([jnp.zeros_like(self.numbers[i]) for i in self.free], direction), 1e-5)

    def by_number(self, which: int) -> tuple[float, float, float]:
        x = abs(float(np.max(self.numbers[which])))
        room = min(1e-2, abs(1 - x), x)
        # What is added to a root is far below it, and needs a larger share against rounding.
        h = 1e-7 if x == 0 else (1e-1 if room < 1e-4 else 1e-2) * room
        free = [jnp.full_like(self.numbers[i], float(i == which)) for i in self.free]
        return self.slope((free, jax.tree.map(jnp.zeros_like, self.params)), h)


def assert_close(slopes: tuple[float, float, float], what: str) -> None:
    ours, expected, rounding = slopes
    assert abs(ours - expected) <= 1e-5 * abs(expected) + 1e-7 + rounding, (what, slopes)


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.name not in ROUNDED] + EVERY, ids=lambda case: case.name
)
def test_by_params_and_hyperparameters(case: Case, x64: None) -> None:
    steps = Steps(case)
    assert_close(steps.by_params(), "params")
    for i in steps.free:
        assert_close(steps.by_number(i), steps.names[i])


ORTHOGONAL = {"b": PARAMS["b"], "w": 1.5 * np.linalg.qr(START)[0]}
# Their derivative is that of a basis, which equal singular values don't have.
BASES = {"soap_each_step", "kl_shampoo_each_step", "galore_each_step"}


@pytest.mark.parametrize("case", MATRIX_CASES, ids=lambda case: case.name)
def test_gradients_that_degenerate(case: Case, x64: None) -> None:
    params = {"b": PARAMS["b"], "w": START}
    assert_close(Steps(case, of_rank_one, params).by_params(), "rank one")
    equal = Steps(case, of_equal_values, ORTHOGONAL)
    if case.name in BASES:
        _, grads = equal.run([equal.numbers[i] for i in equal.free], equal.params)
        assert all(jnp.isfinite(g).all() for g in jax.tree.leaves(grads))
    else:
        assert_close(equal.by_params(), "equal singular values")

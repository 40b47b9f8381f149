"""All kinds of schedules, and optax's schedules with the same arguments."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

import fnopt

CYCLE = {"init_value": 0.1, "peak_value": 1.0, "warmup_steps": 3, "end_value": 0.05}
CYCLES = [CYCLE | {"decay_steps": n} for n in (7, 9, 30)]


def inverse_root(count: Any) -> Any:
    return 1 / jnp.sqrt(1 + jnp.asarray(count, jnp.float32))


# name -> (ours, optax's or None)
CASES: dict[str, tuple[Any, Any]] = {
    "constant": (lambda m: m.constant_schedule(0.3), True),
    "linear": (lambda m: m.linear_schedule(0.3, 0.1, 20), True),
    "linear_begin": (lambda m: m.linear_schedule(0.3, 0.1, 20, 5), True),
    "linear_up": (lambda m: m.linear_schedule(0.0, 0.7, 1), True),
    "polynomial": (lambda m: m.polynomial_schedule(0.3, 0.1, 2.5, 20), True),
    "polynomial_begin": (lambda m: m.polynomial_schedule(0.3, 0.1, 0.5, 20, 5), True),
    "exponential": (lambda m: m.exponential_decay(0.3, 7, 0.5), True),
    "exponential_stairs": (
        lambda m: m.exponential_decay(0.3, 7, 0.5, transition_begin=4, staircase=True),
        True,
    ),
    "exponential_floor": (lambda m: m.exponential_decay(0.3, 7, 0.5, end_value=0.05), True),
    "exponential_growth": (lambda m: m.exponential_decay(0.3, 7, 1.5, end_value=1.0), True),
    "cosine": (lambda m: m.cosine_decay_schedule(0.3, 20), True),
    "cosine_alpha": (lambda m: m.cosine_decay_schedule(0.3, 20, alpha=0.1, exponent=1.5), True),
    "warmup_constant": (lambda m: m.warmup_constant_schedule(0.1, 0.5, 10), True),
    "warmup_cosine": (lambda m: m.warmup_cosine_decay_schedule(0.0, 0.5, 10, 35), True),
    "warmup_cosine_end": (
        lambda m: m.warmup_cosine_decay_schedule(0.1, 0.5, 10, 35, end_value=0.02, exponent=2.0),
        True,
    ),
    "piecewise": (lambda m: m.piecewise_constant_schedule(0.3, {20: 0.1, 10: 0.5}), True),
    "piecewise_none": (lambda m: m.piecewise_constant_schedule(0.3), True),
    "join": (
        lambda m: m.join_schedules(
            [
                m.linear_schedule(0.0, 0.5, 8),
                m.exponential_decay(0.5, 5, 0.5),
                m.cosine_decay_schedule(0.2, 10),
            ],
            [8, 20],
        ),
        True,
    ),
    "sgdr": (lambda m: m.sgdr_schedule(CYCLES), True),
    "interpolate": (
        lambda m: m.piecewise_interpolate_schedule("linear", 0.3, {20: 0.1, 10: 2.0}),
        True,
    ),
    "interpolate_cosine": (
        lambda m: m.piecewise_interpolate_schedule("cosine", 0.3, {10: 0.5, 30: 0.2}),
        True,
    ),
    # Corners are rounded down to integer steps, so the values jump at integer corners.
    "linear_onecycle": (lambda m: m.linear_onecycle_schedule(31, 0.3, 0.5, 0.7, 4.0, 10.0), True),
    "cosine_onecycle": (lambda m: m.cosine_onecycle_schedule(41, 0.3), True),
    "warmup_exponential": (
        lambda m: m.warmup_exponential_decay_schedule(0.1, 0.5, 10, 7, 0.5, end_value=0.05),
        True,
    ),
    "warmup_exponential_stairs": (
        lambda m: m.warmup_exponential_decay_schedule(0.0, 0.5, 0, 7, 0.5, 3, staircase=True),
        True,
    ),
    "wsd": (lambda m: m.warmup_stable_decay_schedule(0.1, 0.5, 10, 15, 12, 0.05), False),
    "wsd_sqrt": (
        lambda m: m.warmup_stable_decay_schedule(0.0, 0.5, 0, 9, 12, decay_type="sqrt"),
        False,
    ),
    "inverse_sqrt": (lambda m: m.inverse_sqrt_schedule(0.1, 0.5, 10), False),
    "restarts": (lambda m: m.cosine_restarts_schedule(0.3, 4, 2, alpha=0.1), False),
    "restarts_equal": (lambda m: m.cosine_restarts_schedule(0.3, 4, 1), False),
    "function": (lambda m: m.schedule(inverse_root), False),
}


def ours(name: str) -> fnopt.Schedule:
    return CASES[name][0](fnopt)


PEERS = [name for name, (_, peer) in CASES.items() if peer]

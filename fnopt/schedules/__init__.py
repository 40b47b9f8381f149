"""Schedules: hyper-parameters as functions of the step, each an immutable value."""

from __future__ import annotations

from fnopt.schedules._basic import constant_schedule, linear_schedule, polynomial_schedule, schedule
from fnopt.schedules._decay import (
    cosine_decay_schedule,
    cosine_restarts_schedule,
    exponential_decay,
    sgdr_schedule,
    warmup_constant_schedule,
    warmup_cosine_decay_schedule,
)
from fnopt.schedules._piecewise import (
    cosine_onecycle_schedule,
    join_schedules,
    linear_onecycle_schedule,
    piecewise_constant_schedule,
    piecewise_interpolate_schedule,
)
from fnopt.schedules._warmup import (
    inverse_sqrt_schedule,
    warmup_exponential_decay_schedule,
    warmup_stable_decay_schedule,
)

__all__ = [
    "constant_schedule",
    "cosine_decay_schedule",
    "cosine_onecycle_schedule",
    "cosine_restarts_schedule",
    "exponential_decay",
    "inverse_sqrt_schedule",
    "join_schedules",
    "linear_onecycle_schedule",
    "linear_schedule",
    "piecewise_constant_schedule",
    "piecewise_interpolate_schedule",
    "polynomial_schedule",
    "schedule",
    "sgdr_schedule",
    "warmup_constant_schedule",
    "warmup_cosine_decay_schedule",
    "warmup_exponential_decay_schedule",
    "warmup_stable_decay_schedule",
]

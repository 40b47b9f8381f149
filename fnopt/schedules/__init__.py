"""Schedules: hyper-parameters as functions of the step, each an immutable value."""

from fnopt.schedules._basic import constant_schedule

__all__ = ["constant_schedule"]

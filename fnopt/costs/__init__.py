"""Cost of a program: FLOPs, memory traffic, memory use, and the roofline model."""

from __future__ import annotations

from fnopt.costs._cost import cost
from fnopt.costs._distributed import DeviceCost, DistributedCost, Network, distributed_cost
from fnopt.costs._remarks import Compiled, Loop, Unknown
from fnopt.costs._result import Cost, GradCost, StepCost
from fnopt.costs._roofline import Hardware, Work, measure_hardware
from fnopt.costs._step import grad_cost, step_cost

__all__ = [
    "Compiled",
    "Cost",
    "DeviceCost",
    "DistributedCost",
    "GradCost",
    "Hardware",
    "Loop",
    "Network",
    "StepCost",
    "Unknown",
    "Work",
    "cost",
    "distributed_cost",
    "grad_cost",
    "measure_hardware",
    "step_cost",
]

"""Norms and weighted sums of per-example gradients that aren't formed in memory."""

from __future__ import annotations

from fnopt.gradients.ghost._eigen import rotate_rows as rotate_rows
from fnopt.gradients.ghost._eigen import rotate_rows_back as rotate_rows_back
from fnopt.gradients.ghost._kronecker import KroneckerBlock as KroneckerBlock
from fnopt.gradients.ghost._kronecker import Side as Side
from fnopt.gradients.ghost._kronecker import plan_blocks as plan_blocks
from fnopt.gradients.ghost._kronecker_factors import block_factors as block_factors
from fnopt.gradients.ghost._kronecker_factors import block_moments as block_moments
from fnopt.gradients.ghost._kronecker_factors import factor_traces as factor_traces
from fnopt.gradients.ghost._plan import Group, Plan
from fnopt.gradients.ghost._report import GhostReport, ParamRule, ghost_report
from fnopt.gradients.ghost._rows import GhostRows as GhostRows
from fnopt.gradients.ghost._rows import multiply_rows as multiply_rows
from fnopt.gradients.ghost._rows import record_rows as record_rows
from fnopt.gradients.ghost._rows import record_tape as record_tape
from fnopt.gradients.ghost._sites import find_sites as find_sites
from fnopt.gradients.ghost._trace import Ghost, GhostMeasurements, trace_ghost

__all__ = [
    "Ghost",
    "GhostMeasurements",
    "GhostReport",
    "Group",
    "ParamRule",
    "Plan",
    "ghost_report",
    "trace_ghost",
]

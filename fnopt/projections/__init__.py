"""Euclidean projections onto convex sets and spheres."""

from __future__ import annotations

from fnopt.projections._boxes import (
    projection_box,
    projection_box_section,
    projection_hypercube,
    projection_linf_ball,
    projection_non_negative,
)
from fnopt.projections._planes import (
    projection_affine_set,
    projection_halfspace,
    projection_hyperplane,
    projection_vector,
)
from fnopt.projections._simplex import (
    projection_l1_ball,
    projection_l1_sphere,
    projection_l2_ball,
    projection_l2_sphere,
    projection_simplex,
)
from fnopt.projections._simplex import simplex_of_rows as simplex_of_rows

__all__ = [
    "projection_affine_set",
    "projection_box",
    "projection_box_section",
    "projection_halfspace",
    "projection_hypercube",
    "projection_hyperplane",
    "projection_l1_ball",
    "projection_l1_sphere",
    "projection_l2_ball",
    "projection_l2_sphere",
    "projection_linf_ball",
    "projection_non_negative",
    "projection_simplex",
    "projection_vector",
]

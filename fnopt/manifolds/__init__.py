"""Manifolds for parameters: retractions, tangents, and optimization in tangent spaces."""

from __future__ import annotations

from fnopt.manifolds._cones import (
    PositiveDefinite,
    PositiveDefiniteMatrices,
    Probabilities,
    Simplex,
)
from fnopt.manifolds._frames import Oblique, OrthonormalFrames, Sphere, Stiefel, UnitVector
from fnopt.manifolds._manifold import Manifold
from fnopt.manifolds._motions import SE2, SE3, RigidMotions
from fnopt.manifolds._on import along_tangents as along_tangents
from fnopt.manifolds._on import check_point as check_point
from fnopt.manifolds._on import in_tangents as in_tangents
from fnopt.manifolds._on import is_on as is_on
from fnopt.manifolds._on import map_points as map_points
from fnopt.manifolds._on import on
from fnopt.manifolds._riemannian import RiemannianState, riemannian
from fnopt.manifolds._rotations import SO2, SO3, Rotations

__all__ = [
    "SE2",
    "SE3",
    "SO2",
    "SO3",
    "Manifold",
    "Oblique",
    "OrthonormalFrames",
    "PositiveDefinite",
    "PositiveDefiniteMatrices",
    "Probabilities",
    "RiemannianState",
    "RigidMotions",
    "Rotations",
    "Simplex",
    "Sphere",
    "Stiefel",
    "UnitVector",
    "on",
    "riemannian",
]

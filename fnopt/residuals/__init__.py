"""Residual functions of pytrees as functions of vectors, and their derivatives."""

from __future__ import annotations

from fnopt.residuals._bounds import Box, box_of
from fnopt.residuals._derivative import Derivative
from fnopt.residuals._derivative import mixed_rows as mixed_rows
from fnopt.residuals._derivative import scaled_rows as scaled_rows
from fnopt.residuals._examples import ExampleResiduals as ExampleResiduals
from fnopt.residuals._examples import Examples as Examples
from fnopt.residuals._examples import by_example as by_example
from fnopt.residuals._examples import example_residuals as example_residuals
from fnopt.residuals._flat import FlatResidual, flat_residual, one_function, seen_params
from fnopt.residuals._given import given_derivative
from fnopt.residuals._given import without_operators as without_operators
from fnopt.residuals._implicit import after_newton as after_newton
from fnopt.residuals._implicit import minimum_tangent, pushed
from fnopt.residuals._implicit import off_flat_places as off_flat_places
from fnopt.residuals._implicit import projected_tangent as projected_tangent
from fnopt.residuals._implicit import root_tangent as root_tangent
from fnopt.residuals._linearise import (
    curvature_along,
    hessian_product,
    linearise,
    linearise_gram,
    linearise_lanes,
    linearise_products,
    probed_columns,
    value_and_slope,
)
from fnopt.residuals._linearise import linearise_pull as linearise_pull
from fnopt.residuals._parameters import (
    Constraint,
    Parametrisation,
    fixed,
    interval,
    parametrised,
    positive,
    tied,
)
from fnopt.residuals._parameters import are_in_a_row as are_in_a_row
from fnopt.residuals._parameters import as_vector as as_vector
from fnopt.residuals._parameters import floating_start as floating_start
from fnopt.residuals._prefix import broadcast_prefix as broadcast_prefix
from fnopt.residuals._robust import (
    RobustLoss,
    arctan,
    barron,
    cauchy,
    custom_loss,
    huber,
    named_loss,
    robust_slopes,
    soft_l1,
    tukey,
)
from fnopt.residuals._robust_cost import RobustCost, robust_cost
from fnopt.residuals._weights import Whitening, whitened

__all__ = [
    "Box",
    "Constraint",
    "Derivative",
    "FlatResidual",
    "Parametrisation",
    "RobustCost",
    "RobustLoss",
    "Whitening",
    "arctan",
    "barron",
    "box_of",
    "cauchy",
    "curvature_along",
    "custom_loss",
    "fixed",
    "flat_residual",
    "given_derivative",
    "hessian_product",
    "huber",
    "interval",
    "linearise",
    "linearise_gram",
    "linearise_lanes",
    "linearise_products",
    "minimum_tangent",
    "named_loss",
    "one_function",
    "parametrised",
    "positive",
    "probed_columns",
    "pushed",
    "robust_cost",
    "robust_slopes",
    "seen_params",
    "soft_l1",
    "tied",
    "tukey",
    "value_and_slope",
    "whitened",
]

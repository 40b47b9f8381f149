"""Flattening of residual functions, and their derivatives, constraints, weights and losses."""

from __future__ import annotations

from fnopt.residuals._bounds import Box as Box
from fnopt.residuals._bounds import bounds_pair as bounds_pair
from fnopt.residuals._bounds import box_of as box_of
from fnopt.residuals._bounds import check_bounds as check_bounds
from fnopt.residuals._bounds import free_box as free_box
from fnopt.residuals._charts import charted as charted
from fnopt.residuals._curved import Parametrization as Parametrization
from fnopt.residuals._curved import curved as curved
from fnopt.residuals._derivative import Derivative as Derivative
from fnopt.residuals._derivative import mixed_rows as mixed_rows
from fnopt.residuals._derivative import scaled_rows as scaled_rows
from fnopt.residuals._examples import ExampleResiduals as ExampleResiduals
from fnopt.residuals._examples import Examples as Examples
from fnopt.residuals._examples import by_example as by_example
from fnopt.residuals._examples import example_residuals as example_residuals
from fnopt.residuals._flat import FlatResidual as FlatResidual
from fnopt.residuals._flat import flat_residual as flat_residual
from fnopt.residuals._flat import joined_function as joined_function
from fnopt.residuals._flat import param_shapes as param_shapes
from fnopt.residuals._given import FreeJacobian as FreeJacobian
from fnopt.residuals._given import formed as formed
from fnopt.residuals._given import free_derivative as free_derivative
from fnopt.residuals._given import free_jacobian as free_jacobian
from fnopt.residuals._given import given_derivative as given_derivative
from fnopt.residuals._given import without_operators as without_operators
from fnopt.residuals._implicit import minimum_tangent
from fnopt.residuals._implicit import newton_steps as newton_steps
from fnopt.residuals._implicit import perturb_zero_columns as perturb_zero_columns
from fnopt.residuals._implicit import projected_tangent as projected_tangent
from fnopt.residuals._implicit import pushed as pushed
from fnopt.residuals._implicit import root_tangent as root_tangent
from fnopt.residuals._linearize import curvature_along as curvature_along
from fnopt.residuals._linearize import hessian_product as hessian_product
from fnopt.residuals._linearize import linearize as linearize
from fnopt.residuals._linearize import linearize_gram as linearize_gram
from fnopt.residuals._linearize import linearize_lanes as linearize_lanes
from fnopt.residuals._linearize import linearize_products as linearize_products
from fnopt.residuals._linearize import linearize_pull as linearize_pull
from fnopt.residuals._linearize import probed_columns as probed_columns
from fnopt.residuals._linearize import value_and_slope as value_and_slope
from fnopt.residuals._parameters import Constraint, fixed, interval, positive, tied
from fnopt.residuals._parameters import parametrize as parametrize
from fnopt.residuals._prefix import broadcast_prefix as broadcast_prefix
from fnopt.residuals._prior import prior
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
from fnopt.residuals._robust_cost import RobustCost as RobustCost
from fnopt.residuals._robust_cost import as_loss as as_loss
from fnopt.residuals._robust_cost import robust_cost as robust_cost
from fnopt.residuals._start import as_vector as as_vector
from fnopt.residuals._start import floating_start as floating_start
from fnopt.residuals._start import is_number_list as is_number_list
from fnopt.residuals._weights import Whitening as Whitening
from fnopt.residuals._weights import whitened as whitened

__all__ = [
    "Constraint",
    "RobustLoss",
    "arctan",
    "barron",
    "cauchy",
    "custom_loss",
    "fixed",
    "huber",
    "interval",
    "minimum_tangent",
    "named_loss",
    "positive",
    "prior",
    "robust_slopes",
    "soft_l1",
    "tied",
    "tukey",
]

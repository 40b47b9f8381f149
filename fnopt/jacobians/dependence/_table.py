"""Table of the dependence rules by primitive."""

from __future__ import annotations

from fnopt.jacobians.dependence import (
    _indexing,
    _moves,
    _sparse_matrices,
    _sums,
    _windows,
)
from fnopt.jacobians.dependence._rule import DependenceRule, rule

_SCATTERED = "update_jaxpr update_consts indices_are_sorted"
_WINDOW = "window_dimensions window_strides padding"


def _elementwise(names: str, ignores: str = "") -> dict[str, DependenceRule]:
    return dict.fromkeys(names.split(), rule(_moves.elementwise, "", ignores))


RULES: dict[str, DependenceRule] = {
    **_elementwise("add add_any sub neg div real imag complex copy copy_p"),
    **_elementwise("conj", "input_dtype"),
    **_elementwise("convert_element_type", "new_dtype weak_type"),
    **_elementwise("reduce_precision", "exponent_bits mantissa_bits"),
    **_elementwise("name tap", "name"),
    **_elementwise("sharding_constraint", "layout context_mesh unconstrained_dims"),
    **_elementwise("reshard", "dst_sharding concrete_mesh"),
    "optimization_barrier": rule(_moves.each_by_itself),
    "device_put": rule(_moves.each_by_itself, "", "devices srcs copy_semantics"),
    "mul": rule(_moves.mul, "", "out_dtype"),
    "select_n": rule(_moves.select),
    "pad": rule(_moves.pad, "padding_config"),
    "reshape": rule(_moves.reshape, "dimensions", "new_sizes"),
    "squeeze": rule(_moves.squeeze, "", "dimensions"),
    "expand_dims": rule(_moves.squeeze, "", "dimensions"),
    "broadcast_in_dim": rule(_moves.broadcast_in_dim, "broadcast_dimensions", "shape"),
    "transpose": rule(_moves.transpose, "permutation"),
    "rev": rule(_moves.rev, "dimensions"),
    "slice": rule(_moves.slice_, "start_indices limit_indices strides"),
    "concatenate": rule(_moves.concatenate, "dimension"),
    "split": rule(_moves.split, "sizes axis"),
    "stack": rule(_moves.stack, "axis"),
    "unstack": rule(_moves.unstack, "axis"),
    "tile": rule(_moves.tile, "reps"),
    "dynamic_slice": rule(_indexing.dynamic_slice, "slice_sizes"),
    "dynamic_update_slice": rule(_indexing.dynamic_update_slice),
    "gather": rule(
        _indexing.gather,
        "dimension_numbers slice_sizes mode",
        "indices_are_sorted unique_indices fill_value",
    ),
    "scatter": rule(_indexing.scatter, "dimension_numbers mode unique_indices", _SCATTERED),
    **dict.fromkeys(
        ("scatter-add", "scatter-sub", "scatter-mul"),
        rule(_indexing.scatter_add, "dimension_numbers mode", f"{_SCATTERED} unique_indices"),
    ),
    "reduce_sum": rule(_sums.reduce_sum, "axes"),
    "cumsum": rule(_sums.cumsum, "axis reverse"),
    "dot_general": rule(_sums.dot_general, "dimension_numbers"),
    "fft": rule(_sums.fft, "fft_lengths", "fft_type"),
    "conv_general_dilated": rule(
        _windows.conv,
        "window_strides padding lhs_dilation rhs_dilation dimension_numbers "
        "feature_group_count batch_group_count",
    ),
    "reduce_window_sum": rule(_windows.window_sum, f"{_WINDOW} base_dilation window_dilation"),
    "select_and_gather_add": rule(
        _windows.window_sum, f"{_WINDOW} base_dilation window_dilation", "select_prim"
    ),
    "select_and_scatter_add": rule(_windows.window_scatter, _WINDOW, "select_prim"),
    "triangular_solve": rule(
        _sums.triangular_solve, "left_side lower transpose_a", "conjugate_a unit_diagonal"
    ),
    "tridiagonal_solve": rule(_sums.tridiagonal_solve, "", "perturb_singular"),
    "custom_linear_solve": rule(_sums.linear_solve, "const_lengths jaxprs"),
    "bcoo_dot_general": rule(_sparse_matrices.bcoo_product, "dimension_numbers lhs_spinfo"),
    "bcsr_dot_general": rule(_sparse_matrices.bcsr_product, "dimension_numbers lhs_spinfo"),
    "bcoo_todense": rule(_sparse_matrices.bcoo_dense, "", "spinfo"),
    "bcsr_todense": rule(_sparse_matrices.bcsr_dense, "", "spinfo"),
}

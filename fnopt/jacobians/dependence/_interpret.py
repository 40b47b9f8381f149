"""Abstract interpretation of a linear jaxpr with sets of inputs in place of numbers."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.extend import core as jex

from fnopt.jacobians.dependence import (
    _indexing,
    _moves,
    _sparse_matrices,
    _sums,
)
from fnopt.jacobians.dependence._control import branches, scan, while_loop
from fnopt.jacobians.dependence._rule import (
    DependenceRule,
    Entry,
    dependent,
    entry_of,
    outputs_of,
    rule,
    shape_of,
)
from fnopt.jacobians.dependence._sets import ALL, Sets
from fnopt.jacobians.dependence._sums import mixed
from fnopt.programs import jaxprs

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
        _sums.conv,
        "window_strides padding lhs_dilation rhs_dilation dimension_numbers "
        "feature_group_count batch_group_count",
    ),
    "reduce_window_sum": rule(_sums.window_sum, f"{_WINDOW} base_dilation window_dilation"),
    "select_and_gather_add": rule(
        _sums.window_sum, f"{_WINDOW} base_dilation window_dilation", "select_prim"
    ),
    "select_and_scatter_add": rule(_sums.window_scatter, _WINDOW, "select_prim"),
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


_CONTROL = {"cond": branches, "while": while_loop, "scan": scan}


def dependence(linear: jex.ClosedJaxpr, size: int) -> tuple[Sets, list[np.ndarray]]:
    r"""Compute, for each output of a program, a set of inputs that contains all its dependences.

    The program is interpreted once, with a set of inputs in place of every number. All outputs of
    an unknown operation, or of an operation with an unknown parameter, depend on all its inputs.
    The values of index arrays and the zeros of matrices are used if they are constants of the
    program. Writes to mutable arrays (`jax.new_ref`) aren't analyzed. In a program with such
    writes, every output is assumed to depend on all inputs.

    Args:
        linear: A program that is linear in its last argument, a vector of shape `[size]`, whose
            elements are the inputs. The other arguments have unknown values.
        size: The length of this vector.

    Returns:
        The table of sets, and an array of set indices for each output of the program.

    Example:
        >>> from fnopt.jacobians.dependence import dependence
        >>> program = jax.make_jaxpr(lambda x, v: x[1:] * v[1:] + v[0])(jnp.ones(3), jnp.ones(3))
        >>> sets, (ids,) = dependence(program, 3)
        >>> [part.tolist() for part in sets.members(ids)]
        [[0, 0, 1, 1], [0, 1, 0, 2]]
    """
    sets = Sets(size)
    *others, _ = linear.jaxpr.invars
    inputs = [Entry(shape_of(v)) for v in others] + [dependent(sets.inputs)]
    # Constants must stay concrete if the caller is inside of an outer trace.
    with jax.ensure_compile_time_eval():
        try:
            return sets, [entry.sets for entry in _run(sets, linear, inputs)]
        except _MutableArrayError:
            return sets, [np.full(shape_of(v), ALL, np.int32) for v in linear.jaxpr.outvars]


def _run(sets: Sets, closed: jex.ClosedJaxpr, inputs: list[Entry]) -> list[Entry]:
    consts = [entry_of(value) for value in closed.consts]
    return _walk(sets, closed.jaxpr, consts, inputs)


def _walk(sets: Sets, jaxpr: jex.Jaxpr, consts: list[Entry], inputs: list[Entry]) -> list[Entry]:
    entries: dict[jex.Var, Entry] = dict(zip(jaxpr.constvars, consts, strict=True))
    entries.update(zip(jaxpr.invars, inputs, strict=True))

    def read(atom: Any) -> Entry:
        return entry_of(atom.val) if isinstance(atom, jex.Literal) else entries[atom]

    for eqn in jaxpr.eqns:
        outputs = _outputs(sets, eqn, [read(atom) for atom in eqn.invars])
        entries.update(zip(eqn.outvars, outputs, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _outputs(sets: Sets, eqn: jex.JaxprEqn, inputs: list[Entry]) -> list[Entry]:
    if all(entry.ids is None for entry in inputs):
        return outputs_of(eqn, inputs)
    sub = jaxprs.called_jaxpr(eqn)
    if sub is not None:
        return _walk(sets, sub.jaxpr, [entry_of(value) for value in sub.consts], inputs)
    if _writes(eqn):
        raise _MutableArrayError
    name, run = eqn.primitive.name, lambda body, xs: _run(sets, body, xs)
    if name in _CONTROL:
        return _CONTROL[name](sets, run, eqn, inputs)
    rule, shapes = RULES.get(name), [shape_of(v) for v in eqn.outvars]
    if rule is None or not rule.knows(eqn):
        return [dependent(ids) for ids in mixed(sets, shapes, inputs)]
    outputs = rule(sets, eqn, inputs, run)
    assert [ids.shape for ids in outputs] == shapes, f"{name}: {[ids.shape for ids in outputs]}"
    return [dependent(ids) for ids in outputs]


class _MutableArrayError(Exception):
    """Raised if a value that depends on inputs is written to a mutable array."""


def _writes(eqn: jex.JaxprEqn) -> bool:
    return any(type(effect).__name__ in {"WriteEffect", "AccumEffect"} for effect in eqn.effects)

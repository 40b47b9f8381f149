"""From a linear program to the sets of inputs that its outputs depend on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.extend import core as jex

from fnopt.jacobians.dependence import _moves, _sums
from fnopt.jacobians.dependence._control import branches, scan, while_loop
from fnopt.jacobians.dependence._entry import Entry, dependent, entry_of, outputs_of
from fnopt.jacobians.dependence._sets import Sets
from fnopt.programs import jaxprs

Rule = Callable[[Sets, jex.JaxprEqn, list[Entry]], list[np.ndarray]]

_ELEMENTWISE = (
    *("add", "add_any", "sub", "neg", "div", "real", "imag", "conj", "complex"),
    *("convert_element_type", "reduce_precision", "copy", "copy_p", "name", "tap"),
)
_RULES: dict[str, Rule] = {
    **dict.fromkeys(_ELEMENTWISE, _moves.elementwise),
    "optimization_barrier": _moves.each_by_itself,
    "mul": _moves.mul,
    "select_n": _moves.select,
    "pad": _moves.pad,
    "reshape": _moves.reshape,
    "squeeze": _moves.reshape,
    "expand_dims": _moves.reshape,
    "broadcast_in_dim": _moves.broadcast_in_dim,
    "transpose": _moves.transpose,
    "rev": _moves.rev,
    "slice": _moves.slice_,
    "concatenate": _moves.concatenate,
    "split": _moves.split,
    "dynamic_slice": _moves.dynamic_slice,
    "dynamic_update_slice": _moves.dynamic_update_slice,
    "gather": _moves.gather,
    "scatter": _moves.scatter,
    "scatter-add": _moves.scatter_add,
    "reduce_sum": _sums.reduce_sum,
    "cumsum": _sums.cumsum,
    "dot_general": _sums.dot_general,
    "conv_general_dilated": _sums.conv,
    "reduce_window_sum": _sums.reduce_window_sum,
    "triangular_solve": _sums.triangular_solve,
    "fft": _sums.fft,
}
_CONTROL = {"cond": branches, "while": while_loop, "scan": scan}


def dependence(linear: jex.ClosedJaxpr, size: int) -> tuple[Sets, list[np.ndarray]]:
    r"""Which inputs each output of a program can depend on: never too few, perhaps too many.

    The program is walked once, with a set of inputs in place of every number. An operation that
    isn't known mixes all its inputs. Index arrays and zeros of matrices count where the program
    has them as constants.

    Args:
        linear: A program that is linear in its last argument, a vector of shape `[size]`. Of the
            other arguments nothing is known.
        size: The length of that vector.

    Returns:
        The sets, and for each output of the program an array of them.

    Example:
        >>> from fnopt.jacobians.dependence import dependence
        >>> program = jax.make_jaxpr(lambda x, v: x[1:] * v[1:] + v[0])(jnp.ones(3), jnp.ones(3))
        >>> sets, (ids,) = dependence(program, 3)
        >>> [part.tolist() for part in sets.members(ids)]
        [[0, 0, 1, 1], [0, 1, 0, 2]]
    """
    sets = Sets(size)
    *others, _ = linear.jaxpr.invars
    inputs = [Entry(_shape(v)) for v in others] + [dependent(sets.inputs)]
    with jax.ensure_compile_time_eval():  # also where something is being traced outside
        outputs = _run(sets, linear, inputs)
    return sets, [entry.sets for entry in outputs]


def _run(sets: Sets, closed: jex.ClosedJaxpr, inputs: list[Entry]) -> list[Entry]:
    consts = [entry_of(value) for value in closed.consts]
    return _walk(sets, closed.jaxpr, consts, inputs)


def _walk(sets: Sets, jaxpr: jex.Jaxpr, consts: list[Entry], inputs: list[Entry]) -> list[Entry]:
    known: dict[jex.Var, Entry] = dict(zip(jaxpr.constvars, consts, strict=True))
    known.update(zip(jaxpr.invars, inputs, strict=True))

    def read(atom: Any) -> Entry:
        return entry_of(atom.val) if isinstance(atom, jex.Literal) else known[atom]

    for eqn in jaxpr.eqns:
        outputs = _outputs(sets, eqn, [read(atom) for atom in eqn.invars])
        known.update(zip(eqn.outvars, outputs, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _outputs(sets: Sets, eqn: jex.JaxprEqn, inputs: list[Entry]) -> list[Entry]:
    if all(entry.ids is None for entry in inputs):
        return outputs_of(eqn, inputs)
    sub = jaxprs.called(eqn)
    if sub is not None:
        return _walk(sets, sub.jaxpr, [entry_of(value) for value in sub.consts], inputs)
    name = eqn.primitive.name
    if name in _CONTROL:
        return _CONTROL[name](sets, lambda body, xs: _run(sets, body, xs), eqn, inputs)
    found = _RULES.get(name, _sums.mixed)(sets, eqn, inputs)
    for ids, variable in zip(found, eqn.outvars, strict=True):
        assert ids.shape == _shape(variable), f"{name}: {ids.shape}"
    return [dependent(ids) for ids in found]


def _shape(variable: Any) -> tuple[int, ...]:
    return tuple(variable.aval.shape)

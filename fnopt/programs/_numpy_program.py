"""Evaluation of jaxprs by NumPy, without compilation."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend import core as jex

from fnopt.programs import _jaxprs as jaxprs
from fnopt.programs._control_flow import Cond, Scan, While, call_view, control_view
from fnopt.programs._jaxprs import SubJaxpr
from fnopt.programs._numpy_rules import Eqn, identity, numpy_rule

_quiet = functools.partial(np.errstate, all="ignore")  # infinities and NaN are results, as in JAX
# Maximum total size of operands and results in a block, which stores all results until the end of
# the block. In float64 this size is 128 MiB.
_MAX_WORK = 2**24
_CALLBACKS = {"pure_callback", "io_callback", "debug_callback"}
_FACTORIZATIONS = {"geqrf", "householder_product", "svd", "eigh", "cholesky", "lu"}
_ELEMENTS_PER_CALL = (
    1000  # elements that NumPy processes in the time of a call's overhead, 1 to 2 us
)


class OverBudgetError(Exception):
    """The error of a run that exceeds its budget of operations."""


class NotInNumpyError(Exception):
    """The error for a jaxpr that NumPy can't run."""


class NumpyProgram:
    """A jaxpr as a list of NumPy calls.

    Args:
        jaxpr: The program.
        consts: The constants of the jaxpr; None if the constants are the first arguments.
        structure: The structure of the results.
        device: The device of the results, if the arguments are committed to a device.

    Raises:
        NotInNumpyError: If the program has effects other than callbacks, large arrays, or arrays
            that NumPy doesn't support.
    """

    def __init__(
        self, jaxpr: jex.Jaxpr, consts: Sequence[Any] | None, structure: Any, device: Any = None
    ) -> None:
        self.spent, self.budget = 0.0, np.inf
        self.calls_back = False  # whether a second run would repeat Python callbacks
        self.size = jaxprs.program_size(jaxpr)
        self.structure, self.device = structure, device
        inputs = [*(jaxpr.constvars if consts is None else ()), *jaxpr.invars]
        self.avals = [var.aval for var in inputs]
        for aval in self.avals:
            _dtype(aval)
        returned: list[Any] = [atom.aval for atom in jaxpr.outvars]
        if any(aval.weak_type for aval in returned):
            raise NotInNumpyError("NumPy has no weak types")
        with _quiet():
            self._run = _Block(self, jaxpr, consts)

    def __call__(self, args: Sequence[Any], budget: float = np.inf) -> Any:
        """Run the program.

        Args:
            args: The arrays.
            budget: The maximum total number of operations of all calls.

        Raises:
            OverBudgetError: If the calls exceed the budget.
        """
        self.budget = np.inf if self.calls_back else budget
        with _quiet():
            out = self._run(*map(_array, args, self.avals))
        return jax.tree.unflatten(self.structure, jax.device_put(out, self.device))

    def spend(self, cost: float) -> None:
        """Add to the number of operations, and raise an error beyond the budget."""
        self.spent += cost
        if self.spent > self.budget:
            raise OverBudgetError


class _Step(NamedTuple):
    """An operation with the slots of its inputs and results."""

    fn: Callable[..., Any]
    eqn: Eqn
    inputs: list[int]
    results: list[int]


def _variables(slots: Iterable[int]) -> str:
    return ", ".join(f"v{slot}" for slot in slots)


class _Block:
    """A jaxpr as a list of steps on slots, each of which stores one value."""

    def __init__(
        self, program: NumpyProgram, jaxpr: jex.Jaxpr, consts: Sequence[Any] | None
    ) -> None:
        self.program = program
        self.values: list[Any] = []
        self.steps: list[_Step] = []
        self.known: set[int] = set()
        # Slots of operations and constants, so that duplicates share a slot.
        self.found: dict[Any, Any] = {}
        variables = [*(jaxpr.constvars if consts is None else ()), *jaxpr.invars]
        self.inputs = [self._slot() for _ in variables]
        self.work = 0
        self.outputs = self._add(jaxpr, consts or (), self.inputs)
        self.steps = self._needed_steps()
        self.cost = (
            len(self.steps) + sum(_work(step.eqn) for step in self.steps) / _ELEMENTS_PER_CALL
        )
        self.run = self._function()

    def __call__(self, *args: Any) -> list[Any]:
        self.program.spend(self.cost)
        return self.run(*args)

    def _function(self) -> Callable[..., list[Any]]:
        """Convert the steps to a Python function whose local variables are the values.

        The function takes 0.03 us per step. A loop over the steps with the values in a list would
        take 0.2 us per step, as much as an operation on NumPy's scalars.
        """
        names = {f"v{slot}": self.values[slot] for slot in self.known}
        lines = [f"def run({_variables(self.inputs)}):"]
        for k, step in enumerate(self.steps):
            names[f"f{k}"] = step.fn
            results = _variables(step.results)
            results = f"[{results}]" if step.eqn.primitive.multiple_results else results
            lines.append(f" {results} = f{k}({_variables(step.inputs)})")
        lines.append(f" return [{_variables(self.outputs)}]")
        exec("\n".join(lines), names)  # the source contains only generated names
        return names["run"]

    def _slot(self, value: Any = None) -> int:
        self.values.append(value)
        return len(self.values) - 1

    def _constant(self, value: Any, aval: Any) -> int:
        array = _array(value, aval)
        key = (aval.dtype, array.tobytes()) if np.shape(array) == () and _dtype(aval) else object()
        if key not in self.found:
            self.found[key] = self._slot(array)
            self.known.add(self.found[key])
        return self.found[key]

    def _add(self, jaxpr: jex.Jaxpr, consts: Sequence[Any], inputs: Sequence[int]) -> list[int]:
        """Append the steps of a jaxpr; return the slots of its results."""
        constants = list(map(self._constant, consts, (var.aval for var in jaxpr.constvars)))
        variables = (*jaxpr.constvars, *jaxpr.invars)
        slots: dict[Any, int] = dict(zip(variables, [*constants, *inputs], strict=True))

        def slot(atom: Any) -> int:
            literal = isinstance(atom, jex.Literal)
            return self._constant(atom.val, atom.aval) if literal else slots[atom]

        for eqn in jaxpr.eqns:
            input_slots = [slot(atom) for atom in eqn.invars]
            call = call_view(eqn, input_slots)
            if call is not None:
                results = self._add(call[0].jaxpr, call[0].consts, call[1])
            else:
                # Operations with effects get a unique key, because they must not be merged.
                operation = object() if eqn.effects else eqn.primitive
                key = operation, *input_slots, *map(_key, eqn.params.items())
                results = self.found.get(key) or self._step(eqn, input_slots)
                self.found[key] = results
            slots.update(zip(eqn.outvars, results, strict=True))
        return [slot(atom) for atom in jaxpr.outvars]

    def _step(self, eqn: Eqn, inputs: list[int]) -> list[int]:
        self.work += _work(eqn)
        if self.work > _MAX_WORK:
            raise NotInNumpyError("the arrays are too large")
        fn, start = self._operation(eqn), len(self.values)
        if fn is identity:
            return inputs
        results = [self._slot() for _ in eqn.outvars]
        # Operations on constants are evaluated once, for loops. Callbacks aren't, because they may
        # raise an error (Equinox's `error_if`) in a branch that never runs.
        runs_later = eqn.effects or eqn.primitive.name in _CALLBACKS or jaxprs.sub_jaxprs(eqn)
        if self.known.issuperset(inputs) and not runs_later:
            out = fn(*[self.values[i] for i in inputs])
            self.values[start:] = out if eqn.primitive.multiple_results else [out]
            self.known.update(results)
        else:
            self.steps.append(_Step(fn, eqn, inputs, results))
        return results

    def _operation(self, eqn: Eqn) -> Callable[..., Any]:
        view = control_view(eqn)
        avals = [var.aval for var in (*eqn.invars, *eqn.outvars)]
        has_keys = not all(map(_dtype, avals))
        if has_keys and view is not None:
            raise NotInNumpyError("a loop or branch has PRNG keys")
        if isinstance(view, While):
            return self._loop(view)
        if isinstance(view, Cond):
            return self._branches(view)
        if isinstance(view, Scan):
            return self._scan(view)
        if eqn.primitive.name in _CALLBACKS and callable(eqn.params.get("callback")):
            self.program.calls_back = True
            return _callback(eqn)
        if eqn.effects:
            raise NotInNumpyError(f"{eqn.primitive.name} has effects")
        rule = None if has_keys or jaxprs.sub_jaxprs(eqn) else numpy_rule(eqn)
        return _compiled(eqn) if rule is None else rule

    def _block(self, sub: SubJaxpr) -> _Block:
        return _Block(self.program, sub.jaxpr, sub.consts)

    def _loop(self, view: While) -> Callable[..., Any]:
        test, body = self._block(view.test), self._block(view.body)

        def loop(*inputs: Any) -> list[Any]:
            test_consts, body_consts, carry = view.parts(inputs)
            while np.any(unfinished := test(*test_consts, *carry)[0]):
                carry = _where(unfinished, body(*body_consts, *carry), carry)
            return carry

        return loop

    def _branches(self, view: Cond) -> Callable[..., Any]:
        branches = list(map(self._block, view.branches))
        max_index = len(branches) - 1
        return lambda index, *inputs: branches[min(max(int(index), 0), max_index)](*inputs)

    def _scan(self, view: Scan) -> Callable[..., Any]:
        body = self._block(view.body)
        order = range(view.length)[:: -1 if view.reverse else 1]
        row_types: list[Any] = view.results([v.aval for v in view.body.jaxpr.outvars])[1]

        def scan(*inputs: Any) -> list[Any]:
            consts, carry, slices = view.parts(inputs)
            stacks = [np.empty((view.length, *a.shape), a.dtype) for a in row_types]
            for i in order:
                carry, rows = view.results(body(*consts, *carry, *(x[i] for x in slices)))
                for stack, row in zip(stacks, rows, strict=True):
                    stack[i] = row
            return [*carry, *stacks]

        return scan

    def _needed_steps(self) -> list[_Step]:
        needed, steps = set(self.outputs), []
        for step in reversed(self.steps):
            if step.eqn.effects or not needed.isdisjoint(step.results):
                needed.update(step.inputs)
                steps.append(step)
        return steps[::-1]


def _where(unfinished: Any, new: list[Any], old: list[Any]) -> list[Any]:
    """Select the new values of unfinished loops, because `jax.vmap` merges many loops into one."""
    if np.ndim(unfinished) == 0:
        return new
    axes = [tuple(range(np.ndim(unfinished), np.ndim(x))) for x in new]
    pairs = zip(axes, new, old, strict=True)
    return [np.where(np.expand_dims(unfinished, axis), x, y) for axis, x, y in pairs]


def _compiled(eqn: Eqn) -> Callable[..., Any]:
    """Compile an operation that NumPy lacks, as a separate program for the CPU."""
    dtypes = [_dtype(var.aval) for var in eqn.outvars]
    run = jaxprs.compiled_on_host(eqn)

    def call(*inputs: Any) -> Any:
        pairs = zip(run(*inputs), dtypes, strict=True)
        out = [x if dtype is None else np.asarray(x)[()] for x, dtype in pairs]
        return out if eqn.primitive.multiple_results else out[0]

    return call


def _callback(eqn: Eqn) -> Callable[..., Any]:
    avals = [var.aval for var in eqn.outvars]

    def call(*inputs: Any) -> list[Any]:
        with np.errstate(all="warn"):  # the user's function may need NumPy's warnings
            out = list(map(np.asarray, eqn.params["callback"](*jax.device_put(inputs)) or ()))
        for x, aval in zip(out, avals, strict=True):
            if (x.shape, x.dtype) != (aval.shape, aval.dtype):
                raise ValueError(
                    f"A callback returned {x.dtype}{list(x.shape)}, expected "
                    f"{aval.dtype}{list(aval.shape)} as in its result_shape_dtypes."
                )
        return out

    return call


def _work(eqn: Eqn) -> int:
    """Estimate the cost of an operation, in elements that it reads and writes.

    A term of a matrix product is a tenth of an element: BLAS takes about 0.1 ns per term, and
    other operations take 1 ns per element.
    """
    avals = [var.aval for var in (*eqn.invars, *eqn.outvars)]
    sizes = [getattr(aval, "size", 1) for aval in avals]
    if eqn.primitive.name == "dot_general":
        (left, _), _ = eqn.params["dimension_numbers"]
        terms = sizes[-1] * math.prod(avals[0].shape[axis] for axis in left)
    elif eqn.primitive.name in _FACTORIZATIONS:
        terms = sizes[0] * avals[0].shape[-1]
    else:
        terms = 0
    return max(sum(sizes), terms // 10)


def _key(param: Any) -> Any:
    """A hashable key of a parameter of an operation."""
    try:
        hash(param)
    except TypeError:
        return object()  # a unique key
    return param


def _dtype(aval: Any) -> np.dtype | None:
    """The dtype of an array; None for PRNG keys, which remain JAX arrays."""
    dtype = getattr(aval, "dtype", None)
    if not isinstance(dtype, np.dtype):
        return None
    if dtype.isbuiltin != 1:
        raise NotInNumpyError(f"NumPy has no {dtype}")
    return dtype


def _array(value: Any, aval: Any) -> Any:
    """Convert an array to NumPy, and an array without axes to a NumPy scalar; keep PRNG keys."""
    dtype = _dtype(aval)
    if dtype is None:
        return value
    # NumPy arguments are copied, because a result may be an argument, and the user may later write
    # into the argument. Operations on NumPy scalars take a tenth of the time of operations on
    # arrays without axes.
    return (np.asarray if isinstance(value, jax.Array) else np.array)(value, dtype)[()]

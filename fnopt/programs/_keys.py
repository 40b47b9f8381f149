"""Hashable keys of jaxprs: equal keys mean equal operations."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.core import eval_jaxpr
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

from fnopt.programs._jaxprs import is_custom_rule

# Maximum number of programs in the cache. On a CPU, the program of a least-squares fit takes about
# 310 memory mappings, and Linux allows a process 65,530. A compilation beyond this limit raises an
# error or aborts the process.
MAX_PROGRAMS = 32


class NoKeyError(Exception):
    """The error for a jaxpr that can't be compared with other jaxprs."""


def key_of(jaxpr: Jaxpr, num_differentiated: int | None = None) -> tuple[Any, ...]:
    """Return a hashable key; equal keys mean equal functions (optionally with equal derivatives).

    Args:
        jaxpr: The function.
        num_differentiated: The number of leading inputs with respect to which the function may be
            differentiated, at most twice; None if the function is only evaluated.

    Returns:
        The key.

    Raises:
        NoKeyError: If parts of the jaxpr can't be compared.
    """
    if num_differentiated is None:
        return _RunKeys().jaxpr(jaxpr)
    keys = _Keys()
    key = keys.jaxpr(jaxpr)
    if not keys.has_rules:
        return (key,)
    # The jaxpr of the second derivative shows what the rules of `jax.custom_jvp` compute.
    return key, _Keys().closed(_derivatives(jaxpr, num_differentiated))


def _derivatives(jaxpr: Jaxpr, first: int) -> ClosedJaxpr:
    """Jaxpr of the second derivative (forward over forward) in the `first` leading inputs."""
    consts, inputs = (
        [shape_struct(v.aval) for v in side] for side in (jaxpr.constvars, jaxpr.invars)
    )

    def second_derivative(consts: Any, x: Any, other_inputs: Any, v: Any, w: Any) -> Any:
        def first_derivative(x: Any) -> Any:
            return jax.jvp(lambda x: eval_jaxpr(jaxpr, consts, *x, *other_inputs), (x,), (v,))

        return jax.jvp(first_derivative, (x,), (w,))

    x = inputs[:first]
    try:
        return jax.make_jaxpr(second_derivative)(consts, x, inputs[first:], x, x)
    except TypeError:  # the function has no second derivative
        raise NoKeyError from None


def shape_struct(aval: Any) -> jax.ShapeDtypeStruct:
    """The shape and dtype of an abstract value, as an argument for a trace."""
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)


def _without_python_function(eqn: JaxprEqn) -> dict[str, Any]:
    """The parameters of an equation, without the Python function of `lax.reduce`."""
    has_jaxpr = "jaxpr" in eqn.params
    return {name: x for name, x in eqn.params.items() if not (has_jaxpr and name == "computation")}


class _Keys:
    """Keys of jaxprs, in which variables are numbered."""

    has_rules = False  # whether the jaxpr calls a `jax.custom_jvp`

    def closed(self, closed: ClosedJaxpr) -> tuple[Any, ...]:
        if closed.consts:
            raise NoKeyError
        return self.jaxpr(closed.jaxpr)

    def jaxpr(self, jaxpr: Jaxpr) -> tuple[Any, ...]:
        # Variables are new objects in every trace, so they are numbered in the order of definition.
        number: dict[Any, int] = {}

        def number_var(var: Any) -> Any:
            number[var] = len(number)
            return var.aval

        def atom(x: Any) -> Any:
            return (self.value(np.asarray(x.val)), x.aval) if isinstance(x, Literal) else number[x]

        inputs = [number_var(var) for var in (*jaxpr.constvars, *jaxpr.invars)]
        eqns = [
            (
                eqn.primitive,
                tuple(map(atom, eqn.invars)),
                self.params(eqn),
                tuple(map(number_var, eqn.outvars)),
                self.value(eqn.ctx),
            )
            for eqn in jaxpr.eqns
        ]
        return tuple(inputs), tuple(eqns), tuple(map(atom, jaxpr.outvars))

    def params(self, eqn: JaxprEqn) -> tuple[Any, ...]:
        params = _without_python_function(eqn)
        if is_custom_rule(eqn):
            # A rule is a new function object in every trace, so `key_of` compares the traced
            # derivatives. Only JVP rules without symbolic zeros can be traced.
            if params.pop("jvp_jaxpr_fun", None) is None or params["symbolic_zeros"]:
                raise NoKeyError
            self.has_rules = True
        return tuple((name, self.value(params[name])) for name in sorted(params))

    def value(self, value: Any) -> Any:
        if isinstance(value, ClosedJaxpr):
            return self.closed(value)
        if isinstance(value, Jaxpr):
            return self.jaxpr(value)
        if isinstance(value, (tuple, list)):
            return type(value), *map(self.value, value)
        if isinstance(value, dict):
            return dict, *((name, self.value(value[name])) for name in sorted(value))
        if isinstance(value, (np.ndarray, np.generic, float, complex)):
            array = np.asarray(value)  # as bytes: NaN equals itself, and -0.0 differs from 0.0
            return type(value), array.dtype, array.shape, array.tobytes()
        try:
            hash(value)
        except TypeError:
            raise NoKeyError from None
        return type(value), value


class _RunKeys(_Keys):
    """Keys of jaxprs that are never differentiated; these keys omit derivative rules."""

    def closed(self, closed: ClosedJaxpr) -> tuple[Any, ...]:
        try:
            consts = [np.asarray(const) for const in closed.consts]
        except TypeError:  # tracers and typed keys
            raise NoKeyError from None
        return *map(self.value, consts), self.jaxpr(closed.jaxpr)

    def params(self, eqn: JaxprEqn) -> tuple[Any, ...]:
        if eqn.effects or "callback" in eqn.primitive.name:
            raise NoKeyError  # a user's callback is usually a new object in every call
        params = _without_python_function(eqn)
        if is_custom_rule(eqn):  # its other parameters are rules
            types = (ClosedJaxpr, Jaxpr, int)
            params = {name: v for name, v in params.items() if isinstance(v, types)}
        return tuple((name, self.value(params[name])) for name in sorted(params))

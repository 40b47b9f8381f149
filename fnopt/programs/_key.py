"""The key of a recorded function: equal for equal operations."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.core import eval_jaxpr
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

from fnopt.programs._read import is_custom_rule


class UnidentifiedError(Exception):
    """The error for a value that only the identity of its object tells from others."""


def key_of(jaxpr: Jaxpr, first: int | None = None) -> tuple[Any, ...]:
    """A key that is equal for two functions only if they and their derivatives do the same.

    Args:
        jaxpr: The function.
        first: How many of its inputs it may be differentiated by, up to two times; None if it
            will only be run.

    Returns:
        The key, which can be hashed.

    Raises:
        UnidentifiedError: If there is none: it is made of objects that can't be compared.
    """
    if first is None:
        return _RunKeys().jaxpr(jaxpr)
    keys = _Keys()
    key = keys.jaxpr(jaxpr)
    if not keys.has_rules:
        return (key,)
    # Rules are functions, made anew in every trace. What they compute is in the derivatives.
    return key, _Keys().closed(_derivatives(jaxpr, first))


def _derivatives(jaxpr: Jaxpr, first: int) -> ClosedJaxpr:
    consts, inputs = ([like(v.aval) for v in side] for side in (jaxpr.constvars, jaxpr.invars))

    def twice(consts: Any, x: Any, rest: Any, v: Any, w: Any) -> Any:
        def once(x: Any) -> Any:
            return jax.jvp(lambda x: eval_jaxpr(jaxpr, consts, *x, *rest), (x,), (v,))

        return jax.jvp(once, (x,), (w,))

    x = inputs[:first]
    try:
        return jax.make_jaxpr(twice)(consts, x, inputs[first:], x, x)
    except TypeError:  # it has no such derivative
        raise UnidentifiedError from None


def like(aval: Any) -> jax.ShapeDtypeStruct:
    """An abstract value as an argument for a trace."""
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)


class _Keys:
    """Makes keys; variables are numbers in them."""

    has_rules = False  # whether there were derivatives that a user wrote

    def closed(self, closed: ClosedJaxpr) -> tuple[Any, ...]:
        if closed.consts:
            raise UnidentifiedError
        return self.jaxpr(closed.jaxpr)

    def jaxpr(self, jaxpr: Jaxpr) -> tuple[Any, ...]:
        number: dict[Any, int] = {}

        def new(var: Any) -> Any:
            number[var] = len(number)
            return var.aval

        def atom(x: Any) -> Any:
            return (self.value(np.asarray(x.val)), x.aval) if isinstance(x, Literal) else number[x]

        inputs = [new(var) for var in (*jaxpr.constvars, *jaxpr.invars)]
        eqns = [
            (
                eqn.primitive,
                tuple(map(atom, eqn.invars)),
                self.params(eqn),
                tuple(map(new, eqn.outvars)),
                self.value(eqn.ctx),
            )
            for eqn in jaxpr.eqns
        ]
        return tuple(inputs), tuple(eqns), tuple(map(atom, jaxpr.outvars))

    def params(self, eqn: JaxprEqn) -> tuple[Any, ...]:
        params = dict(eqn.params)
        if eqn.primitive.name.startswith("custom_vjp_call"):
            raise UnidentifiedError  # a reverse rule can't be traced without its residuals
        if eqn.primitive.name == "custom_jvp_call" and not params["symbolic_zeros"]:
            self.has_rules = True
            del params["jvp_jaxpr_fun"]
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
            array = np.asarray(value)  # by its bytes: NaN is no other number, -0.0 is
            return type(value), array.dtype, array.shape, array.tobytes()
        try:
            hash(value)
        except TypeError:
            raise UnidentifiedError from None
        return type(value), value


class _RunKeys(_Keys):
    """The keys of programs that are run as they are, of which no derivative matters any more."""

    def closed(self, closed: ClosedJaxpr) -> tuple[Any, ...]:
        try:
            consts = [np.asarray(const) for const in closed.consts]
        except TypeError:  # traced, or no plain array
            raise UnidentifiedError from None
        return *map(self.value, consts), self.jaxpr(closed.jaxpr)

    def params(self, eqn: JaxprEqn) -> tuple[Any, ...]:
        if eqn.effects or "callback" in eqn.primitive.name:
            raise UnidentifiedError
        params = eqn.params
        if is_custom_rule(eqn):  # the others are rules
            known = (ClosedJaxpr, Jaxpr, int)
            params = {name: v for name, v in params.items() if isinstance(v, known)}
        return tuple((name, self.value(params[name])) for name in sorted(params))

"""Views of scans, loops, branches and calls that are independent of the release of JAX.

Only this file reads the parameters of these equations, for JAX 0.7 to 0.12. An equation with other
parameters has no view, and callers treat it like any operation without a rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from jax.extend import core as jex

from fnopt.programs._jaxprs import SubJaxpr, called_jaxpr, sub_jaxpr

T = TypeVar("T")


class Scan(NamedTuple):
    """A `jax.lax.scan`.

    Attributes:
        body: A jaxpr from constants, carry and slices to carry and rows, for one iteration.
        consts: The number of leading inputs, which are constant over the iterations.
        carry: The number of subsequent inputs, which each iteration replaces.
        length: The number of iterations.
        reverse: Whether the slices are used from last to first.
        options: Compilation options: other keyword arguments of `jax.lax.scan`.
    """

    body: SubJaxpr
    consts: int
    carry: int
    length: int
    reverse: bool
    options: dict[str, Any]

    def parts(self, inputs: Sequence[T]) -> tuple[list[T], list[T], list[T]]:
        """Split the inputs of the scan, or of its body, into constants, carry and slices."""
        return _split_in_three(inputs, self.consts, self.carry)

    def results(self, outputs: Sequence[T]) -> tuple[list[T], list[T]]:
        """Split the outputs of the scan, or of its body, into carry and rows."""
        return list(outputs[: self.carry]), list(outputs[self.carry :])


class While(NamedTuple):
    """A `jax.lax.while_loop`.

    Attributes:
        test: A jaxpr of the test's constants and the carry; returns whether to continue.
        body: A jaxpr of the body's constants and the carry; returns the carry.
        test_consts: The number of leading inputs that are constants of the test.
        body_consts: The number of subsequent inputs that are constants of the body.
    """

    test: SubJaxpr
    body: SubJaxpr
    test_consts: int
    body_consts: int

    def parts(self, inputs: Sequence[T]) -> tuple[list[T], list[T], list[T]]:
        """Split the inputs into the constants of the test and of the body, and the carry."""
        return _split_in_three(inputs, self.test_consts, self.body_consts)


class Cond(NamedTuple):
    """A `jax.lax.cond` or `jax.lax.switch`; its first input is the index of the branch.

    Attributes:
        branches: The jaxprs of the branches; each receives all other inputs.
    """

    branches: tuple[SubJaxpr, ...]


class ShardMap(NamedTuple):
    """A `jax.shard_map`.

    Attributes:
        body: The jaxpr that each device runs.
        devices: The number of devices.
    """

    body: SubJaxpr
    devices: int


Control = Scan | While | Cond | ShardMap


def control_view(eqn: jex.JaxprEqn) -> Control | None:
    """Return the view of a loop, a branch or a map over devices.

    Args:
        eqn: An equation.

    Returns:
        The view. `None` for all other equations, and for parameters of an unknown release of JAX.

    Example:
        >>> from fnopt.programs import control_view
        >>> def total(x):
        ...     return jax.lax.scan(lambda c, row: (c + row, None), 0.0, x)[0]
        >>> loop = control_view(jax.make_jaxpr(total)(jnp.ones(3)).jaxpr.eqns[0])
        >>> type(loop).__name__, loop.length, loop.parts(["start", "x"])
        ('Scan', 3, ([], ['start'], ['x']))
    """
    read = _READERS.get(eqn.primitive.name)
    return None if read is None else _none_if_unreadable(lambda: read(eqn))


def call_view(eqn: jex.JaxprEqn, inputs: Sequence[T]) -> tuple[SubJaxpr, list[T]] | None:
    """Return the jaxpr that an equation calls, and its inputs.

    Args:
        eqn: An equation.
        inputs: The inputs of the equation, of any type.

    Returns:
        `(jaxpr, inputs)` for the equations that `called_jaxpr` reads and for linear solves (only
        the jaxpr `solve`); `None` for all other equations.

    Example:
        >>> from fnopt.programs import call_view
        >>> eqn = jax.make_jaxpr(jax.jit(jnp.sin))(1.0).jaxpr.eqns[0]
        >>> call_view(eqn, ["x"])[1]
        ['x']
    """
    if eqn.primitive.name == "custom_linear_solve":
        return _none_if_unreadable(lambda: _solve(eqn, inputs))
    sub = called_jaxpr(eqn)
    return None if sub is None else (sub, list(inputs))


def _none_if_unreadable(read: Callable[[], T | None]) -> T | None:
    try:
        return read()
    except (KeyError, AttributeError, TypeError, ValueError):
        return None


def _scan(eqn: jex.JaxprEqn) -> Scan | None:
    p = eqn.params
    if "num_consts" in p:  # JAX before 0.12
        consts, carry = p["num_consts"], p["num_carry"]
    else:  # trees of constants, carry and slices
        consts, carry, _ = map(len, p["ft_in"].unpack())
    options = {name: p[name] for name in ("unroll", "_split_transpose") if name in p}
    view = Scan(sub_jaxpr("jaxpr", p["jaxpr"]), consts, carry, p["length"], p["reverse"], options)
    body = view.body.jaxpr
    fits = len(body.invars) == len(eqn.invars) and len(body.outvars) == len(eqn.outvars)
    return view if fits and consts + carry <= len(eqn.invars) else None


def _while(eqn: jex.JaxprEqn) -> While | None:
    p = eqn.params
    test, body = (sub_jaxpr(name, p[name]) for name in ("cond_jaxpr", "body_jaxpr"))
    view = While(test, body, p["cond_nconsts"], p["body_nconsts"])
    carry = len(eqn.outvars)
    fits = (
        len(test.jaxpr.invars) == view.test_consts + carry
        and len(body.jaxpr.invars) == view.body_consts + carry
        and len(eqn.invars) == view.test_consts + view.body_consts + carry
    )
    return view if fits else None


def _cond(eqn: jex.JaxprEqn) -> Cond | None:
    view = Cond(tuple(sub_jaxpr("branches", branch) for branch in eqn.params["branches"]))
    fits = all(len(branch.jaxpr.invars) == len(eqn.invars) - 1 for branch in view.branches)
    return view if fits else None


def _shard_map(eqn: jex.JaxprEqn) -> ShardMap | None:
    view = ShardMap(sub_jaxpr("jaxpr", eqn.params["jaxpr"]), int(eqn.params["mesh"].size))
    return view if len(view.body.jaxpr.invars) == len(eqn.invars) else None


def _solve(eqn: jex.JaxprEqn, inputs: Sequence[T]) -> tuple[SubJaxpr, list[T]]:
    # An evaluation runs only `solve` of the four jaxprs (matvec, vecmat, solve, transpose_solve).
    # The constants of all four are the first inputs, in this order.
    counts = eqn.params["const_lengths"]
    sub = sub_jaxpr("solve", eqn.params["jaxprs"].solve)
    start = counts.matvec + counts.vecmat
    return sub, [*inputs[start : start + counts.solve], *inputs[sum(counts) :]]


_READERS: dict[str, Callable[[jex.JaxprEqn], Control | None]] = {
    "scan": _scan,
    "while": _while,
    "cond": _cond,
    "shard_map": _shard_map,
}


def _split_in_three(
    values: Sequence[T], first: int, second: int
) -> tuple[list[T], list[T], list[T]]:
    end = first + second
    return list(values[:first]), list(values[first:end]), list(values[end:])

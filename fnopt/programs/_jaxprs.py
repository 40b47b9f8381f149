"""Analysis of jaxprs: the jaxprs inside an equation, calls, and evaluation."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
from jax.extend import core as jex

from fnopt.sharding import pvary_like, varying_axes

# JAX 0.12 renamed `closed_call` to `eval_jaxpr`.
_CALLS = {"jit", "pjit", "closed_call", "core_call", "eval_jaxpr"}
_REMATS = {"remat", "remat2", "checkpoint"}
_NAMES = {"name", "tap"}
_CUSTOM_RULES = {"custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"}


class SubJaxpr(NamedTuple):
    """A jaxpr inside an equation.

    Attributes:
        param: The name of the equation's parameter: `'jaxpr'`, `'branches'`, `'body_jaxpr'`.
        jaxpr: The open jaxpr.
        consts: The values of its `constvars`.
    """

    param: str
    jaxpr: jex.Jaxpr
    consts: tuple[Any, ...]

    @property
    def closed(self) -> jex.ClosedJaxpr:
        """The jaxpr with its constants."""
        return jex.ClosedJaxpr(self.jaxpr, self.consts)


def is_call(eqn: jex.JaxprEqn) -> bool:
    """Whether the equation only runs its jaxpr on its inputs, as jit and closed calls do."""
    return eqn.primitive.name in _CALLS


def is_remat(eqn: jex.JaxprEqn) -> bool:
    """Whether the equation is a `jax.checkpoint`, a call that is recomputed in derivatives."""
    return eqn.primitive.name in _REMATS


def is_custom_rule(eqn: jex.JaxprEqn) -> bool:
    """Whether the equation is a call with a custom derivative (custom_jvp, custom_vjp)."""
    return eqn.primitive.name in _CUSTOM_RULES


def names_value(eqn: jex.JaxprEqn) -> bool:
    """Whether the equation is an identity that names its operand `eqn.params["name"]`.

    Such identities are taps and `jax.ad_checkpoint.checkpoint_name`.
    """
    return eqn.primitive.name in _NAMES


def sub_jaxprs(eqn: jex.JaxprEqn) -> list[SubJaxpr]:
    """List all jaxprs in an equation's parameters, in order, including jaxprs in tuples.

    Example:
        >>> from fnopt.programs import jaxprs
        >>> jaxpr = jax.make_jaxpr(jax.jit(jnp.sin))(1.0).jaxpr
        >>> [(s.param, len(s.jaxpr.eqns)) for s in jaxprs.sub_jaxprs(jaxpr.eqns[0])]
        [('jaxpr', 1)]
    """
    return [sub for name, value in eqn.params.items() for sub in _subs(name, value)]


def sub_jaxpr(param: str, value: jex.Jaxpr | jex.ClosedJaxpr) -> SubJaxpr:
    """Convert a parameter that is a jaxpr, open or closed (one class since JAX 0.12)."""
    # Closed jaxprs are tested first, because they may have the attributes of open jaxprs.
    if isinstance(value, jex.ClosedJaxpr):
        return SubJaxpr(param, value.jaxpr, tuple(value.consts))
    if isinstance(value, jex.Jaxpr):
        return SubJaxpr(param, value, ())
    raise TypeError(f"{param} is {type(value).__name__}, expected a jaxpr.")


def _subs(name: str, value: Any) -> Iterator[SubJaxpr]:
    if isinstance(value, (jex.ClosedJaxpr, jex.Jaxpr)):
        yield sub_jaxpr(name, value)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _subs(name, item)


def called_jaxpr(eqn: jex.JaxprEqn) -> SubJaxpr | None:
    """The jaxpr that a call, a remat or a custom-rule call runs on the equation's inputs.

    The `invars` and `outvars` of the jaxpr correspond to the `invars` and `outvars` of the
    equation, in order. `None` for all other equations, including loops and branches, and for calls
    of an unknown form.
    """
    if not (is_call(eqn) or is_remat(eqn) or is_custom_rule(eqn)):
        return None
    subs = (s for s in sub_jaxprs(eqn) if s.param in {"jaxpr", "call_jaxpr", "fun_jaxpr"})
    sub = next(subs, None)
    fits = sub is not None and _arity(sub.jaxpr) == _arity(eqn)
    return sub if fits else None


def _arity(program: jex.Jaxpr | jex.JaxprEqn) -> tuple[int, int]:
    return len(program.invars), len(program.outvars)


def equations(jaxpr: jex.Jaxpr) -> Iterator[jex.JaxprEqn]:
    """Iterate over all equations, depth first; inner equations follow their outer equation."""
    for eqn in jaxpr.eqns:
        yield eqn
        for sub in sub_jaxprs(eqn):
            yield from equations(sub.jaxpr)


def program_size(jaxpr: jex.Jaxpr) -> int:
    """The number of equations in a program; a jaxpr called by several equations is counted once."""
    visited: set[int] = set()

    def size(jaxpr: jex.Jaxpr) -> int:
        if id(jaxpr) in visited:
            return 0
        visited.add(id(jaxpr))
        inside = (sub.jaxpr for eqn in jaxpr.eqns for sub in sub_jaxprs(eqn))
        return len(jaxpr.eqns) + sum(map(size, inside))

    return size(jaxpr)


def name_scopes(eqn: jex.JaxprEqn) -> tuple[str, ...]:
    """The `jax.named_scope`s of an equation within its jaxpr, outermost first.

    A scope under `jax.vmap`, `vmap(name)`, is returned as `name`, because both names mean the same
    part of a model. Names of derivatives are kept: `jvp(name)`, `transpose(jvp(name))`.
    """
    parts = map(_without_vmap, str(eqn.source_info.name_stack).split("/"))
    return tuple(part for part in parts if part)


def _without_vmap(part: str) -> str:
    while part.startswith("vmap(") and part.endswith(")"):
        part = part[len("vmap(") : -1]
    return part


class Environment:
    """Map from the variables of a jaxpr to their values, for an evaluation of the jaxpr.

    Args:
        jaxpr: The jaxpr to run.
        consts: Values of its `constvars`.
        args: Values of its `invars`.

    Example:
        >>> from fnopt.programs import jaxprs
        >>> closed = jax.make_jaxpr(lambda x: 2.0 * x + 1.0)(3.0)
        >>> env = jaxprs.Environment(closed.jaxpr, closed.consts, [3.0])
        >>> for eqn in closed.jaxpr.eqns:
        ...     env.write(eqn.outvars, jaxprs.bind(eqn, env.read(eqn.invars)))
        >>> float(env.read(closed.jaxpr.outvars)[0])
        7.0
    """

    def __init__(self, jaxpr: jex.Jaxpr, consts: Iterable[Any], args: Iterable[Any]) -> None:
        self._values: dict[jex.Var, Any] = {}
        self.write(jaxpr.constvars, consts)
        self.write(jaxpr.invars, args)

    def read(self, atoms: Iterable[Any]) -> list[Any]:
        """The values of variables and literals."""
        return [a.val if isinstance(a, jex.Literal) else self._values[a] for a in atoms]

    def write(self, variables: Iterable[jex.Var], values: Iterable[Any]) -> None:
        """Set (or replace) the values of variables."""
        self._values.update(zip(variables, values, strict=True))


def bind(eqn: jex.JaxprEqn, values: Iterable[Any]) -> list[Any]:
    """Run an equation on inputs, in the equation's context and scopes; return a list of outputs."""
    params = eqn.primitive.get_bind_params(eqn.params)
    # JAX before 0.8 returns a tuple.
    subfuns, params = params if isinstance(params, tuple) else ((), params)
    values = list(values)
    if eqn.primitive.name == "pvary" and varying_axes(values[0]) >= {*params["axes"]}:
        return values  # the values already vary over the devices
    # All operands of a primitive must vary over the same axes. The equation may have been traced
    # with other types. Inner jaxprs have their own input types, so their inputs aren't changed.
    if not sub_jaxprs(eqn):
        values = pvary_like(values, values)
    with trace_context(eqn):
        outputs = eqn.primitive.bind(*subfuns, *values, **params)
    return list(outputs) if eqn.primitive.multiple_results else [outputs]


def compiled_on_host(eqn: jex.JaxprEqn) -> Callable[..., list[Any]]:
    """Compile the equation for the CPU, which needs no copies of NumPy arrays.

    If `JAX_PLATFORMS` excludes the CPU, the program runs on the default device.
    """
    run, host = jax.jit(lambda *values: bind(eqn, values)), None
    # A RuntimeError means that JAX has no CPU backend.
    with contextlib.suppress(RuntimeError):
        host = jax.local_devices(backend="cpu")[0]

    def on_host(*values: Any) -> list[Any]:
        with jax.default_device(host):
            return run(*values)

    return on_host


def interpret(
    jaxpr: jex.Jaxpr,
    consts: Sequence[Any],
    args: Sequence[Any],
    evaluate: Callable[[jex.JaxprEqn, list[Any]], list[Any]],
) -> list[Any]:
    """Evaluate a jaxpr equation by equation, with inner calls (`jax.jit`) inlined.

    Args:
        jaxpr: The jaxpr.
        consts: Values of its `constvars`.
        args: Values of its `invars`.
        evaluate: `evaluate(eqn, inputs)` returns the outputs of an equation, as :func:`bind` does.

    Returns:
        The values of its `outvars`.

    Example:
        >>> from fnopt.programs import jaxprs
        >>> closed = jax.make_jaxpr(lambda x: jax.jit(jnp.sin)(x) + 1.0)(0.0)
        >>> names = []
        >>> def evaluate(eqn, inputs):
        ...     names.append(eqn.primitive.name)
        ...     return jaxprs.bind(eqn, inputs)
        >>> float(jaxprs.interpret(closed.jaxpr, closed.consts, [0.0], evaluate)[0]), names
        (1.0, ['sin', 'add'])
    """
    env = Environment(jaxpr, consts, args)
    for eqn in jaxpr.eqns:
        inputs = env.read(eqn.invars)
        sub = called_jaxpr(eqn) if is_call(eqn) else None
        if sub is None:
            outputs = evaluate(eqn, inputs)
        else:
            outputs = interpret(sub.jaxpr, sub.consts, inputs, evaluate)
        env.write(eqn.outvars, outputs)
    return env.read(jaxpr.outvars)


@contextlib.contextmanager
def trace_context(eqn: jex.JaxprEqn) -> Iterator[None]:
    """Context with the scopes and settings (mesh, compute type) of the equation's trace."""
    name = "/".join(name_scopes(eqn))
    with jax.named_scope(name) if name else contextlib.nullcontext(), eqn.ctx.manager:
        yield

"""What a function reads besides its arguments, where its code shows all of it.

Most of the time of an eager fit with a handful of params is the trace of the user's function: some
50 microseconds an operation, half of a call or more. Reading takes 25, and says whether there is
anything to trace.
"""

from __future__ import annotations

import dis
import functools
import itertools
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

# Whose functions do today what they did yesterday.
_LIBRARIES = {"fnopt", "jax", "math"}
_MODULES = {"numpy", "numpy.linalg", "numpy.fft"}  # NumPy's others read files, or draw numbers
_SMALL = 2**16  # bytes of an array, which takes less time to compare than a trace
_PURE = {
    *("abs", "all", "any", "bool", "complex", "dict", "divmod", "enumerate", "filter", "float"),
    *("int", "isinstance", "iter", "len", "list", "map", "max", "min", "next", "pow", "range"),
    *("reversed", "round", "set", "slice", "sorted", "sum", "tuple", "zip"),
    *("TypeError", "ValueError"),
}
_IMPURE = {
    *("load", "loadtxt", "genfromtxt", "fromfile", "fromregex", "memmap", "geterr", "empty"),
    *("empty_like", "get_printoptions"),
}
# What code does to what isn't its own; a class in it is known by its names with underscores.
_OUTSIDE = {"IMPORT_NAME", "STORE_GLOBAL", "DELETE_GLOBAL", "STORE_ATTR", "DELETE_ATTR"}
_OF_CELLS = {"STORE_DEREF", "DELETE_DEREF"}
_KNOWN = sys.version_info < (3, 14)  # a later Python may have others
_JITTED: Any = type(jax.jit(lambda: None))


class UnseenError(Exception):
    """The error for a function that reads what can't be seen, or may change in place."""


def reads(fn: Callable[..., Any]) -> tuple[Any, ...]:
    """All that a function depends on besides its arguments, as a value.

    Two functions with equal values do the same, now or at another time: their code is the same,
    and so is whatever they close over, their defaults, and all globals and members of modules that
    have a name in the code. Numbers count by what they are, arrays of NumPy by their entries, and
    those of JAX, which don't change, as objects. Where anything else is read (an attribute of an
    object, a list, a file, a module of the user's) nothing is known of the next call. Nor is it on
    a Python that isn't known.

    Args:
        fn: A function.

    Returns:
        The value, which can be hashed. It keeps the arrays; they are small.

    Raises:
        UnseenError: If not all is seen.

    Example:
        >>> import numpy as np
        >>> from fnopt.programs import reads
        >>> def scaling(a):
        ...     return lambda x: a * x
        >>> data = np.ones(3)
        >>> before = reads(scaling(data))
        >>> before == reads(scaling(np.ones(3)))
        True
        >>> data[0] = 2
        >>> before == reads(scaling(data))
        False
    """
    if not _KNOWN:
        raise UnseenError
    return _Sight().value(fn), _settings()


class _Same:
    """An object as a value: equal to nothing but itself."""

    def __init__(self, it: Any) -> None:
        self.it = it

    def __hash__(self) -> int:
        return id(self.it)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.it is other.it


class _Sight:
    """Makes values; what was met before is a number, since functions may call themselves."""

    def __init__(self) -> None:
        self.met: dict[Any, int] = {}

    def value(self, x: Any) -> Any:
        if x is None or type(x) in {bool, int, str, bytes} or isinstance(x, np.dtype):
            return type(x), x
        if type(x) in {float, complex}:
            return type(x), repr(x)  # NaN is no other number, -0.0 is
        if type(x) is tuple:
            return tuple, *map(self.value, x)
        if isinstance(x, jax.Array):
            if isinstance(x, Tracer) or x.nbytes > _SMALL or x.is_deleted():
                raise UnseenError
            return _Same(x)
        if type(x) is np.ndarray or isinstance(x, np.generic):
            if x.dtype.hasobject or x.nbytes > _SMALL:
                raise UnseenError
            return type(x), x.dtype, x.shape, x.tobytes()
        return _Same(x) if _is_of_a_library(x) else self.callable(x)

    def callable(self, x: Any) -> Any:
        if type(x) is functools.partial:
            words = x.keywords.items()
            return functools.partial, self.value((x.func, x.args, *itertools.chain(*words)))
        if isinstance(x, _JITTED):
            return _Same(x), self.value(x.__wrapped__)
        if type(x) is types.FunctionType and not set(x.__dict__) - {"__wrapped__"}:
            return self.once((id(x),), lambda: self.function(x))
        raise UnseenError

    def once(self, it: tuple[Any, ...], make: Callable[..., Any]) -> Any:
        """What is made of it; its number from then on: functions and modules hold each other."""
        if it in self.met:
            return self.met[it]
        self.met[it] = len(self.met)
        return make()

    def function(self, fn: types.FunctionType) -> Any:
        names = _names(fn.__code__)
        if names is None:
            raise UnseenError
        words = itertools.chain(*(fn.__kwdefaults__ or {}).items())
        own = (*(fn.__defaults__ or ()), *words, *map(_content, fn.__closure__ or ()))
        spaces = (self.named(space, names) for space in (fn.__globals__, fn.__builtins__))
        return fn.__code__, self.held(own, names), *spaces

    def module(self, module: types.ModuleType, names: tuple[str, ...]) -> Any:
        if not _is_library(module.__name__):
            raise UnseenError
        return self.once((id(module), names), lambda: self.named(vars(module), names))

    def named(self, space: dict[str, Any], names: tuple[str, ...]) -> Any:
        """What has a name in a namespace."""
        known = ((name, space[name]) for name in names if name in space)
        return self.held(itertools.chain(*known), names)

    def held(self, members: Iterable[Any], names: tuple[str, ...]) -> tuple[Any, ...]:
        """What code with these names holds; of a module it may read what has one of them."""
        return tuple(
            self.module(x, names) if isinstance(x, types.ModuleType) else self.value(x)
            for x in members
        )


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it has none yet
        raise UnseenError from None


def _is_of_a_library(x: Any) -> bool:
    """Whether it has its name in a module of a library, or is a builtin."""
    home, name = getattr(x, "__module__", None), getattr(x, "__name__", None)
    if not isinstance(home, str) or not isinstance(name, str):
        return False
    known = name in _PURE if home == "builtins" else _is_library(home) and name not in _IMPURE
    return known and getattr(sys.modules.get(home), name, None) is x


def _is_library(module: str) -> bool:
    return module in _MODULES or module.partition(".")[0] in _LIBRARIES


@functools.lru_cache(maxsize=256)
def _names(code: types.CodeType) -> tuple[str, ...] | None:
    """All names of globals and attributes in a function's code; None if it changes or loads any."""
    parts = list(_parts(code))
    if any(_is_outside(step, code) for part in parts for step in dis.get_instructions(part)):
        return None
    names = {name for part in parts for name in part.co_names}
    return None if any(name.startswith("__") for name in names) else tuple(sorted(names))


def _parts(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _parts(inner)


def _is_outside(step: dis.Instruction, code: types.CodeType) -> bool:
    return step.opname in _OUTSIDE or (step.opname in _OF_CELLS and step.argval in code.co_freevars)


_numbers = itertools.count()


@jax.jit
def _number() -> int:
    return next(_numbers)


def _settings() -> tuple[int, Any]:
    """What stands for JAX's settings (precision, x64, promotion, a mesh): others have others.

    JAX traces a function anew where settings differ, and this one then returns the next number. It
    leaves out only of what kind keys are.
    """
    number = _number()
    if isinstance(number, Tracer):
        raise UnseenError
    config: Any = jax.config
    return int(number), config.jax_default_prng_impl

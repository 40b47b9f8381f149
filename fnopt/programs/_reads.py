"""What a function reads besides its arguments, where its code shows all of it."""

from __future__ import annotations

import builtins
import dis
import functools
import itertools
import sys
import types
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

# Whose functions do today what they did yesterday.
_LIBRARIES = {"fnopt", "jax", "math"}
_MODULES = {"numpy", "numpy.linalg", "numpy.fft"}  # NumPy's others read files, or draw numbers
_SMALL = 2**16  # bytes of an array, which takes less time to compare than a trace
_PURE = [
    *("abs", "all", "any", "bool", "complex", "dict", "divmod", "enumerate", "filter", "float"),
    *("int", "isinstance", "iter", "len", "list", "map", "max", "min", "next", "pow", "range"),
    *("reversed", "round", "slice", "sorted", "sum", "tuple", "zip", "TypeError", "ValueError"),
]
_IMPURE = {
    *("load", "loadtxt", "genfromtxt", "fromfile", "fromregex", "memmap", "geterr", "empty"),
    *("empty_like", "get_printoptions"),
}
# Those of Python 3.11 to 3.13 that read or write what is neither a local, a cell nor a global.
_ELSEWHERE = [
    *("IMPORT_NAME", "STORE_GLOBAL", "DELETE_GLOBAL", "STORE_ATTR", "DELETE_ATTR", "LOAD_NAME"),
    *("LOAD_BUILD_CLASS", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_GLOBALS"),
    *("LOAD_FROM_DICT_OR_DEREF", "LOAD_LOCALS", "LOAD_SUPER_ATTR", "STORE_NAME", "DELETE_NAME"),
]
_KNOWN = sys.version_info < (3, 14)  # a later Python may have others
_JITTED: Any = type(jax.jit(lambda: None))


class UnseenError(Exception):
    """The error for a function that reads what can't be seen, or may change in place."""


def reads(fn: Callable[..., Any]) -> tuple[Any, ...]:
    """All that a function depends on besides its arguments, as a value.

    Two functions with equal values do the same, now or at another time: their code is the same,
    and so is whatever they close over, their defaults, and the globals that they read. Numbers
    count by what they are, arrays of NumPy by their entries, and those of JAX, which don't change,
    as objects. Where anything else is read (an attribute of an object, a list, a file, a module
    of the user's) nothing is known of the next call. Nor is it on a Python that isn't known.

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
    return _Sight().value(fn), _setting()


class _Same:
    """An object as a value: equal to nothing but itself."""

    def __init__(self, it: Any) -> None:
        self.it = it

    def __hash__(self) -> int:
        return id(self.it)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.it is other.it


class _Sight:
    """Reads values; what was met before is a number, since functions may call themselves."""

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
        return self.callable(x)

    def callable(self, x: Any) -> Any:
        if _is_of_a_library(x):
            return _Same(x)
        if type(x) is functools.partial:
            words = x.keywords.items()
            return functools.partial, self.value((x.func, x.args, *itertools.chain(*words)))
        if isinstance(x, _JITTED):
            return _Same(x), self.value(x.__wrapped__)
        if type(x) is types.FunctionType:
            return self.function(x)
        raise UnseenError

    def function(self, fn: types.FunctionType) -> Any:
        if id(fn) in self.met:
            return self.met[id(fn)]
        self.met[id(fn)] = len(self.met)
        if set(fn.__dict__) - {"__wrapped__"}:
            raise UnseenError
        found = _names(fn.__code__)
        if found is None:
            raise UnseenError
        names, attributes = found
        cells = tuple(map(_content, fn.__closure__ or ()))
        words = tuple(itertools.chain(*(fn.__kwdefaults__ or {}).items()))
        known = [_named(fn, name) for name in names]
        parts = [self.module(x, attributes) for x in known if isinstance(x, types.ModuleType)]
        values = (fn.__defaults__, words, cells, *known)
        return fn.__code__, *map(self.value, values), *parts

    def module(self, module: types.ModuleType, names: tuple[str, ...]) -> Any:
        """What code may read of a module: all of it that has a name in the code."""
        again = self.met.get((id(module), names))
        if again is not None:  # modules hold each other
            return again
        self.met[id(module), names] = len(self.met)
        held = vars(module)
        return tuple(self.part(held[name], names) for name in names if name in held)

    def part(self, x: Any, names: tuple[str, ...]) -> Any:
        if isinstance(x, types.ModuleType):
            return self.value(x), self.module(x, names)
        return _Same(x) if callable(x) and _is_by_a_library(x) else self.value(x)


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it has none yet
        raise UnseenError from None


def _named(fn: types.FunctionType, name: str) -> Any:
    """What a name is to a function."""
    if name in fn.__globals__:
        return fn.__globals__[name]
    if name in _PURE:
        return getattr(builtins, name)
    raise UnseenError


def _is_of_a_library(x: Any) -> bool:
    """Whether it is a module of a library, or what has a name in one, or a builtin."""
    if isinstance(x, types.ModuleType):
        return _is_library(x.__name__)
    home, name = getattr(x, "__module__", None), getattr(x, "__name__", None)
    if not isinstance(home, str) or not isinstance(name, str):
        return False
    known = name in _PURE if home == "builtins" else _is_by_a_library(x)
    return known and getattr(sys.modules.get(home), name, None) is x


def _is_by_a_library(x: Any) -> bool:
    home = getattr(x, "__module__", None)
    known = isinstance(home, str) and _is_library(home)
    return known and getattr(x, "__name__", "") not in _IMPURE


def _is_library(module: str) -> bool:
    return module in _MODULES or module.partition(".")[0] in _LIBRARIES


@functools.lru_cache(maxsize=256)
def _names(code: types.CodeType) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """The globals that a function's code reads, and those within it, and all of its names."""
    known: dict[str, None] = {}
    attributes: set[str] = set()
    for part in _parts(code):
        attributes.update(part.co_names)
        for operation in dis.get_instructions(part):
            kind, name = operation.opname, operation.argval
            outside = kind in {"STORE_DEREF", "DELETE_DEREF"} and name in code.co_freevars
            hidden = isinstance(name, str) and name.startswith("__") and kind != "LOAD_CONST"
            if outside or hidden or kind in _ELSEWHERE:
                return None
            if kind == "LOAD_GLOBAL":
                known[name] = None
    return tuple(known), tuple(sorted(attributes))


def _parts(code: types.CodeType) -> list[types.CodeType]:
    inner = (c for c in code.co_consts if isinstance(c, types.CodeType))
    return [code, *itertools.chain.from_iterable(map(_parts, inner))]


_numbers = itertools.count()


@jax.jit
def _number() -> int:
    return next(_numbers)


def _setting() -> tuple[int, Any]:
    """What stands for JAX's settings (precision, x64, promotion, a mesh): others have others.

    JAX traces a function anew where settings differ, and this one then returns the next number. It
    leaves out only of what kind keys are.
    """
    number = _number()
    if isinstance(number, Tracer):
        raise UnseenError
    config: Any = jax.config
    return int(number), config.jax_default_prng_impl

"""Error messages for functions that aren't written for JAX."""

from __future__ import annotations

import contextlib
import linecache
import re
import traceback
from collections.abc import Iterator

import jax

_NUMPY = re.compile(r"\b(np|numpy|scipy|special|math)\.((?:\w+\.)*\w+)\s*\(")
_WRITES = re.compile(r"[\w.]+\[[^=]*\]\s*[-+*/]?=(?!=)")
_OF_JAX = (
    jax.errors.TracerArrayConversionError,
    jax.errors.ConcretizationTypeError,
    jax.errors.NonConcreteBooleanIndexError,
)
_ARGUMENT = re.compile(r"(?:arose for the|The) `?(\w+)`? argument of ([\w.]*\w)")
_OURS = {"scipy": "jax.scipy.", "special": "jax.scipy.special."}  # all else is jnp's


class NotForJaxError(TypeError):
    """The error that is raised: a TypeError, whose cause is JAX's own.

    Args:
        message: What it says.
        is_of_another: Whether the function at fault is none that calls or is called by others.
    """

    def __init__(self, message: str, is_of_another: bool = False) -> None:
        super().__init__(message)
        self.is_of_another = is_of_another


@contextlib.contextmanager
def written_for_jax(name: str, fn: str = "f", is_another: bool = False) -> Iterator[None]:
    """Turns an error from inside of JAX into one about the line of a function that caused it.

    Args:
        name: The name of the function that was called.
        fn: The name of its argument, the function that isn't written for JAX.
        is_another: Whether that is another one than the function within whose call it runs.
    """
    try:
        yield
    except (*_OF_JAX, NotForJaxError, ValueError) as found:
        # Of functions that call each other, the outermost is the one that the user knows. NumPy
        # hides JAX's error behind one of its own where an entry of an array is written.
        error = found if isinstance(found, _OF_JAX) else found.__cause__
        if not isinstance(error, _OF_JAX) or getattr(found, "is_of_another", False):
            raise
        line, called = _cause(found if isinstance(found, ValueError) else error)
        argument = _ARGUMENT.search(str(error))
        if argument is not None:
            name_of, function = argument.groups()
            what = f"calls {function} without a number for its argument {name_of}; give one"
        elif isinstance(error, jax.errors.TracerBoolConversionError):
            what = "decides in Python by a value; write jnp.where(condition, a, b)"
        elif isinstance(error, jax.errors.NonConcreteBooleanIndexError):
            what = "selects by a condition, so no shape is known; write jnp.where(condition, a, b)"
        elif called is None and _WRITES.match(line):
            what = "writes into an array; write x.at[i].set(value), or jnp.stack([...])"
        elif called is None:
            what = "needs the numbers of an array; write it with jax.numpy or jax.scipy"
        else:
            what = f"calls {called[0]}; write {called[1]}"
        where = f": `{line}`" if line else ""
        message = f"{name}: {fn} {what}: {fn} gets JAX arrays{where}."
        raise NotForJaxError(message, is_another) from error


def _cause(error: BaseException) -> tuple[str, tuple[str, str] | None]:
    """The last line with a function of NumPy outside of JAX, that function, and its like."""
    last = ""
    for frame, number in reversed(list(traceback.walk_tb(error.__traceback__))):
        path = frame.f_code.co_filename
        line = linecache.getline(path, number).strip()
        if not line or "/jax/" in path or "/numpy/" in path:
            continue
        last = last or line
        found = _NUMPY.search(line)
        if found:
            module, name = found.groups()
            return line, (f"{module}.{name}", _OURS.get(module, "jnp.") + name)
    return last, None

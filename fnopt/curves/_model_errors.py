"""Error messages for models that aren't written for JAX."""

from __future__ import annotations

import contextlib
import linecache
import re
import traceback
from collections.abc import Iterator

import jax

_NUMPY = re.compile(r"\b(np|numpy|scipy|special|math)\.((?:\w+\.)*\w+)\s*\(")
_OURS = {"scipy": "jax.scipy.", "special": "jax.scipy.special."}  # all else is jnp's


@contextlib.contextmanager
def written_for_jax(name: str) -> Iterator[None]:
    """Turns an error from inside of JAX into one about the line of the model that caused it."""
    try:
        yield
    except (jax.errors.TracerArrayConversionError, jax.errors.ConcretizationTypeError) as error:
        line, called = _cause(error)
        if isinstance(error, jax.errors.TracerBoolConversionError):
            what = "decides in Python by a value; write jnp.where(condition, a, b)"
        elif called is None:
            what = "needs the numbers of an array; write it with jax.numpy"
        else:
            what = f"calls {called[0]}; write {called[1]}"
        where = f": `{line}`" if line else ""
        raise TypeError(f"{name}: f {what}: f gets JAX arrays{where}.") from error


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

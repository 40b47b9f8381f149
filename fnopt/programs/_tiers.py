"""When a program is worth its compilation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from fnopt.programs._numpy_program import NotInNumpyError, NumpyProgram, OverBudgetError

_CONFIG: Any = jax.config  # its fields are made at run time
# XLA compiles an operation in 1 to 2 ms, and NumPy runs one in 1 to 2 us: after so many runs both
# have cost the same. Whoever then changes from renting to buying pays at most twice what the best
# choice in hindsight costs (the ski-rental problem: Karlin, Manasse, Rudolph and Sleator 1988).
_RUNS = 1000


class TieredProgram:
    """A function of arrays that NumPy runs at first, and XLA once that is cheaper.

    Compiling a small fit takes a second or two, running it takes NumPy some milliseconds. Programs
    of other devices than CPUs, of large arrays, or with effects are compiled at once.

    Args:
        fn: The function.
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.compiled = jax.jit(fn)
        self.in_numpy: dict[Any, NumpyProgram | None] = {}

    def __call__(self, *arrays: Any) -> Any:
        """Call the function."""
        key = _CONFIG.jax_enable_x64, *map(jax.typeof, arrays)
        if key not in self.in_numpy:
            self.in_numpy[key] = self._program(arrays)
        program = self.in_numpy[key]
        if program is not None:
            try:
                return program(arrays, budget=_RUNS * program.size)
            except OverBudgetError:
                self.in_numpy[key] = None
        return self.compiled(*arrays)

    def _program(self, arrays: tuple[Any, ...]) -> NumpyProgram | None:
        devices = {d.platform for x in arrays if isinstance(x, jax.Array) for d in x.devices()}
        if _CONFIG.jax_debug_nans or (devices or {jax.default_backend()}) != {"cpu"}:
            return None
        traced = self.compiled.trace(*arrays)
        try:
            return NumpyProgram(traced.jaxpr, jax.tree.structure(traced.out_info))
        except NotInNumpyError:
            return None

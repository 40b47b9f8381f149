"""When a program is worth its compilation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import SingleDeviceSharding

from fnopt.programs._numpy_program import NotInNumpyError, NumpyProgram, OverBudgetError

_CONFIG: Any = jax.config  # its fields are made at run time
# XLA compiles an operation in 1 to 2 ms, and NumPy runs one in 1 to 2 us: after so many runs both
# have cost the same. Whoever then changes from renting to buying pays at most twice what the best
# choice in hindsight costs (the ski-rental problem: Karlin, Manasse, Rudolph and Sleator 1988).
_RUNS = 1000
_SETTINGS = ("jax_enable_x64", "jax_default_device", "jax_debug_nans", "jax_debug_infs")


class TieredProgram:
    """A function of arrays that NumPy runs at first, and XLA once that is cheaper.

    Compiling a small fit takes a second or two, running it takes NumPy some milliseconds. Programs
    of other devices than CPUs, of large arrays, or with effects other than callbacks are compiled
    at once.

    Args:
        fn: The function.
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.compiled = jax.jit(fn)
        self.in_numpy: dict[Any, NumpyProgram | None] = {}

    def __call__(self, *arrays: Any) -> Any:
        """Call the function."""
        placements = {x.sharding for x in arrays if isinstance(x, jax.Array) and x.committed}
        settings = tuple(getattr(_CONFIG, name) for name in _SETTINGS)
        key = settings, frozenset(placements), *map(jax.typeof, arrays)
        if key not in self.in_numpy:
            self.in_numpy[key] = self._program(arrays, placements)
        program = self.in_numpy[key]
        if program is not None:
            try:
                return program(arrays, budget=_RUNS * program.size)
            except OverBudgetError:
                self.in_numpy[key] = None
        return self.compiled(*arrays)

    def _program(self, arrays: tuple[Any, ...], placements: set[Any]) -> NumpyProgram | None:
        if _CONFIG.jax_debug_nans or _CONFIG.jax_debug_infs or not _is_on_cpu(placements):
            return None
        traced = self.compiled.trace(*arrays)
        device = next(iter(placements), None)
        try:
            return NumpyProgram(traced.jaxpr, jax.tree.structure(traced.out_info), device)
        except NotInNumpyError:
            return None


def _is_on_cpu(placements: set[Any]) -> bool:
    """Whether a program of arrays that are committed to these placements runs on a CPU."""
    if not placements:
        device = _CONFIG.jax_default_device
        return (getattr(device, "platform", device) or jax.default_backend()) == "cpu"
    return all(
        isinstance(placement, SingleDeviceSharding)
        and {device.platform for device in placement.device_set} == {"cpu"}
        for placement in placements
    )

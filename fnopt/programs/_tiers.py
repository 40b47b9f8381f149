"""Programs that are compiled only when the compilation saves time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import SingleDeviceSharding

from fnopt.programs._keys import shape_struct
from fnopt.programs._numpy_program import NotInNumpyError, NumpyProgram, OverBudgetError

_CONFIG: Any = jax.config  # JAX creates its fields at run time
# The ski-rental problem (Karlin, Manasse, Rudolph and Sleator 1988): a compilation after runs of
# the same total cost takes at most twice the optimal time. XLA compiles an operation of a fit in
# 1.5 ms. NumPy runs an operation in 0.6 us, so both costs are equal after 2,500 runs.
_RUNS = 2500
_SETTINGS = ("jax_enable_x64", "jax_default_device", "jax_debug_nans", "jax_debug_infs")


def call_types(arrays: Sequence[Any]) -> tuple[Any, ...]:
    """Return the settings, shardings and types on which the program of a call depends."""
    placements = {x.sharding for x in arrays if isinstance(x, jax.Array) and x.committed}
    settings = tuple(getattr(_CONFIG, name) for name in _SETTINGS)
    return settings, frozenset(placements), *map(jax.typeof, arrays)


class TieredProgram:
    """A function of arrays that NumPy runs first, and XLA after enough runs.

    XLA compiles a small fit in one or two seconds; NumPy runs it in a few milliseconds. The results
    are placed on the device of the arguments, which may be a GPU or TPU. Programs of sharded or
    large arrays, and programs with effects other than callbacks, are compiled immediately.

    Args:
        fn: The function.
        types: The `call_types` of the arguments.
        jaxpr: The jaxpr of the function, if known. The constants of the jaxpr are then the first
            arguments, and the result is a list.
    """

    def __init__(self, fn: Callable[..., Any], types: tuple[Any, ...], jaxpr: Any = None) -> None:
        self.compiled = jax.jit(fn)
        _, placements, *avals = types
        self.in_numpy = None
        device = next(iter(placements), None)
        # The spec of a mesh sharding, even on one device, doesn't fit results of other ranks.
        is_on_one_device = len(placements) <= 1 and isinstance(device, SingleDeviceSharding | None)
        if _CONFIG.jax_debug_nans or _CONFIG.jax_debug_infs or not is_on_one_device:
            return
        if jaxpr is None:
            traced = self.compiled.trace(*map(shape_struct, avals))
            jaxpr, consts = traced.jaxpr.jaxpr, traced.jaxpr.consts
            structure = jax.tree.structure(traced.out_info)
        else:
            consts, structure = None, jax.tree.structure(jaxpr.outvars)
        # A program with arrays or effects that NumPy doesn't support is compiled immediately.
        with contextlib.suppress(NotInNumpyError):
            self.in_numpy = NumpyProgram(jaxpr, consts, structure, device)

    def __call__(self, *arrays: Any) -> Any:
        """Call the function."""
        in_numpy = self.in_numpy  # read once: another thread may set it to None
        if in_numpy is not None:
            try:
                return in_numpy(arrays, budget=_RUNS * in_numpy.size)
            except OverBudgetError:  # a compilation costs no more than the runs so far
                self.in_numpy = None
        return self.compiled(*arrays)

"""Compare all public functions on 1, 2, 4 and 8 devices of both kinds of meshes with one device.

    python -m tests.contract.meshes_run [KIND PLACE DEVICES]... [--cases NAME...] [--eager]

For each combination (such as `Auto batch 8`) the command prints the largest difference of all
cases, divided by the tolerance. If a change of the data by one unit in the last place causes a
larger difference on one device (nearly singular normal equations), the command divides by this
difference. The command takes minutes, so the tests run few combinations; run it before a release.
With `--eager` the cases aren't compiled, and every operation runs separately.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from typing import Any

import jax
import numpy as np

from tests.contract.mesh_cases import CASES
from tests.contract.test_meshes import data_for, distance, placed
from tests.quick_compile import compile_quickly

KINDS = "Explicit", "Auto"
WAYS = [
    *(("Explicit", "batch", n) for n in (1, 2, 4, 8)),
    *(("Auto", "batch", n) for n in (2, 4, 8)),
    *((kind, "params", n) for kind in KINDS for n in (2, 4, 8)),
    *((kind, "replicated", 8) for kind in KINDS),
    *((kind, "both", n) for kind in KINDS for n in (4, 8)),  # batch and params, on two axes
]


def results(names: list[str], data: Any, mesh: Any = None, eager: bool = False) -> dict[str, Any]:
    """Return the result of each case, compiled separately; an exception if the case fails."""
    outcomes = {}
    for name in names:
        try:
            with contextlib.nullcontext() if mesh is None else jax.set_mesh(mesh):
                run = CASES[name] if eager else jax.jit(CASES[name])
                outcomes[name] = jax.tree.map(np.asarray, run(data))
        except Exception as error:  # continue with the other cases
            outcomes[name] = error
    return outcomes


def _round_up(x: np.ndarray) -> np.ndarray:
    return np.nextafter(x, np.inf, dtype=x.dtype)


def main(ways: list[tuple[str, str, int]], names: list[str], eager: bool) -> int:
    failed, on_one = 0, {}
    for way in ways:
        begun = time.process_time()
        data, unplaced = placed(*way), data_for(*way[1:])
        width = unplaced["params"]["b"].size
        if width not in on_one:
            exact, rounded_results = (
                results(names, x) for x in (unplaced, jax.tree.map(_round_up, unplaced))
            )
            on_one[width] = {name: (exact[name], rounded_results[name]) for name in names}
        mesh = data["t"].sharding.mesh if way[0] == "Explicit" else None
        outcomes = results(names, data, mesh, eager)
        apart = {}
        for name in names:
            one, rounded = on_one[width][name]
            errors = [x for x in (outcomes[name], one, rounded) if isinstance(x, Exception)]
            apart[name] = (
                np.inf if errors else distance(outcomes[name], one) / max(1, distance(rounded, one))
            )
            if not apart[name] <= 1:
                failed += 1
                print(f"  {name}: {apart[name]:.1f} tolerances apart {errors or ''}", flush=True)
        worst = max(apart, key=lambda name: apart[name])
        print(
            *way, f"{len(apart)} cases, the largest difference is {apart[worst]:.2g} tolerances "
            f"({worst}); {time.process_time() - begun:.0f} s", flush=True,
        )  # fmt: skip
    return failed


if __name__ == "__main__":
    compile_quickly()
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 8)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ways", nargs="*")
    parser.add_argument("--cases", nargs="+", choices=[*CASES], default=[*CASES])
    parser.add_argument("--eager", action="store_true")
    args = parser.parse_args()
    triples = zip(*[iter(args.ways)] * 3, strict=True)
    meshes = [(kind, place, int(n)) for kind, place, n in triples]
    sys.exit(min(main(meshes or WAYS, args.cases, args.eager), 1))

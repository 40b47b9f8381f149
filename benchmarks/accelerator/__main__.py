"""Measure on an accelerator: `python -m benchmarks.accelerator --out DIR [--parts a,b]`.

The command needs jax, optax, numpy and this repository, and runs on any backend. The results of a
case are written to `DIR/accelerator.json` and `DIR/accelerator.md` when the case ends. A second run
measures only the cases without results.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import jax.numpy as jnp

from benchmarks.accelerator import clipping, device, fits, memory, precision, steps, training
from benchmarks.accelerator.measure import Case, Run
from benchmarks.accelerator.record import Record
from benchmarks.metric import Skipped

# Parts run in this order: the most important part first, the slowest parts last.
PARTS: dict[str, Callable[[Run], Iterator[Case]]] = {
    "device": device.cases,
    "memory": memory.cases,
    "steps": steps.cases,
    "fits": fits.cases,
    "clipping": clipping.cases,
    "training": training.cases,
    "precision": precision.cases,
    "more_fits": fits.more_cases,
    "large_steps": steps.more_cases,
    "many_leaves": memory.more_cases,
}


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """Parse and check the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accelerator", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"), metavar="DIR")
    parser.add_argument("--parts", default=",".join(PARTS), help="comma-separated parts to run")
    parser.add_argument(
        "--budget",
        type=float,
        default=480.0,
        metavar="SECONDS",
        help="start no further case after this time",
    )
    parser.add_argument(
        "--smoke", action="store_true", help="run tiny sizes, to test the benchmark"
    )
    parser.add_argument("--again", action="store_true", help="repeat cases that have results")
    parser.add_argument("--keep-errors", action="store_true", help="don't repeat failed cases")
    args = parser.parse_args(argv)
    args.chosen = args.parts.split(",")
    unknown = [name for name in args.chosen if name not in PARTS]
    if unknown:
        parser.error(f"--parts contains {unknown[0]!r}, expected some of {', '.join(PARTS)}")
    return args


def outcome(case: Case) -> dict[str, object]:
    """Return the rows of a case, or the reason why the case has no rows."""
    try:
        return {"rows": case.measure()}
    except Skipped as reason:
        return {"skipped": str(reason)}
    except Exception as error:  # one failure must not stop the other cases
        return {
            "error": f"{type(error).__name__}: {error}",
            "trace": traceback.format_exc()[-4000:],
        }


def device_failed() -> bool:
    """Whether the device fails in all further calls of this process, as after a kernel fault."""
    try:
        jax.block_until_ready(jnp.ones(8) + 1)
    except Exception:
        return True
    return False


def restart(args: argparse.Namespace, budget: float) -> None:
    """Replace this process by a new process, which measures the remaining cases."""
    flags = ["--keep-errors"] + ["--smoke"] * args.smoke
    options = ["--out", str(args.out), "--parts", args.parts, "--budget", str(budget)]
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "benchmarks.accelerator", *options, *flags])


def main(argv: list[str] | None = None) -> int:
    """Run the selected parts; return 1 if a case failed."""
    args = arguments(argv)
    if args.smoke:
        from tests.quick_compile import compile_quickly

        compile_quickly()
    begin, record = time.perf_counter(), Record(args.out, args.again, args.keep_errors)
    run = Run(args.smoke)
    for part in args.chosen:
        for case in PARTS[part](run):
            if record.has(part, case.name):
                continue
            spent = time.perf_counter() - begin
            if spent > args.budget:
                entry = {"skipped": f"the budget of {args.budget:.0f} s was spent"}
            else:
                entry = outcome(case)
            record.add(part, case.name, **entry)
            took = time.perf_counter() - begin - spent
            print(
                f"{spent:6.1f} s  {part}: {case.name}  ({took:.1f} s)"
                f"  {entry.get('error', entry.get('skipped', ''))}"[:300],
                flush=True,
            )
            if "error" in entry and device_failed():
                restart(args, args.budget - (time.perf_counter() - begin))
            jax.clear_caches()
            gc.collect()
    print(record.path.with_suffix(".md").read_text())
    return bool(record.failed())


if __name__ == "__main__":
    sys.exit(main())

"""`python -m benchmarks pinns [--problems ...] [--seconds S] [--wall S] [--record FILE]`."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from benchmarks import report
from benchmarks.pinns.equations import EQUATIONS
from benchmarks.pinns.methods import METHODS
from benchmarks.pinns.record import RECORD, merged
from benchmarks.pinns.session import compare
from benchmarks.pinns.tables import printed

FOLDER = Path("benchmarks/results/pinns")
# Seconds of CPU are then those of one core: threads that wait for work spend some too.
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
ONE_THREAD_XLA = "--xla_cpu_multi_thread_eigen=false"


def main(argv: list[str]) -> int:
    """Goes on where the last call stopped; 1 if something is left to do."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks pinns", description=__doc__)
    parser.add_argument("--problems", nargs="+", choices=EQUATIONS, default=[*EQUATIONS])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=[*METHODS])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="of CPU for each run")
    parser.add_argument(
        "--wall",
        type=float,
        default=float("inf"),
        metavar="SECONDS",
        help="begin nothing new after it; the same command goes on later",
    )
    parser.add_argument("--smoke", action="store_true", help="tiny sizes: shows that it works")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="a JSON file for each problem")
    parser.add_argument(
        "--record",
        type=Path,
        nargs="?",
        const=RECORD,
        metavar="FILE",
        help=f"train nothing: put the files together in one ({RECORD.name})",
    )
    args = parser.parse_args(argv)
    if args.smoke:
        return subprocess.call([sys.executable, "-m", "benchmarks", "--smoke", "pinns"])
    if args.record:
        record = merged(args.folder, [*EQUATIONS])
        args.record.write_text(record.text())
        print(printed(record))
        return 0
    if not _in_one_thread():
        return _started_again(argv)
    print(report.machine())
    missing = compare(
        args.problems,
        args.folder,
        methods=args.methods,
        seeds=args.seeds,
        seconds=args.seconds,
        wall=args.wall,
    )
    print(f"not complete: {missing}; call it again" if missing else "all complete")
    return bool(missing)


def _in_one_thread() -> bool:
    return all(os.environ.get(name) == value for name, value in ONE_THREAD.items())


def _started_again(argv: list[str]) -> int:
    """The linear algebra of SciPy, which JAX uses too, reads its threads when it is loaded."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} {ONE_THREAD_XLA}".strip()
    environment = os.environ | ONE_THREAD | {"XLA_FLAGS": flags}
    return subprocess.call([sys.executable, "-m", "benchmarks", "pinns", *argv], env=environment)

"""Run: `python -m benchmarks pinns [--problems ...] [--seconds S] [--wall S] [--record FILE]`."""

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
# With several threads, waiting threads would add to the CPU seconds.
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
ONE_THREAD_XLA = "--xla_cpu_multi_thread_eigen=false"


def main(argv: list[str]) -> int:
    """Continue the comparison; return 1 if runs are missing."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks pinns", description=__doc__)
    parser.add_argument("--problems", nargs="+", choices=EQUATIONS, default=[*EQUATIONS])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=[*METHODS])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="CPU seconds of each run")
    parser.add_argument(
        "--wall",
        type=float,
        default=float("inf"),
        metavar="SECONDS",
        help="start no run after this time; the same command continues later",
    )
    parser.add_argument("--smoke", action="store_true", help="run tiny sizes, to test the code")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="folder of the JSON files")
    parser.add_argument(
        "--record",
        type=Path,
        nargs="?",
        const=RECORD,
        metavar="FILE",
        help=f"merge the files of the folder into FILE ({RECORD.name}), without training",
    )
    args = parser.parse_args(argv)
    if args.smoke:
        return subprocess.call([sys.executable, "-m", "benchmarks", "--smoke", "pinns"])
    if args.record:
        record = merged(args.folder, [*EQUATIONS])
        args.record.write_text(record.text())
        print(printed(record))
        return 0
    if not _has_one_thread():
        return _restart(argv)
    print(report.machine())
    missing = compare(
        args.problems,
        args.folder,
        methods=args.methods,
        seeds=args.seeds,
        seconds=args.seconds,
        wall=args.wall,
    )
    print(f"incomplete: {missing}; repeat the command" if missing else "complete")
    return bool(missing)


def _has_one_thread() -> bool:
    return all(os.environ.get(name) == value for name, value in ONE_THREAD.items())


def _restart(argv: list[str]) -> int:
    """Run the command in a new process, because OpenBLAS reads its thread count when it loads."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} {ONE_THREAD_XLA}".strip()
    environment = os.environ | ONE_THREAD | {"XLA_FLAGS": flags}
    return subprocess.call([sys.executable, "-m", "benchmarks", "pinns", *argv], env=environment)

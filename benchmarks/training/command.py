"""`python -m benchmarks training [--tasks ...] [--seeds N] [--budget SECONDS] [--record FILE]`.

`python -m benchmarks training validation ...` measures steps to a target of the validation loss.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks import report
from benchmarks.training import validation
from benchmarks.training.methods import METHODS
from benchmarks.training.record import RECORD, merged
from benchmarks.training.session import compare, one_thread
from benchmarks.training.tables import printed
from benchmarks.training.tasks import TASKS

FOLDER = Path("benchmarks/results/training")


def main(argv: list[str]) -> int:
    """Goes on where the last call stopped; 1 if something is left to do."""
    if argv[:1] == ["validation"]:
        return validation.main(argv[1:])
    parser = argparse.ArgumentParser(prog="python -m benchmarks training", description=__doc__)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=[*TASKS], metavar="TASK")
    parser.add_argument("--methods", nargs="+", choices=METHODS, metavar="METHOD")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument(
        "--budget",
        type=float,
        default=float("inf"),
        metavar="SECONDS",
        help="begin nothing new after it; the same command goes on later",
    )
    parser.add_argument("--folder", type=Path, default=FOLDER, help="a JSON file for each task")
    parser.add_argument(
        "--record",
        type=Path,
        nargs="?",
        const=RECORD,
        metavar="FILE",
        help=f"train nothing: put the files together in one ({RECORD.name})",
    )
    args = parser.parse_args(argv)
    if args.record:
        record = merged(args.folder, TASKS)
        args.record.write_text(record.text())
        print(printed(record))
        return 0
    one_thread()
    print(report.machine())
    missing = compare(
        args.tasks,
        args.folder,
        methods=lambda task: args.methods,
        seeds=args.seeds,
        budget=args.budget,
    )
    print(f"not complete: {missing}; call it again" if missing else "all complete")
    return bool(missing)

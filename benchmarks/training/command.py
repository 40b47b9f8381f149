"""Run: `python -m benchmarks training [--tasks ...] [--seeds N] [--budget S] [--record FILE]`.

`python -m benchmarks training validation ...` measures the steps to a target validation loss.
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
    """Continue the comparison; return 1 if runs are missing."""
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
        help="start no run after this time; the same command continues later",
    )
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
    print(f"incomplete: {missing}; repeat the command" if missing else "complete")
    return bool(missing)

"""Run benchmarks: `python -m benchmarks [CASE ...] [--smoke] [--json OUT] [--baseline FILE]`.

Three benchmarks have separate commands and options:

- `python -m benchmarks training` compares optimizers, in about an hour; `training validation`
  measures the steps to a validation target.
- `python -m benchmarks pinns` compares methods that solve differential equations by networks, in
  half an hour.
- `python -m benchmarks paths` records the path of every optimizer on two functions.
"""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks import cases, paths, report
from benchmarks.metric import Skipped
from benchmarks.pinns import command as pinns
from benchmarks.timing import Settings
from benchmarks.training import command as training
from tests.quick_compile import collect_rarely, compile_quickly


def case_names() -> list[str]:
    """Return the names of the modules in `benchmarks/cases`; each module is a case."""
    return sorted(m.name for m in pkgutil.iter_modules(cases.__path__))


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """Parse and check the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    names = case_names()
    parser.add_argument("case", nargs="*", help=f"part of a name; default: all of {names}")
    parser.add_argument(
        "--smoke", action="store_true", help="run tiny sizes, to test the benchmark"
    )
    parser.add_argument(
        "--jobs", type=int, default=1, metavar="N", help="number of parallel cases in a smoke run"
    )
    parser.add_argument(
        "--solver",
        action="append",
        default=[],
        metavar="NAME",
        help="run only this solver of a case; NAME is the first column of the printed table",
    )
    parser.add_argument("--json", type=Path, metavar="OUT", help="write all metrics to OUT")
    parser.add_argument(
        "--baseline", type=Path, metavar="FILE", help="fail if a metric is worse than in FILE"
    )
    args = parser.parse_args(argv)
    args.chosen = [c for c in names if not args.case or any(part in c for part in args.case)]
    if args.smoke and args.baseline:
        parser.error("--baseline needs a full run, got --smoke, whose tiny sizes have other ratios")
    if args.jobs != 1 and (not args.smoke or args.json):
        parser.error("--jobs needs --smoke without --json, because parallel cases disturb timings")
    if not args.chosen:
        parser.error(f"no case has a name with {args.case}, expected parts of {names}")
    return args


def run_cases(chosen: list[str], settings: Settings) -> tuple[report.Results, dict[str, str]]:
    """Run the cases one by one, and print each metric when it is measured."""
    results: report.Results = {}
    skipped: dict[str, str] = {}
    for name in chosen:
        module = importlib.import_module(f"benchmarks.cases.{name}")
        print(f"\n{name}: {module.__doc__.splitlines()[0]}")
        start = time.perf_counter()
        try:
            results[name] = list(report.printed(module.run(settings)))
        except Skipped as reason:
            skipped[name] = str(reason)
            print(f"  skipped, {reason}")
            continue
        print(f"  ({time.perf_counter() - start:.0f} s)")
    return results, skipped


def smoke(chosen: list[str], jobs: int) -> bool:
    """Run each case in a separate process, `jobs` at a time; return whether all succeeded."""

    def run(name: str) -> bool:
        command = [sys.executable, "-m", "benchmarks", "--smoke", name]
        ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        print(ended.stdout, flush=True)
        return ended.returncode == 0

    with ThreadPoolExecutor(jobs) as pool:
        return all(list(pool.map(run, chosen)))


def main(argv: list[str] | None = None) -> int:
    """Run the selected cases; return 1 if a metric is worse than in the baseline."""
    argv = sys.argv[1:] if argv is None else argv
    for name, command in (("training", training), ("pinns", pinns), ("paths", paths)):
        if argv[:1] == [name]:
            return command.main(argv[1:])
    args = arguments(argv)
    if args.smoke:  # nobody uses the times of tiny sizes, so quick compilation may change them
        compile_quickly()
        collect_rarely()
    if args.jobs > 1:
        return not smoke(args.chosen, args.jobs)
    print(report.machine())
    results, skipped = run_cases(
        args.chosen, Settings(smoke=args.smoke, solvers=tuple(args.solver))
    )
    if args.json:
        report.write_json(args.json, results, skipped)
        print(f"\nwritten to {args.json}")
    worse = []
    if args.baseline:
        worse = report.regressions(results, json.loads(args.baseline.read_text()))
        print("\n".join(["", *worse]) if worse else "\nnothing is worse than the baseline")
    return bool(worse)


if __name__ == "__main__":
    sys.exit(main())

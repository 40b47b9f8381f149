"""The command: `python -m benchmarks [CASE ...] [--smoke] [--json OUT] [--baseline FILE]`.

`python -m benchmarks training ...` is the training comparison, which takes the better part of an
hour; `training validation ...` measures steps to a validation target. `python -m benchmarks pinns
...` compares methods for equations solved by networks, which takes half an hour. All have options
of their own. `python -m benchmarks paths` draws every optimizer's way down a valley.
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
    """Every file in `benchmarks/cases` is a case."""
    return sorted(m.name for m in pkgutil.iter_modules(cases.__path__))


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    known = case_names()
    parser.add_argument("case", nargs="*", help=f"part of a name; all by default: {known}")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes: shows that it works")
    parser.add_argument(
        "--jobs", type=int, default=1, metavar="N", help="of a smoke run: cases at once"
    )
    parser.add_argument(
        "--solver",
        action="append",
        default=[],
        metavar="NAME",
        help="where a case has several solvers: this one only, by its name in the table",
    )
    parser.add_argument("--json", type=Path, metavar="OUT", help="write all figures there")
    parser.add_argument("--baseline", type=Path, metavar="FILE", help="fail where it got worse")
    args = parser.parse_args(argv)
    args.chosen = [c for c in known if not args.case or any(part in c for part in args.case)]
    if args.smoke and args.baseline:
        parser.error("tiny sizes have other ratios: a baseline is for full runs")
    if args.jobs != 1 and (not args.smoke or args.json):
        parser.error("figures are taken one after the other: --jobs is for --smoke without --json")
    if not args.chosen:
        parser.error(f"no case is called {args.case}; there are {known}")
    return args


def run_cases(chosen: list[str], settings: Settings) -> tuple[report.Results, dict[str, str]]:
    """Runs case after case and prints as it goes."""
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
    """Runs cases in processes of their own, some at once; whether all of them ran through."""

    def run(name: str) -> bool:
        command = [sys.executable, "-m", "benchmarks", "--smoke", name]
        ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        print(ended.stdout, flush=True)
        return ended.returncode == 0

    with ThreadPoolExecutor(jobs) as pool:
        return all(list(pool.map(run, chosen)))


def main(argv: list[str] | None = None) -> int:
    """Runs the chosen cases; 1 if a figure is worse than the baseline."""
    argv = sys.argv[1:] if argv is None else argv
    for name, command in (("training", training), ("pinns", pinns), ("paths", paths)):
        if argv[:1] == [name]:
            return command.main(argv[1:])
    args = arguments(argv)
    if args.smoke:  # figures of tiny sizes are none
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

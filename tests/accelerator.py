"""Run the tests whose results depend on the backend: `python -m tests.accelerator [--seconds S]`.

Further arguments are passed to pytest. JAX must find the accelerator; the tests need pytest,
pytest-xdist, optax, flax and SciPy. After `S` seconds the remaining tests are skipped, so that the
failures until then are reported. The output ends with the names and messages of the failed tests.
Each failure is also written to `$OUT/failures.txt` at once (default: `benchmarks/results`).
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

# Tests run in this order: comparisons of numerical results, then fits, then tests of programs.
SELECTED = (
    *(f"transforms/test_{name}.py" for name in ("packed", "offloaded", "layered_step")),
    *("numerics/test_numbers.py", "transforms/test_quantized_state.py"),
    *("contract/test_solvers.py", "gradients/ghost/test_ghost_parity.py"),
    *(f"gradients/test_{name}.py" for name in ("clipped", "norms", "statistics", "compiled")),
    *(f"optimizers/test_{name}.py" for name in ("kfac", "muon", "newton_schulz", "shampoo")),
    *("optimizers/test_soap.py", "solvers/test_levenberg_marquardt.py"),
    "contract/test_transforms.py",
    *(f"solvers/test_{name}.py" for name in ("bounded", "driver", "root", "robust_fits")),
    *(f"optimizers/test_{name}.py" for name in ("agrees_with_optax", "natural_gradient")),
    *("solvers/minimize/test_convergence.py", "optimizers/test_optimizers.py", "gradients"),
    "contract/test_accelerators.py",
)
OPTIONS = "-q --tb=line --maxfail=200 --durations=15 -p no:cacheprovider -p tests.accelerator"
# An accelerator may have a newer JAX with new deprecations; pytest-benchmark warns about xdist.
QUIET = "-p no:benchmark -W ignore::DeprecationWarning -W ignore::FutureWarning"
DEADLINE = "FNOPT_TEST_DEADLINE"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Skip the remaining tests after the deadline."""
    if time.time() > float(os.environ.get(DEADLINE, "inf")):
        pytest.skip("the time is up")


class Failures:
    """Plugin of pytest that collects failed tests, and writes each failure to a file at once."""

    def __init__(self, path: Path) -> None:
        self.path, self.lines = path, []
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")

    def pytest_runtest_logreport(self, report):
        """Store the name of a failed test and the last line of its message."""
        if report.failed:
            message = str(report.longrepr or "").strip().splitlines() or [""]
            self.lines.append(f"{report.nodeid} [{report.when}] {message[-1][:200]}")
            with self.path.open("a") as file:
                print(self.lines[-1], file=file)

    def summary(self) -> str:
        """Return the number of failures and their names."""
        return "\n".join([f"{len(self.lines)} failed, listed in {self.path}", *self.lines])


def main(argv: list[str]) -> int:
    """Run the selected tests on the platform FNOPT_TEST_PLATFORM (default: gpu)."""
    seconds = "360"
    if argv[:1] == ["--seconds"]:
        seconds, argv = argv[1], argv[2:]
    os.environ[DEADLINE] = str(time.time() + float(seconds))
    os.environ.setdefault("FNOPT_TEST_PLATFORM", "gpu")
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # many processes share a GPU
    jobs = [] if any(arg.startswith("-n") for arg in argv) else ["-n", "8"]
    files = [f"tests/{name}" for name in SELECTED]
    failures = Failures(Path(os.environ.get("OUT", "benchmarks/results")) / "failures.txt")
    arguments = [*OPTIONS.split(), *QUIET.split(), *jobs, *argv, *files]
    code = pytest.main(arguments, plugins=[failures])
    print(failures.summary(), flush=True)
    return int(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The tests that a backend can break, on it: `python -m tests.accelerator [--seconds S] [...]`.

Other arguments are pytest's. JAX must see the accelerator; the tests need pytest, pytest-xdist,
optax, flax and SciPy. After `S` seconds the tests that are left are skipped, so that failures up to
then are reported. Their names and messages end the output, and stand in `$OUT/failures.txt` from
the moment when a test fails (`OUT` is `benchmarks/results` if it is not set).
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

# In this order: what compares numbers, case by case; whole fits; what only reads programs.
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
# Deprecations are newer versions' matter, and pytest-benchmark warns about pytest-xdist.
QUIET = "-p no:benchmark -W ignore::DeprecationWarning -W ignore::FutureWarning"
DEADLINE = "FNOPT_TEST_DEADLINE"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Skips what is left when the time is up."""
    if time.time() > float(os.environ.get(DEADLINE, "inf")):
        pytest.skip("the time is up")


class Failures:
    """A pytest plugin that collects failed tests, and writes each to a file at once."""

    def __init__(self, path: Path) -> None:
        self.path, self.lines = path, []
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")

    def pytest_runtest_logreport(self, report):
        """Keeps the name and the last line of the message."""
        if report.failed:
            message = str(report.longrepr or "").strip().splitlines() or [""]
            self.lines.append(f"{report.nodeid} [{report.when}] {message[-1][:200]}")
            with self.path.open("a") as file:
                print(self.lines[-1], file=file)

    def summary(self) -> str:
        """The number of failures and their names."""
        return "\n".join([f"{len(self.lines)} failed, listed in {self.path}", *self.lines])


def main(argv: list[str]) -> int:
    """Runs the selected tests on the GPU, or on FNOPT_TEST_PLATFORM."""
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

"""Distribute tests over processes so that tests with the same compiled programs stay together.

Compilation takes nearly all of a test's time, and tests in one process share compiled programs.
Therefore all tests of a file run in one process. The contract tests, a fifth of all tests, are
distributed case by case.
"""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

BATTERY = "tests/contract/test_transforms.py"


def unit_of(nodeid: str) -> str:
    """Return the unit of a test: its file, or its case for contract tests."""
    file, _, rest = nodeid.partition("::")
    if file != BATTERY or not rest.endswith("]"):
        return file
    return f"{file}::{rest[:-1].rpartition('[')[2].rpartition('-')[2]}"


class Units(LoadScopeScheduling):
    """Scheduler that keeps the order of the files, so small units (doctests) come last."""

    def __init__(self, config, log=None):
        super().__init__(config, log)
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)

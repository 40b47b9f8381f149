"""Which tests stay together when two processes share them: those that share compiled programs.

Nearly all of a test's time is compilation, and what one test has compiled the next one in its
process has for nothing. So a file goes to one process as a whole, and the contract battery, which
is a fifth of the suite, is dealt case by case.
"""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

BATTERY = "tests/contract/test_transforms.py"


def unit_of(nodeid: str) -> str:
    """The name of the unit that a test belongs to: its file, or the case of the battery."""
    file, _, rest = nodeid.partition("::")
    if file != BATTERY or not rest.endswith("]"):
        return file
    return f"{file}::{rest[:-1].rpartition('[')[2].rpartition('-')[2]}"


class Units(LoadScopeScheduling):
    """Units in the order of the files: the small ones, the doctests, come last and fill gaps."""

    def __init__(self, config, log=None):
        super().__init__(config, log)
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)

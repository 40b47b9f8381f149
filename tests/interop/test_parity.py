"""The page of optax's names says what is so."""

from __future__ import annotations

import importlib

import pytest

pytest.importorskip("optax")

from tests.interop import parity
from tests.interop.parity_reasons import ANOTHER, DEVIATIONS, NOT_YET, RENAMED

ENTRIES = parity.entries()


def test_the_page_is_current():
    committed = parity.PAGE.read_text()
    version = importlib.import_module("optax").__version__
    if f"optax {version}:" not in committed:
        pytest.skip(f"the page was made with another optax than {version}")
    assert committed == parity.page(), "run: python -m tests.interop.parity"


def test_what_the_page_says_is_here_is_here_and_public():
    for entry in ENTRIES:
        if entry.ours:
            package, _, name = entry.ours.rpartition(".")
            module = parity._lookup(package) if package else parity.fnopt
            public = module.__all__ if package else parity.fnopt._NAMES
            assert name in public, f"{entry.names[0]}: no public fnopt.{entry.ours}"
            assert callable(getattr(module, name))


def test_reasons_are_given_for_things_that_exist():
    """A reason for a name that optax lacks, or that we have by now, is out of date."""
    known = {name for entry in ENTRIES for name in entry.names}
    lost = {*RENAMED, *DEVIATIONS, *NOT_YET, *ANOTHER} - known
    assert not lost, f"optax has no {sorted(lost)}"
    for entry in ENTRIES:
        assert not (entry.ours and entry.names[0] in NOT_YET), f"{entry.names[0]} is here"


def test_every_loss_tree_projection_and_schedule_is_here():
    rooms = ("losses.", "tree.", "projections.")
    missing = [
        entry.names[0]
        for entry in ENTRIES
        if any(n.startswith(rooms) for n in entry.names) and parity.status(entry) == "not yet"
    ]
    assert not missing

"""The tests for accelerators: files that exist, a deadline, and the names of failures."""

from __future__ import annotations

import pathlib
from types import SimpleNamespace

import pytest

from tests import accelerator


@pytest.mark.parametrize("name", accelerator.SELECTED)
def test_selected_files_exist(name):
    assert (pathlib.Path(accelerator.__file__).parent / name).exists()


@pytest.mark.parametrize(("deadline", "skips"), [("0", True), ("inf", False), (None, False)])
def test_tests_are_skipped_after_the_deadline_only(monkeypatch, deadline, skips):
    monkeypatch.delenv(accelerator.DEADLINE, raising=False)
    if deadline is not None:
        monkeypatch.setenv(accelerator.DEADLINE, deadline)
    if not skips:
        return accelerator.pytest_runtest_setup(None)
    with pytest.raises(pytest.skip.Exception, match="the time is up"):
        accelerator.pytest_runtest_setup(None)
    return None


def test_failures_are_written_at_once_and_listed(tmp_path):
    failures = accelerator.Failures(tmp_path / "new" / "failures.txt")
    error = SimpleNamespace(failed=True, nodeid="a.py::b", when="call", longrepr="one\nE two")
    failures.pytest_runtest_logreport(error)
    failures.pytest_runtest_logreport(SimpleNamespace(failed=False))
    assert failures.path.read_text() == "a.py::b [call] E two\n"
    assert failures.summary().splitlines() == [
        f"1 failed, listed in {failures.path}",
        "a.py::b [call] E two",
    ]

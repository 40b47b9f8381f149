"""The selection of tests for accelerators is of files that exist, and stops at its deadline."""

from __future__ import annotations

import pathlib

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

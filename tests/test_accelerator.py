"""The tests for accelerators (files, a deadline, names of failures), and counts of traffic."""

from __future__ import annotations

import pathlib
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from benchmarks.accelerator.without_card import traffic
from tests import accelerator


def test_the_traffic_of_a_program_is_that_of_its_arrays():
    x, y = jnp.ones(1000), jnp.ones(1000, jnp.bfloat16)
    program = jax.jit(lambda x, y: 2 * x + y.astype(x.dtype)).lower(x, y).compile()
    assert traffic(program.as_text() or "") == 1000 * (4 + 2 + 4)


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

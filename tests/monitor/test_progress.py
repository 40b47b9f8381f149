from __future__ import annotations

import contextlib
import io
import re
import sys

import jax.numpy as jnp
import pytest

import fnopt
from fnopt.monitor import Progress
from fnopt.monitor import _progress as module


@pytest.fixture
def clock(monkeypatch):
    """A clock that goes one second further whenever somebody looks."""
    now = iter(range(1000))
    monkeypatch.setattr(module.time, "monotonic", lambda: float(next(now)))


def lines(records, total=None, **options):
    file = io.StringIO()
    with Progress(total, tqdm=False, file=file, **options) as progress:
        for record in records:
            progress(record)
    return file.getvalue().splitlines()


def test_plain_lines(clock):
    records = [{"step": 10 * i + 9, "loss": 1 / (i + 1)} for i in range(3)]
    assert lines(records, 30, seconds=0, examples=32) == [
        "step 10/30 (33%), loss 1",
        "step 20/30 (67%), 10 steps/s, 320 examples/s, loss 0.5",
        "step 30/30 (100%), 10 steps/s, 320 examples/s, loss 0.333",
    ]


def test_the_last_line_is_always_shown(clock):
    shown = lines([{"step": i} for i in range(7)], seconds=4)
    assert [line.split(",")[0] for line in shown] == ["step 1", "step 5", "step 7"]


def test_which_metrics_are_shown(clock):
    record = {"step": 0, "loss": 0.5, "histogram/w": [1, 2], "acc": float("nan"), "n": 3}
    assert lines([record]) == ["step 1, loss 0.5, acc nan, n 3"]
    assert lines([record], show=["acc"]) == ["step 1, acc nan"]
    with pytest.raises(ValueError, match=r"unknown names \['los'\], expected .*\['step', 'loss'"):
        lines([record], show=["los"])


def test_records_may_come_out_of_order(clock):
    shown = lines([{"step": 5}, {"step": 4}, {"step": 7}], seconds=0)
    assert [line.split(",")[0] for line in shown] == ["step 6", "step 6", "step 8"]


def test_tqdm():
    pytest.importorskip("tqdm")
    file = io.StringIO()
    with Progress(4, tqdm=True, file=file) as progress:
        for i in range(4):
            progress({"step": i, "loss": 0.5})
    last = re.split(r"[\r\n]+", file.getvalue().strip())[-1]
    assert "4/4" in last
    assert "loss 0.5" in last


@pytest.mark.parametrize(("error", "end"), [(None, "20/20"), (KeyError, "16/20")])
def test_a_bar_of_every_fifth_step_ends_with_the_loop(error, end):
    pytest.importorskip("tqdm")
    file = io.StringIO()
    with contextlib.suppress(KeyError), Progress(20, tqdm=True, file=file) as progress:
        for i in range(0, 20, 5):
            progress({"step": i})
        if error:
            raise error
    assert end in re.split(r"[\r\n]+", file.getvalue().strip())[-1]


def test_without_tqdm(monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    file = io.StringIO()
    with Progress(1, file=file) as progress:
        progress({"step": 0})
    assert file.getvalue() == "step 1/1 (100%)\n"
    with pytest.raises(ImportError, match="needs tqdm: install it"):
        Progress(1, tqdm=True)


def test_as_the_callback_of_solvers():
    def residual(p):
        return jnp.stack([10 * (p[1] - p[0] ** 2), 1 - p[0]])

    start, file = jnp.asarray([-1.2, 1.0]), io.StringIO()
    with Progress(100, tqdm=False, seconds=0, show=("cost",), file=file) as progress:
        fit = fnopt.least_squares(residual, start, callback=progress)
    shown = file.getvalue().splitlines()
    assert len(shown) == int(fit.steps)
    assert re.fullmatch(r"step 1/100 \(1%\), cost [0-9.e+-]+", shown[0])

    file = io.StringIO()
    with Progress(tqdm=False, seconds=0, file=file) as progress:
        fnopt.minimize(lambda p: jnp.sum(residual(p) ** 2), start, callback=progress)
    assert re.match(
        r"step 2, .* steps/s, cost .*, gradient_norm .*", file.getvalue().splitlines()[1]
    )

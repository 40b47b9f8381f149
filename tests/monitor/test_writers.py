from __future__ import annotations

import json
import sys

import jax.numpy as jnp
import numpy as np
import pytest

from fnopt import monitor
from fnopt.monitor import (
    JsonLines,
    TensorBoard,
    health,
    histogram_edges,
    read_json_lines,
    record_of,
    tee,
)


def test_json_lines_round_trip(tmp_path):
    path = tmp_path / "deep" / "run.jsonl"
    with JsonLines(path) as write:
        write({"step": 0, "loss": np.float32(0.5), "counts": np.asarray([1, 2]), "note": "warm-up"})
        write({"step": 1, "loss": float("inf"), "counts": np.asarray([np.nan, 2.0])})
    assert read_json_lines(path) == [
        {"step": 0, "loss": 0.5, "counts": [1, 2], "note": "warm-up"},
        {"step": 1, "loss": None, "counts": [None, 2.0]},
    ]


def test_json_lines_appends_and_is_on_disk_at_once(tmp_path):
    path = tmp_path / "run.jsonl"
    with JsonLines(path) as write:
        write({"step": 0})
    with JsonLines(path) as write:
        write({"step": 1})
        assert [r["step"] for r in read_json_lines(path)] == [0, 1]


def test_a_line_cut_off_by_a_crash_is_left_out(tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_text('{"step": 0}\n{"step": 1, "lo')
    assert read_json_lines(path) == [{"step": 0}]
    path.write_text('{"step": 0}\nnonsense\n{"step": 1}\n')
    with pytest.raises(ValueError, match="line 2 is not JSON"):
        read_json_lines(path)


def read_events(folder):
    """All values of an event file: length and checksum frame each protocol buffer."""
    pb = pytest.importorskip("tensorboardX.proto.event_pb2")
    (file,) = folder.glob("events.out.tfevents.*")
    data, values = file.read_bytes(), []
    while data:
        size = int.from_bytes(data[:8], "little")
        event = pb.Event.FromString(data[12 : 12 + size])
        values += [(event.step, value) for value in event.summary.value]
        data = data[16 + size :]
    return values


def test_tensorboard_event_file(tmp_path):
    pytest.importorskip("tensorboardX")
    grads = {"w": jnp.asarray([0.0, 1.0, 2.0, 3.0, 1e9])}
    with TensorBoard(tmp_path) as write:
        write(record_of(5, {"loss": 0.25, "g": health(grads, stats=("max", "histogram"))}))
        write({"step": 6, "loss": 0.5, "picture": np.ones((2, 2))})
    values = {(step, v.tag): v for step, v in read_events(tmp_path)}
    assert set(values) == {(5, "loss"), (5, "g/max/w"), (5, "g/histogram/w"), (6, "loss")}
    assert values[5, "loss"].simple_value == 0.25
    assert values[6, "loss"].simple_value == 0.5
    assert values[5, "g/max/w"].simple_value == 1e9
    histogram = values[5, "g/histogram/w"].histo
    counts = dict(zip(histogram.bucket_limit, histogram.bucket, strict=True))
    assert {k: v for k, v in counts.items() if v} == {-40: 1, 2: 3, 22: 1}
    assert histogram.num == 5
    np.testing.assert_allclose(histogram.bucket_limit[:-1], np.log2(histogram_edges()))


def test_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(ImportError, match=r"TensorBoard needs tensorboardX: .*fnopt\[monitor\]"):
        TensorBoard(tmp_path)


def test_tee(tmp_path):
    records = []
    with JsonLines(tmp_path / "run.jsonl") as write:
        tee(write, records.append)({"step": 3})
    assert records == read_json_lines(tmp_path / "run.jsonl") == [{"step": 3}]


def test_json_is_valid_for_strict_parsers(tmp_path):
    with JsonLines(tmp_path / "run.jsonl") as write:
        write({"step": 0, "x": [float("nan"), 1.0], "y": np.float64("-inf")})

    def refuse(text):
        raise AssertionError(text)

    line = (tmp_path / "run.jsonl").read_text()
    assert json.loads(line, parse_constant=refuse) == {"step": 0, "x": [None, 1.0], "y": None}


@pytest.mark.parametrize(
    "of",
    [
        lambda: monitor.emit_health("runs"),
        lambda: monitor.emit("runs", 0, dict),
        lambda: monitor.tee(print, "runs"),
    ],
)
def test_a_sink_that_is_no_function_is_refused(of):
    with pytest.raises(TypeError, match="the sink is 'runs', expected a function of one dict"):
        of()


@pytest.mark.parametrize("record", [{"loss": 1.0}, 0.5])
def test_a_record_without_its_step_is_refused(record):
    with pytest.raises(TypeError, match=r"Progress: the record is .*, expected a dict with its st"):
        monitor.Progress(3, tqdm=False)(record)
    with pytest.raises(TypeError, match="Progress: total is '3', expected an int"):
        monitor.Progress("3")

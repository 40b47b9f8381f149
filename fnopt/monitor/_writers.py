"""Sinks that write JSON lines and TensorBoard event files, and warnings on the host."""

from __future__ import annotations

import json
import math
import sys
import warnings
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from fnopt.errors import import_optional
from fnopt.numerics import exponents

Record = Mapping[str, Any]
"""A flat dict with a `'step'`."""


_WARNED: dict[int, Any] = {}  # objects by id; the references keep their ids unique


def warn(message: str) -> None:
    """Warn without ending the program: if warnings are errors, print the message instead."""
    try:
        warnings.warn(message, stacklevel=3)
    except UserWarning:  # a filter may turn warnings into errors
        print(message, file=sys.stderr)


def warn_once(source: Any, message: str) -> None:
    """Warn once per function or object."""
    owner = getattr(source, "__self__", source)  # a bound method is a new object at every access
    key = id(owner)
    if key in _WARNED:
        return
    try:
        _WARNED[key] = weakref.ref(owner, lambda _: _WARNED.pop(key, None))
    # An object with slots allows no weak reference; it is kept, so that its id stays unique.
    except TypeError:
        _WARNED[key] = owner
    warn(message)


def check_sink(sink: Any, name: str = "") -> Any:
    """Check that a sink is a function, and return it."""
    if not callable(sink):
        raise TypeError(
            f"{name}the sink is {sink!r:.60}, expected a function of one dict, such as print, "
            "JsonLines(path) or TensorBoard(folder)."
        )
    return sink


def step_of(record: Any, name: str) -> int:
    """The number of a record's step."""
    if not isinstance(record, Mapping) or "step" not in record:
        raise TypeError(
            f"{name}: the record is {record!r:.60}, expected a dict with its step, such as "
            "{'step': 3, 'loss': 0.5}."
        )
    return int(record["step"])


class Writer:
    """A sink with an open file: call it with records and close it at the end, or use `with`."""

    def __call__(self, record: Record) -> None:
        """Process one record."""
        raise NotImplementedError

    def close(self) -> None:
        """Flush the buffer, and close the file."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _as_json(value: Any) -> Any:
    """Convert a value to JSON, with null in place of NaN and infinity."""
    if isinstance(value, np.ndarray):
        return [_as_json(x) for x in value.tolist()]
    if isinstance(value, list):
        return [_as_json(x) for x in value]
    if isinstance(value, np.generic):
        return _as_json(value.item())
    return None if isinstance(value, float) and not math.isfinite(value) else value


class JsonLines(Writer):
    """Append records to a file, one JSON object per line.

    Every line is flushed, so no records are lost if the program crashes. Non-finite numbers are
    written as `null`, because JSON has no NaN.

    Args:
        path: The file. Missing folders are created, and an existing file is extended.

    Example:
        >>> import tempfile
        >>> from fnopt.monitor import JsonLines
        >>> path = tempfile.mkdtemp() + "/run.jsonl"
        >>> with JsonLines(path) as write:
        ...     write({"step": 0, "loss": 0.5})
        ...     write({"step": 1, "loss": float("nan")})
        >>> with open(path) as file:
        ...     print(file.read().strip())
        {"step": 0, "loss": 0.5}
        {"step": 1, "loss": null}
    """

    def __init__(self, path: Any) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("a", encoding="utf-8")

    def __call__(self, record: Record) -> None:
        """Write one line."""
        line = json.dumps({k: _as_json(v) for k, v in record.items()}, allow_nan=False)
        self._file.write(line + "\n")
        # The flush keeps all records of a training that is killed.
        self._file.flush()

    def close(self) -> None:
        """Close the file; if the disk is full, warn that records are lost."""
        try:
            self._file.close()
        except OSError as error:  # an exception would end the program after the training
            warn(
                f"JsonLines: {self.path} could not be written to its end: {error}. Its last "
                "records are lost."
            )


def read_json_lines(path: Any) -> list[dict[str, Any]]:
    """Read the records of a `JsonLines` file.

    Args:
        path: The file.

    Returns:
        One dict for each line; a last line truncated by a crash is skipped.

    Raises:
        ValueError: If any other line isn't JSON; the message names the line.

    Example:
        >>> import tempfile
        >>> from fnopt.monitor import JsonLines, read_json_lines
        >>> path = tempfile.mkdtemp() + "/run.jsonl"
        >>> with JsonLines(path) as write:
        ...     write({"step": 0, "loss": 0.5})
        >>> read_json_lines(path)
        [{'step': 0, 'loss': 0.5}]
    """
    lines = Path(path).read_text(encoding="utf-8").split("\n")
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            records += [json.loads(line)] if line else []
        except ValueError as error:
            if number < len(lines):  # only the last one has no line end
                raise ValueError(f"{path}: line {number} is not JSON: {error}") from None
    return records


class TensorBoard(Writer):
    """Write records as a TensorBoard event file; needs the tensorboardX package.

    Numbers become scalars; histograms of `health` become histograms of the logarithm (base 2) of
    the magnitude. Other arrays are skipped.

    Args:
        folder: The run's folder, to pass to `tensorboard --logdir`.

    Raises:
        ImportError: If tensorboardX isn't installed.

    Example:
        >>> import tempfile
        >>> from fnopt.monitor import TensorBoard
        >>> with TensorBoard(tempfile.mkdtemp()) as write:
        ...     write({"step": 0, "loss": 0.5})
    """

    def __init__(self, folder: Any) -> None:
        tensorboard = import_optional("tensorboardX", "TensorBoard", "monitor")
        self._writer = tensorboard.SummaryWriter(str(folder))

    def __call__(self, record: Record) -> None:
        """Add one event for each entry of the record."""
        step = step_of(record, "TensorBoard")
        for name, value in record.items():
            if name == "step":
                continue
            if np.ndim(value) == 0:
                self._writer.add_scalar(name, float(value), step)
            elif np.shape(value) == (exponents.BINS,) and "histogram" in name.split("/"):
                self._histogram(name, np.asarray(value, np.float64), step)

    def _histogram(self, name: str, counts: np.ndarray, step: int) -> None:
        edges = np.log2(exponents.histogram_edges())
        limits = np.append(edges, edges[-1] + 2)
        middles = limits - 1
        self._writer.add_histogram_raw(
            name,
            min=limits[0] - 2,
            max=limits[-1],
            num=counts.sum(),
            sum=counts @ middles,
            sum_squares=counts @ middles**2,
            bucket_limits=limits.tolist(),
            bucket_counts=counts.tolist(),
            global_step=step,
        )

    def close(self) -> None:
        """Flush and close the file."""
        self._writer.close()


def tee(*sinks: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], None]:
    """Combine several sinks into one.

    Args:
        *sinks: Functions or writers.

    Returns:
        A function of a record. You still have to close the writers.

    Example:
        >>> from fnopt.monitor import tee
        >>> records = []
        >>> tee(records.append, print)({"step": 0, "loss": 0.5})
        {'step': 0, 'loss': 0.5}
        >>> records
        [{'step': 0, 'loss': 0.5}]
    """
    for sink in sinks:
        check_sink(sink, "tee: ")

    def every(record: dict[str, Any]) -> None:
        for sink in sinks:
            sink(record)

    return every

"""Sinks that write JSON lines and TensorBoard event files, and warnings from host callbacks."""

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
"""Flat dict with an entry `'step'`."""

# Objects that `warn_once` has warned about, keyed by `id`.
_WARNED: dict[int, Any] = {}


def warn(message: str) -> None:
    """Issue a warning; print the message to stderr if a filter turns warnings into errors."""
    try:
        warnings.warn(message, stacklevel=3)
    except UserWarning:
        print(message, file=sys.stderr)


def warn_once(source: Any, message: str) -> None:
    """Issue a warning only at the first call for a function or object."""
    # A bound method is a new object at every access, so its instance is the key.
    owner = getattr(source, "__self__", source)
    key = id(owner)
    if key in _WARNED:
        return
    try:
        _WARNED[key] = weakref.ref(owner, lambda _: _WARNED.pop(key, None))
    # An object with slots has no weak references. A strong reference keeps its `id` from being
    # reused.
    except TypeError:
        _WARNED[key] = owner
    warn(message)


def check_sink(sink: Any, name: str = "") -> Any:
    """Check that a sink is a function; return the sink."""
    if not callable(sink):
        raise TypeError(
            f"{name}the sink is {sink!r:.60}, expected a function of one dict, such as print, "
            "JsonLines(path) or TensorBoard(folder)."
        )
    return sink


def step_of(record: Any, name: str) -> int:
    """Step number of a record."""
    if not isinstance(record, Mapping) or "step" not in record:
        raise TypeError(
            f"{name}: the record is {record!r:.60}, expected a dict with its step, such as "
            "{'step': 3, 'loss': 0.5}."
        )
    return int(record["step"])


class Writer:
    """Base class of sinks with an open file; use `with`, or call `close` at the end."""

    def __call__(self, record: Record) -> None:
        """Write a record."""
        raise NotImplementedError

    def close(self) -> None:
        """Flush the buffer and close the file."""

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
    """Convert a value for `json.dumps`, with `None` in place of NaN and infinity."""
    if isinstance(value, np.ndarray):
        return [_as_json(x) for x in value.tolist()]
    if isinstance(value, list):
        return [_as_json(x) for x in value]
    if isinstance(value, np.generic):
        return _as_json(value.item())
    return None if isinstance(value, float) and not math.isfinite(value) else value


class JsonLines(Writer):
    """Append records to a file, one JSON object per line.

    Every line is flushed, so that no record is lost if the program crashes. Non-finite numbers are
    written as `null`, because JSON has no NaN.

    Args:
        path: The file. Missing folders are created. Records are appended to an existing file.

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
        # Without the flush, the buffered records of a killed process would be lost.
        self._file.flush()

    def close(self) -> None:
        """Close the file; warn if the last records can't be written."""
        try:
            self._file.close()
        # An exception on a full disk would end the program, after a possibly long training.
        except OSError as error:
            warn(f"JsonLines: the last records of {self.path} are lost: {error}.")


def read_json_lines(path: Any) -> list[dict[str, Any]]:
    """Read the records of a `JsonLines` file.

    Args:
        path: The file.

    Returns:
        One dict per line. A last line that a crash has truncated is skipped.

    Raises:
        ValueError: If another line isn't JSON; the message contains the line number.

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
            # Only the last line may be incomplete, after the end of a process during a write.
            if number < len(lines):
                raise ValueError(
                    f"{path}: line {number} is not JSON, expected a record: {error}"
                ) from None
    return records


class TensorBoard(Writer):
    """Write records to a TensorBoard event file; needs the package tensorboardX.

    Numbers are written as scalars. Histograms of `health` are written as histograms of the base-2
    logarithm of the magnitude. Other arrays are skipped.

    Args:
        folder: The folder of the event file, for `tensorboard --logdir`.

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
        A function of a record that calls all sinks. The caller must close writers.

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

    def call_sinks(record: dict[str, Any]) -> None:
        for sink in sinks:
            sink(record)

    return call_sinks

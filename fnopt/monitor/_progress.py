"""Progress line for training, with steps, throughput and metrics."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from typing import Any, TextIO

import numpy as np

from fnopt.errors import check_count, import_optional, names_text
from fnopt.monitor._writers import Record, Writer, step_of


class Progress(Writer):
    """Progress line with throughput and metrics: by tqdm if tqdm is installed, else plain text.

    Call the object with one record per step, or pass it to a solver: `minimize(...,
    callback=Progress(200))`.

    Args:
        total: The total number of steps; None if unknown.
        examples: The number of examples (tokens, ...) per step. If set, the number of examples per
            second is shown too.
        show: The names of the metrics to show; by default, the first four scalars.
        seconds: The minimum time between two lines of plain text; tqdm ignores this argument.
        tqdm: Whether to use tqdm; None uses tqdm if it can be imported.
        file: The file to write to; standard error by default.

    Raises:
        ImportError: If `tqdm` is True and the package isn't installed.
        ValueError: If a record has no entry with a name in `show`.

    Example:
        >>> import sys
        >>> from fnopt.monitor import Progress
        >>> with Progress(3, tqdm=False, seconds=0, file=sys.stdout) as progress:
        ...     for i in range(3):
        ...         progress({"step": i, "loss": 0.5 / (i + 1)})
        step 1/3 (33%), loss 0.5
        step 2/3 (67%), ... steps/s, loss 0.25
        step 3/3 (100%), ... steps/s, loss 0.167
    """

    def __init__(
        self,
        total: int | None = None,
        *,
        examples: int | None = None,
        show: Iterable[str] | None = None,
        seconds: float = 1.0,
        tqdm: bool | None = None,
        file: TextIO | None = None,
    ) -> None:
        if total is not None:
            check_count(total, "total", "Progress", least=0)
        self.total, self.examples, self.seconds = total, examples, seconds
        self.show = None if show is None else tuple(show)
        self._file = file
        self._first: tuple[float, int] | None = None
        self._done, self._printed, self._last = 0, -np.inf, ""
        self._stride = 1  # the largest number of steps between two records
        self._bar = _bar(total, tqdm, file)

    def __call__(self, record: Any) -> None:
        """Show a record, or the `StepInfo` of a solver's callback; records may skip steps."""
        if hasattr(record, "_asdict"):
            numbers = {k: v for k, v in record._asdict().items() if k not in ("step", "params")}
            record = {"step": record.step - 1, **numbers}
        # A monotonic clock, because the system's clock may be set back.
        now, done = time.monotonic(), max(self._done, step_of(record, "Progress") + 1)
        if self._first is None:
            self._first = (now, done)
        rate, metrics = self._rate(now, done), self._format(record)
        if rate is not None and self.examples:
            metrics.insert(0, f"{rate * self.examples:.3g} examples/s")
        if self._bar is None:
            self._line(now, done, rate, metrics)
        else:
            self._bar.set_postfix_str(", ".join(metrics), refresh=False)
            self._bar.update(done - self._done)
        self._stride = max(self._stride, done - self._done)
        self._done = done

    def _rate(self, now: float, done: int) -> float | None:
        """Steps per second since the first record, so that compilation is excluded."""
        assert self._first is not None
        start, first = self._first
        return (done - first) / (now - start) if done > first and now > start else None

    def _format(self, record: Record) -> list[str]:
        names = self.show
        if names is None:
            scalars = [k for k, v in record.items() if k != "step" and np.ndim(v) == 0]
            names = scalars[:4]
        missing = [n for n in names if n not in record]
        if missing:
            raise ValueError(
                f"Progress: show contains the unknown names {names_text(missing)}, expected some "
                f"of the record's entries {names_text([*record])}."
            )
        return [f"{n} {record[n]:.3g}" for n in names]

    def _line(self, now: float, done: int, rate: float | None, metrics: list[str]) -> None:
        total = f"/{self.total} ({done / self.total:.0%})" if self.total else ""
        speed = [] if rate is None else [f"{rate:.3g} steps/s"]
        self._last = ", ".join([f"step {done}{total}", *speed, *metrics])
        if now - self._printed >= self.seconds:
            self._print()
            self._printed = now

    def _print(self) -> None:
        print(self._last, file=self._file or sys.stderr, flush=True)
        self._last = ""

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        # After an exception, the steps since the last record may not have run.
        self._stride = self._stride if error is None else 0
        super().__exit__(kind, error, trace)

    def close(self) -> None:
        """Show the last record if it hasn't been shown, and close the progress bar."""
        if self._bar is not None:
            # If every 100th step has a record, up to 99 steps have no record at the end.
            remaining = (self.total or 0) - self._done
            self._bar.update(remaining if 0 < remaining < self._stride else 0)
            self._bar.close()
        elif self._last:
            self._print()


def _bar(total: int | None, use_tqdm: bool | None, file: TextIO | None) -> Any:
    if use_tqdm is False:
        return None
    try:
        tqdm = import_optional("tqdm", "Progress(tqdm=True)", "monitor")
    except ImportError:
        if use_tqdm:
            raise
        return None
    return tqdm.tqdm(total=total, file=file, unit="step")

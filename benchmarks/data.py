"""Real data sets that installed packages contain; nothing is downloaded."""

from __future__ import annotations

import csv
import importlib.util
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.metric import Skipped
from benchmarks.timing import peer


class Regression(NamedTuple):
    """Inputs `[rows, features]` and targets `[rows]` for training and test, in float64.

    Training targets have mean 0 and variance 1; `unit` is the standard deviation of the data.
    """

    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    unit: float


class Labelled(NamedTuple):
    """Inputs `[rows, features]` and labels `[rows]` for training and test."""

    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray


def temperatures(rows: int | None = None) -> Regression:
    """Read 8,759 hourly temperatures of Seattle in degrees Fahrenheit from vega_datasets.

    The temperatures are a smooth function of day and hour, rounded to a tenth of a degree, so the
    noise is about 0.05 degrees. The inputs are cosine and sine of day and hour. A fifth of the rows
    is the test set.
    """
    spec = importlib.util.find_spec("vega_datasets")
    if spec is None or not spec.submodule_search_locations:
        raise Skipped("vega_datasets is not installed")
    # Read the file directly, because the package reads it with pandas.
    path = Path(spec.submodule_search_locations[0]) / "_data" / "seattle-temps.csv"
    with path.open() as file:
        lines = list(csv.DictReader(file))[:rows]
    stamps = np.array([line["date"].replace("/", "-") for line in lines], "datetime64[m]")
    minutes = (stamps - np.datetime64("2010-01-01", "m")).astype(np.float64)
    day, year = 2 * np.pi * minutes / 1440, 2 * np.pi * minutes / (1440 * 365)
    x = np.stack([np.cos(year), np.sin(year), np.cos(day), np.sin(day)], axis=1)
    return _split(x, np.array([float(line["temp"]) for line in lines]))


def diabetes() -> Regression:
    """Load scikit-learn's diabetes data: progression from ten measurements of 442 patients."""
    x, y = peer("sklearn.datasets").load_diabetes(return_X_y=True)
    return _split(x / x.std(axis=0), y)


def digits() -> Labelled:
    """Load scikit-learn's 1,797 handwritten digits of 8 x 8 pixels."""
    x, y = peer("sklearn.datasets").load_digits(return_X_y=True)
    train, test = _rows(len(x))
    return Labelled(x[train] / 16, y[train], x[test] / 16, y[test])


def _split(x: np.ndarray, y: np.ndarray) -> Regression:
    train, test = _rows(len(x))
    unit = float(y[train].std())
    y = (y - y[train].mean()) / unit
    return Regression(x[train], y[train], x[test], y[test], unit)


def _rows(count: int) -> tuple[np.ndarray, np.ndarray]:
    order = np.random.default_rng(0).permutation(count)
    return order[count // 5 :], order[: count // 5]

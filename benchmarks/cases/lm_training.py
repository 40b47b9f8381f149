"""Compare the training time by Levenberg-Marquardt with Adam and second-order methods.

All methods train the same network from the same initial parameters. One data set suits the method
(hourly temperatures, smooth and nearly without noise), and two data sets don't (digits, a noisy
table). Evaluations of the loss between steps aren't timed, and compile times are reported
separately. Learning rate and batch size of Adam are the best of a sweep with the full time for each
combination, from other initial parameters.
"""

from __future__ import annotations

import functools
import itertools
import statistics
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

import fnopt
from benchmarks import data, trainers
from benchmarks.metric import Metric, Skipped
from benchmarks.timing import Settings
from benchmarks.trainers import Compiled, Path, Task, compiled_once, walk

OURS = "LM, batches"
SHOWN = float("inf")  # tolerance of metrics that can't be regressions
Method = Callable[[Task], Path]


class Size(NamedTuple):
    """Size of the problems and of the runs."""

    widths: tuple[int, ...] = (4, 16, 16, 1)
    rows: int | None = None
    batch: int = 1024
    seconds: float = 4.0
    seeds: tuple[int, ...] = (0, 1, 2)
    rates: tuple[float, ...] = (1e-3, 3e-3, 1e-2)
    batches: tuple[int, ...] = (64, 512)
    targets: tuple[float, ...] = (0.5, 0.2, 0.12)  # degrees Fahrenheit
    images: int | None = None
    only: tuple[str, ...] | None = None  # names of the methods to run; None: all


SMOKE = Size(
    (4, 4, 1),
    rows=600,
    batch=64,
    seconds=0.1,
    seeds=(0,),
    rates=(1e-2,),
    batches=(64,),
    targets=(9.0,),
    images=200,
    only=(OURS, "Adam, constant rate", "optax L-BFGS", "torch L-BFGS", "torch LM, batches"),
)


class Curve(NamedTuple):
    """Losses of one run: root mean squares in the units of the targets, or error rates."""

    seconds: list[float]
    train: list[float]
    test: list[float]

    def reached(self, target: float) -> float:
        """Return the time at which the held-out loss reached the target; infinite if never."""
        pairs = zip(self.seconds, self.test, strict=True)
        return next((s for s, loss in pairs if loss <= target), float("inf"))


def curve(path: Path, score: Callable[[Any], tuple[float, float]]) -> Curve:
    """Run a method, and compute training and held-out loss at every recorded time."""
    points = [(seconds, *score(params)) for seconds, params in path]
    return Curve(*map(list, zip(*points, strict=True)))


def root_mean_squares(d: data.Regression) -> Callable[[Any], tuple[float, float]]:
    """Return a function that computes both losses by NumPy in float64, for params of any dtype."""

    def loss(params: Any, x: np.ndarray, y: np.ndarray) -> float:
        return d.unit * float(np.sqrt(np.mean((trainers.outputs(params, x)[:, 0] - y) ** 2)))

    return lambda params: (loss(params, d.x, d.y), loss(params, d.x_test, d.y_test))


# --- the methods -----------------------------------------------------------------------------


def lm(batch: int | None, chunk: int, **options: Any) -> Method:
    """Levenberg-Marquardt of fnopt, `chunk` steps per call."""
    return compiled_once(lambda task: trainers.least_squares_loop(task, batch, chunk, **options))


def adam(rate: float, batch: int, cosine: bool) -> Method:
    """Adam; with `cosine`, the learning rate decays to zero at the end of the time."""

    def make(task: Task) -> Compiled:
        chunk = min(50, len(task.data.y) // batch)
        loop = trainers.gradient_loop(task, batch, chunk, fnopt.adam(rate))
        if not cosine:
            return loop
        steps = max(1, int(task.seconds / loop.seconds_per_step()))
        tx = fnopt.adam(fnopt.cosine_decay_schedule(rate, steps))
        return trainers.gradient_loop(task, batch, chunk, tx)

    return compiled_once(make)


def tuned(task: Task, size: Size, cosine: bool) -> tuple[float, int]:
    """Return the learning rate and batch size with the lowest final held-out loss."""
    score = root_mean_squares(task.data)
    grid = list(itertools.product(size.rates, size.batches))
    ends = {pair: curve(adam(*pair, cosine)(task), score).test[-1] for pair in grid}
    best = min(grid, key=lambda pair: ends[pair])
    kind = "cosine" if cosine else "constant"
    print(f"  Adam, {kind}: the best of {len(grid)} is rate {best[0]}, batches of {best[1]}")
    return best


def methods(sweep: Task, size: Size) -> Iterator[tuple[str, Callable[[], Method], bool]]:
    """Yield for each method its name, a function that creates it, and whether it uses float64."""
    small, batch = size.batch // 4, size.batch
    short = fnopt.chain(fnopt.levenberg_marquardt(), fnopt.scale(0.3))
    yield OURS, lambda: lm(batch, 2), False
    yield "Adam, constant rate", lambda: adam(*tuned(sweep, size, False), cosine=False), False
    yield "Adam, cosine", lambda: adam(*tuned(sweep, size, True), cosine=True), False
    yield "LM, batches / 4", lambda: lm(small, 4), False
    yield "LM, batches / 4, steps x 0.3", lambda: lm(small, 4, tx=short), False
    yield "LM, steps x 0.3", lambda: lm(batch, 2, tx=short), False
    yield "LM, all rows", lambda: lm(None, 1), False
    yield "LM, all rows, f64", lambda: lm(None, 1), True
    yield "LM, forward Jacobian", lambda: lm(batch, 2, jac=None), False
    lbfgs = functools.partial(trainers.optax_lbfgs_loop, chunk=5)
    yield "optax L-BFGS", lambda: compiled_once(lbfgs), False
    yield "optax L-BFGS, f64", lambda: compiled_once(lbfgs), True
    for dtype in ("float32", "float64"):
        wide = ", f64" if dtype == "float64" else ""
        torch_lbfgs = functools.partial(trainers.torch_lbfgs_path, dtype=dtype)
        yield f"torch L-BFGS{wide}", lambda method=torch_lbfgs: method, False
    torch_lm = functools.partial(trainers.torch_lm_path, dtype="float32")
    yield "torch LM, batches", lambda: functools.partial(torch_lm, batch=batch, chunk=2), False
    yield "torch LM, all rows", lambda: functools.partial(torch_lm, batch=None, chunk=1), False
    yield "optimistix LM", trainers.optimistix_lm, False
    yield "optimistix LM, f64", trainers.optimistix_lm, True


# --- the metrics -----------------------------------------------------------------------------


def run(settings: Settings) -> Iterator[Metric]:
    """Measure times to losses and costs of steps, and two data sets that don't suit the method."""
    size = SMOKE if settings.smoke else Size()
    yield from _time_to_loss(size)
    yield from _step_cost(size)
    yield from _digits(size)
    yield from _noisy(size)


def _time_to_loss(size: Size) -> Iterator[Metric]:
    d = data.temperatures(size.rows)
    tasks = [Task(d, trainers.start(size.widths, s), size.seconds, s) for s in size.seeds]
    sweep = Task(d, trainers.start(size.widths, 99), size.seconds, 99)
    curves: dict[str, list[Curve]] = {}
    for name, make, wide in methods(sweep, size):
        if size.only and name not in size.only:
            continue
        try:
            with jax.enable_x64(wide):
                method = make()
                curves[name] = [curve(method(task), root_mean_squares(d)) for task in tasks]
            print(f"  {name}: {_summary(curves[name], size)}", flush=True)
        except Skipped as reason:
            print(f"  without {name}: {reason}")
    for name in [name for name in curves if name != OURS]:
        for target in size.targets:
            yield _time_ratio(f"held-out {target} °F", name, curves, target, size.seconds)
        yield _end_ratio(name, curves)


def _summary(curves: list[Curve], size: Size) -> str:
    """Return medians over initial parameters: seconds to the targets, and final losses."""
    times = [statistics.median(c.reached(target) for c in curves) for target in size.targets]
    texts = [f"{t:.2f} s" if np.isfinite(t) else "never" for t in times]
    reached = ", ".join(f"{t} to {g} °F" for t, g in zip(texts, size.targets, strict=True))
    train, test = (statistics.median(getattr(c, k)[-1] for c in curves) for k in ("train", "test"))
    return f"{reached}; at the end {train:.4f} °F, held out {test:.4f} °F"


def _time_ratio(
    label: str, peer: str, curves: dict[str, list[Curve]], target: float, budget: float
) -> Metric:
    """Return fnopt's time relative to the peer's; runs that miss the target count as `budget`."""
    times = {name: [c.reached(target) for c in curves[name]] for name in (OURS, peer)}
    ours, theirs = ([min(t, budget) for t in times[name]] for name in (OURS, peer))
    detail = {
        "ours_s": statistics.median(ours),
        "peer_s": statistics.median(theirs),
        "ours_there": float(np.mean(np.isfinite(times[OURS]))),
        "peer_there": float(np.mean(np.isfinite(times[peer]))),
    }
    value = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
    return Metric(label, value, f"x {peer}", tolerance=SHOWN, detail=detail)


def _end_ratio(peer: str, curves: dict[str, list[Curve]]) -> Metric:
    """Return fnopt's final held-out loss divided by the peer's."""
    ours, theirs = ([c.test[-1] for c in curves[name]] for name in (OURS, peer))
    detail = {
        "ours_F": statistics.median(ours),
        "peer_F": statistics.median(theirs),
        "ours_train_F": statistics.median(c.train[-1] for c in curves[OURS]),
        "peer_train_F": statistics.median(c.train[-1] for c in curves[peer]),
    }
    value = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
    return Metric("held-out loss at the end", value, f"x {peer}", tolerance=SHOWN, detail=detail)


def _step_cost(size: Size) -> Iterator[Metric]:
    """Compare step and compilation with a step of Adam on a batch of the same size."""
    task = Task(data.temperatures(size.rows), trainers.start(size.widths, 0), size.seconds, 0)
    jacobians = {"per-example Jacobian": trainers.regression_jacobian, "forward Jacobian": None}
    for batch in (size.batch // 4, size.batch)[size.only is not None :]:
        first = trainers.gradient_loop(task, batch, 2, fnopt.adam(1e-2))
        for label, jac in list(jacobians.items())[: None if size.only is None else 1]:
            loop = trainers.least_squares_loop(task, batch, 2, jac=jac)
            times = [(loop.seconds_per_step(), first.seconds_per_step()) for _ in range(3)]
            ours, theirs = (statistics.median(t) for t in zip(*times, strict=True))
            detail = {"ours_ms": 1e3 * ours, "adam_ms": 1e3 * theirs}
            name = f"a step, batch {batch}, {label}"
            yield Metric(name, ours / theirs, "x Adam", tolerance=1.0, detail=detail)
            ratio = loop.compile_seconds / first.compile_seconds
            detail = {"ours_s": loop.compile_seconds, "adam_s": first.compile_seconds}
            yield Metric(f"{name}: compile", ratio, "x Adam", tolerance=SHOWN, detail=detail)


def _digits(size: Size) -> Iterator[Metric]:
    """Compare LM on squared errors of probabilities with Adam on the cross-entropy: ten classes."""
    d = data.digits()
    d = d._replace(x=d.x[: size.images], y=d.y[: size.images])
    widths, batch = ((64, 16, 10), 256) if size.images is None else ((64, 4, 10), 32)

    def error(params: Any, x: np.ndarray, y: np.ndarray) -> float:
        return float(np.mean(trainers.outputs(params, x).argmax(axis=1) != y))

    def score(params: Any) -> tuple[float, float]:
        return error(params, d.x, d.y), error(params, d.x_test, d.y_test)

    curves: dict[str, list[Curve]] = {"LM": [], "Adam": []}
    for seed in size.seeds:
        task = Task(d, trainers.start(widths, seed), size.seconds, seed)
        lm = trainers.least_squares_loop(
            task, batch, 1, residuals=trainers.one_hot_errors, jac=trainers.one_hot_jacobian
        )
        first = trainers.gradient_loop(task, batch, 5, fnopt.adam(1e-2), trainers.cross_entropy)
        for name, loop in {"LM": lm, "Adam": first}.items():
            curves[name].append(curve(walk(loop, task.seconds), score))
    for target in (0.1, 0.05):
        times = {k: [min(c.reached(target), size.seconds) for c in v] for k, v in curves.items()}
        ratio = statistics.median(a / b for a, b in zip(times["LM"], times["Adam"], strict=True))
        detail = {f"{k}_s": statistics.median(v) for k, v in times.items()}
        yield Metric(
            f"digits: {target:.0%} errors", ratio, "x Adam", tolerance=SHOWN, detail=detail
        )
    ends = {f"{k}_errors": statistics.median(c.test[-1] for c in v) for k, v in curves.items()}
    value = (1e-3 + ends["LM_errors"]) / (1e-3 + ends["Adam_errors"])
    yield Metric("digits: errors at the end", value, "x Adam", tolerance=SHOWN, detail=ends)


def _noisy(size: Size) -> Iterator[Metric]:
    """Measure overfitting: the held-out loss after all steps (442 patients, ten features)."""
    d = data.diabetes()
    seconds = min(size.seconds, 3.0)
    design = [np.c_[x, np.ones(len(x))] for x in (d.x, d.x_test)]
    best = np.linalg.lstsq(design[0], d.y, rcond=None)[0]
    linear = d.unit * float(np.sqrt(np.mean((design[1] @ best - d.y_test) ** 2)))
    curves = []
    for seed in size.seeds:
        task = Task(d, trainers.start((10, 8, 1), seed), seconds, seed)
        loop = trainers.least_squares_loop(task, None, 1, jac=trainers.regression_jacobian)
        curves.append(curve(walk(loop, seconds), root_mean_squares(d)))
    detail = {
        "linear": linear,
        "lm_best": statistics.median(min(c.test) for c in curves),
        "lm_end": statistics.median(c.test[-1] for c in curves),
        "lm_train_end": statistics.median(c.train[-1] for c in curves),
    }
    value = detail["lm_end"] / linear
    yield Metric(
        "diabetes: held-out loss at the end",
        value,
        "x a straight line",
        tolerance=SHOWN,
        detail=detail,
    )

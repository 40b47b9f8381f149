"""Train a small network by different methods, and yield CPU seconds and params repeatedly.

Times are CPU seconds, which don't depend on other load of the machine. On one core (on Linux:
`taskset -c 0`) the CPU seconds equal the elapsed time on an idle machine.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import fnopt
from benchmarks.data import Labelled, Regression
from benchmarks.timing import peer

Params = list[dict[str, Any]]
Path = Iterator[tuple[float, Params]]


class Task(NamedTuple):
    """Data, initial parameters, time and seed, which are the same for all methods."""

    data: Regression | Labelled
    start: Params  # float64
    seconds: float  # training time without compilation
    seed: int


def start(widths: tuple[int, ...], seed: int) -> Params:
    """Draw random weights of a perceptron, with zero biases."""
    rng = np.random.default_rng(seed)
    return [
        {"w": rng.standard_normal((n, m)) / np.sqrt(n), "b": np.zeros(m)}
        for n, m in itertools.pairwise(widths)
    ]


def network(params: Any, x: Any) -> Any:
    """Return the outputs of a network with tanh between the layers."""
    for k, layer in enumerate(params):
        x = (jnp.tanh(x) if k else x) @ layer["w"] + layer["b"]
    return x


def regression(params: Any, x: Any, y: Any) -> Any:
    """Return the residuals of a network with one output."""
    return network(params, x)[:, 0] - y


def regression_jacobian(params: Any, x: Any, y: Any) -> Any:
    """Return the Jacobian of `regression`, by one backward pass over the batch."""
    del y
    return fnopt.per_example_jacobian(lambda p, row: network(p, row)[0])(params, x)


def mean_square(params: Any, x: Any, y: Any) -> Any:
    """Return the mean squared residual."""
    return jnp.mean(jnp.square(regression(params, x, y)))


def outputs(params: Any, x: np.ndarray) -> np.ndarray:
    """Compute the outputs of a network by NumPy in float64."""
    for k, layer in enumerate(params):
        w, b = (np.asarray(layer[name], np.float64) for name in ("w", "b"))
        x = (np.tanh(x) if k else x) @ w + b
    return x


def one_hot_errors(params: Any, x: Any, labels: Any) -> Any:
    """Return the residuals of a classifier: probabilities minus one-hot labels."""
    return jax.nn.softmax(network(params, x)) - jax.nn.one_hot(labels, 10, dtype=x.dtype)


def one_hot_jacobian(params: Any, x: Any, labels: Any) -> Any:
    """Return the Jacobian of `one_hot_errors`, by one backward pass for each of ten classes."""
    del labels
    return fnopt.per_example_jacobian(lambda p, row: jax.nn.softmax(network(p, row)))(params, x)


def cross_entropy(params: Any, x: Any, labels: Any) -> Any:
    """Return the mean cross-entropy of a classifier."""
    log_p = jax.nn.log_softmax(network(params, x))
    return -jnp.mean(jnp.take_along_axis(log_p, labels[:, None], axis=1))


def shuffled(count: int, batch: int, seed: int) -> Iterator[np.ndarray]:
    """Yield batches of row indices forever, with a new permutation in each epoch."""
    rng = np.random.default_rng(seed)
    while True:
        order = rng.permutation(count)[: count // batch * batch].astype(np.int32)
        yield from order.reshape(-1, batch)


def walk(advance: Callable[[], Params], seconds: float) -> Path:
    """Call `advance` until the time is over; the time between calls isn't counted."""
    total = 0.0
    while total < seconds:
        begin = time.process_time()
        params = advance()
        total += time.process_time() - begin
        yield total, params


class Compiled:
    """A compiled training loop; each call scans over `chunk` batches of rows."""

    def __init__(self, task: Task, step: Any, init: Any, batch: int | None, chunk: int) -> None:
        self.init, self.batch, self.chunk = init, batch, chunk
        self.begin(task)

        @jax.jit
        def run(carry: Any, x: Any, y: Any, rows: Any) -> Any:
            def one(carry: Any, i: Any) -> tuple[Any, None]:
                return step(carry, (x, y) if batch is None else (x[i], y[i])), None

            return jax.lax.scan(one, carry, rows, length=chunk)[0]

        clock = time.process_time()
        self.run = run.lower(self.carry, *self.data, self._rows()).compile()
        self.compile_seconds = time.process_time() - clock

    def begin(self, task: Task) -> None:
        """Reset to the initial parameters of a task."""
        x, y, start = as_jax(task, jnp.result_type(float))
        self.carry, self.data = (start, self.init(start)), (x, y)
        self.batches = shuffled(len(x), self.batch, task.seed) if self.batch else None

    def _rows(self) -> Any:
        if self.batches is None:
            return None
        return jnp.asarray(np.stack([next(self.batches) for _ in range(self.chunk)]))

    def __call__(self) -> Params:
        self.carry = jax.block_until_ready(self.run(self.carry, *self.data, self._rows()))
        return self.carry[0]

    def seconds_per_step(self) -> float:
        """Return the mean time per step over 0.1 seconds, without changing the carry."""
        rows, clock = self._rows(), time.process_time()
        for calls in itertools.count(1):
            jax.block_until_ready(self.run(self.carry, *self.data, rows))
            seconds = time.process_time() - clock
            if seconds > 0.1:
                return seconds / (calls * self.chunk)
        raise AssertionError


def compiled_once(make: Callable[[Task], Compiled]) -> Callable[[Task], Path]:
    """Return a method that compiles its loop for the first task and reuses it for other tasks."""
    loops: list[Compiled] = []

    def path(task: Task) -> Path:
        if not loops:
            loops.append(make(task))
        loops[0].begin(task)
        return walk(loops[0], task.seconds)

    return path


def as_jax(task: Task, dtype: Any) -> tuple[Any, Any, Any]:
    """Convert inputs, targets and initial parameters to JAX arrays."""
    d = task.data
    kind = jnp.int32 if d.y.dtype.kind == "i" else dtype  # labels are integers
    start = jax.tree.map(lambda a: jnp.asarray(a, dtype), task.start)
    return jnp.asarray(d.x, dtype), jnp.asarray(d.y, kind), start


def least_squares_loop(
    task: Task,
    batch: int | None,
    chunk: int,
    tx: Any = None,
    residuals: Any = regression,
    jac: Any = regression_jacobian,
) -> Compiled:
    """Return a training loop of fnopt's Levenberg-Marquardt optimizer."""
    tx = fnopt.levenberg_marquardt() if tx is None else tx

    def step(carry: Any, data: Any) -> Any:
        params, state = carry
        extra = {} if jac is None else {"jac": lambda p: jac(p, *data)}
        updates, state = tx.update(
            None, state, params, residual_fn=lambda p: residuals(p, *data), **extra
        )
        return fnopt.apply_updates(params, updates), state

    return Compiled(task, step, tx.init, batch, chunk)


def gradient_loop(
    task: Task, batch: int | None, chunk: int, tx: Any, loss: Any = mean_square
) -> Compiled:
    """Return a training loop of a first-order optimizer of fnopt."""

    def step(carry: Any, data: Any) -> Any:
        params, state = carry
        gradients = jax.grad(loss)(params, *data)
        updates, state = tx.update(gradients, state, params)
        return fnopt.apply_updates(params, updates), state

    return Compiled(task, step, tx.init, batch, chunk)


def optax_lbfgs_loop(task: Task, chunk: int) -> Compiled:
    """Return a training loop of optax's L-BFGS with zoom line search, on all rows."""
    optax = peer("optax")
    tx = optax.lbfgs()

    def step(carry: Any, data: Any) -> Any:
        params, state = carry

        def loss(p: Any) -> Any:
            return mean_square(p, *data)

        value, grad = optax.value_and_grad_from_state(loss)(params, state=state)
        updates, state = tx.update(grad, state, params, value=value, grad=grad, value_fn=loss)
        return optax.apply_updates(params, updates), state

    return Compiled(task, step, tx.init, None, chunk)


def optimistix_lm() -> Callable[[Task], Path]:
    """Levenberg-Marquardt of optimistix, on all rows.

    A solve doesn't return intermediate params, so every point of the path is a separate run from
    the initial parameters, with twice as many steps as the previous run.
    """
    optimistix = peer("optimistix")
    solver = optimistix.LevenbergMarquardt(rtol=1e-30, atol=1e-30)
    programs: dict[int, Any] = {}

    def solve(start: Any, data: Any, steps: int) -> Any:
        return optimistix.least_squares(
            lambda p, data: regression(p, *data), solver, start, data, max_steps=steps, throw=False
        ).value

    def path(task: Task) -> Path:
        x, y, begin = as_jax(task, jnp.result_type(float))
        seconds = 0.0
        for k in range(1, 11):
            if seconds > task.seconds / 2:
                return
            if k not in programs:
                run = jax.jit(functools.partial(solve, steps=2**k))
                programs[k] = run.lower(begin, (x, y)).compile()
            clock = time.process_time()
            params = jax.block_until_ready(programs[k](begin, (x, y)))
            seconds = time.process_time() - clock
            yield seconds, params

    return path


class TorchNetwork:
    """The same network with the same initial parameters in PyTorch."""

    def __init__(self, task: Task, dtype: str) -> None:
        torch = peer("torch")
        self.torch, kind = torch, getattr(torch, dtype)
        layers = []
        for k, layer in enumerate(task.start):
            linear = torch.nn.Linear(*layer["w"].shape, dtype=kind)
            linear.weight.data = torch.tensor(layer["w"].T.copy(), dtype=kind)
            linear.bias.data = torch.tensor(layer["b"], dtype=kind)
            layers += [torch.nn.Tanh(), linear] if k else [linear]
        self.model = torch.nn.Sequential(*layers)
        self.x = torch.tensor(task.data.x, dtype=kind)
        self.y = torch.tensor(task.data.y[:, None], dtype=kind)

    def params(self) -> Params:
        """Return the parameters in the format of `network`."""
        linears = [m for m in self.model if hasattr(m, "weight")]
        return [
            {"w": m.weight.detach().numpy().T.copy(), "b": m.bias.detach().numpy().copy()}
            for m in linears
        ]


def torch_lbfgs_path(task: Task, dtype: str) -> Path:
    """L-BFGS of PyTorch with a strong Wolfe line search on all rows, ten iterations per point."""
    net = TorchNetwork(task, dtype)
    tx = net.torch.optim.LBFGS(
        net.model.parameters(),
        max_iter=10,
        history_size=10,
        tolerance_grad=0,
        tolerance_change=0,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Any:
        tx.zero_grad()
        loss = ((net.model(net.x) - net.y) ** 2).mean()
        loss.backward()
        return loss

    def advance() -> Params:
        tx.step(closure)
        return net.params()

    return walk(advance, task.seconds)


def torch_lm_path(task: Task, dtype: str, batch: int | None, chunk: int) -> Path:
    """Levenberg-Marquardt of torch_levenberg_marquardt with defaults, except its fastest solver."""
    package = peer("torch_levenberg_marquardt")
    net = TorchNetwork(task, dtype)
    trainer = package.training.LevenbergMarquardtModule(net.model, solve_method="cholesky")
    rows = shuffled(len(net.y), batch, task.seed) if batch else itertools.repeat(slice(None))

    def advance() -> Params:
        for _ in range(chunk):
            i = next(rows)
            trainer.training_step(net.x[i], net.y[i])
        return net.params()

    return walk(advance, task.seconds)

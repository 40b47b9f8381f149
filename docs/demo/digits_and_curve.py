"""The demo: real digits, a real curve, a sweep of learning rates in one program, and a picture.

Run it with `make demo`. It writes `demo_output/demo.png`.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # the problems are small: a CPU is quickest

import jax
import jax.numpy as jnp
import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from sklearn.datasets import load_digits

import fnopt

OUTPUT = Path("demo_output")
BATCH, EPOCHS = 64, 40


class Digits(NamedTuple):
    """8x8 images of handwritten digits as vectors of 64 numbers from 0 to 1, and their labels."""

    x: jax.Array
    y: jax.Array


# --- the model: two layers, in plain JAX ----------------------------------------------------


def init_network(key: jax.Array, hidden: int = 64) -> dict[str, Any]:
    """Random weights for 64 -> hidden -> 10."""
    k1, k2 = jax.random.split(key)
    return {
        "hidden": {"kernel": jax.random.normal(k1, (64, hidden)) / 8, "bias": jnp.zeros(hidden)},
        "out": {"kernel": jax.random.normal(k2, (hidden, 10)) / 8, "bias": jnp.zeros(10)},
    }


def network(params: Any, x: jax.Array) -> jax.Array:
    """Logits of one image, or of a batch."""
    hidden = jax.nn.relu(x @ params["hidden"]["kernel"] + params["hidden"]["bias"])
    return hidden @ params["out"]["kernel"] + params["out"]["bias"]


def example_loss(params: Any, example: Digits) -> jax.Array:
    """Cross-entropy of one image."""
    logits = network(params, example.x)
    return jax.nn.logsumexp(logits) - logits[example.y]


def mean_loss(params: Any, batch: Digits) -> jax.Array:
    """Cross-entropy, averaged over a batch."""
    return jnp.mean(jax.vmap(example_loss, (None, 0))(params, batch))


def accuracy(params: Any, data: Digits) -> jax.Array:
    """The part of the images that is recognized."""
    return jnp.mean((network(params, data.x).argmax(1) == data.y).astype(jnp.float32))


def load() -> tuple[Digits, Digits]:
    """scikit-learn's digits: 1,437 images to learn from and 360 to test on."""
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    data = Digits(np.asarray(x[order] / 16, np.float32), np.asarray(y[order], np.int32))
    parts = slice(None, 1437), slice(1437, None)
    train, test = (Digits(jnp.asarray(data.x[p]), jnp.asarray(data.y[p])) for p in parts)
    return train, test


# --- training: any optimizer, one epoch a call ----------------------------------------------


def epoch(tx: Any, params: Any, state: Any, data: Digits, key: jax.Array) -> tuple[Any, Any, Any]:
    """One pass over the shuffled data; the optimizer is an argument like the params."""
    order = jax.random.permutation(key, len(data.x))[: len(data.x) // BATCH * BATCH]
    batches = jax.tree.map(lambda a: a[order].reshape(-1, BATCH, *a.shape[1:]), data)

    def step(carry: Any, batch: Digits) -> tuple[Any, jax.Array]:
        params, state = carry
        loss, grads = jax.value_and_grad(mean_loss)(params, batch)
        updates, state = tx.update(grads, state, params)
        return (fnopt.apply_updates(params, updates), state), loss

    (params, state), losses = jax.lax.scan(step, (params, state), batches)
    return params, state, losses


def show_progress(i: int, text: str) -> None:
    """One line that is written over; without a terminal, a line now and then."""
    if sys.stdout.isatty():
        print(f"\r  {text}", end="" if i < EPOCHS else "\n", flush=True)
    elif i % 10 == 0 or i == EPOCHS:
        print(f"  {text}", flush=True)


def train_digits(train: Digits, test: Digits) -> tuple[Any, dict[str, list[float]]]:
    """Clip, AdamW, warm-up cosine; everything between two progress lines is compiled."""
    steps = EPOCHS * (len(train.x) // BATCH)
    schedule = fnopt.warmup_cosine_decay_schedule(0.0, 1e-2, warmup_steps=40, decay_steps=steps)
    tx = fnopt.chain(
        fnopt.clip_by_global_norm(1.0),
        fnopt.adamw(schedule, weight_decay=1e-2, mask="*/kernel"),
    )
    print(f"training on {len(train.x)} handwritten digits with\n{tx}")

    params = init_network(jax.random.key(0))
    state = tx.init(params)
    run_epoch, score = jax.jit(epoch), jax.jit(accuracy)
    history: dict[str, list[float]] = {"loss": [], "accuracy": []}
    for i in range(1, EPOCHS + 1):
        params, state, losses = run_epoch(tx, params, state, train, jax.random.key(i))
        history["loss"] += losses.tolist()
        history["accuracy"].append(float(score(params, test)))
        bar = "#" * (20 * i // EPOCHS)
        rate = float(fnopt.hyperparams(tx, state)["learning_rate"])
        text = f"loss {losses.mean():.4f}  test accuracy {history['accuracy'][-1]:.3f}"
        show_progress(i, f"epoch {i:3d} [{bar:<20}] rate {rate:.1e}  {text}")
    return params, history


# --- one gradient per example ----------------------------------------------------------------


class Hard(NamedTuple):
    """Test images by the norm of their gradients, largest first."""

    norms: np.ndarray
    guesses: np.ndarray
    order: np.ndarray


def hardest(params: Any, test: Digits) -> Hard:
    """Which digits pull hardest at the weights: one gradient for every image."""
    grads = jax.jit(fnopt.per_example_grads(example_loss))(params, test)
    norms = np.asarray(jax.vmap(fnopt.global_norm)(grads))
    guesses = np.asarray(network(params, test.x).argmax(1))
    order = np.argsort(-norms)
    print(f"\ngradient norms of {len(norms)} test digits: median {np.median(norms):.1e}; hardest:")
    for i in order[:5]:
        mark = "" if guesses[i] == test.y[i] else f", taken for a {guesses[i]}"
        print(f"  image {i:3d}: norm {norms[i]:6.2f}, a {test.y[i]}{mark}")
    return Hard(norms, guesses, order)


# --- a curve: Levenberg-Marquardt -------------------------------------------------------------

# The speed of an enzyme reaction (counts/min^2) against the concentration of its substrate (ppm),
# with the enzyme treated with Puromycin. M. A. Treloar, "Effects of Puromycin on
# Galactosyltransferase in Golgi Membranes", M.Sc. thesis, University of Toronto, 1974; printed in
# D. M. Bates and D. G. Watts, "Nonlinear Regression Analysis and Its Applications", Wiley, 1988.
CONCENTRATION = jnp.asarray([0.02, 0.02, 0.06, 0.06, 0.11, 0.11, 0.22, 0.22, 0.56, 0.56, 1.1, 1.1])
RATE = jnp.asarray([76.0, 47, 97, 107, 123, 139, 159, 152, 191, 201, 207, 200])


def michaelis_menten(x: jax.Array, v_max: jax.Array, k_m: jax.Array) -> jax.Array:
    """Reaction speed: it saturates at v_max, and is half of it at the concentration k_m."""
    return v_max * x / (k_m + x)


def fit_curve() -> tuple[np.ndarray, np.ndarray]:
    """Parameters and their covariance."""
    popt, pcov = fnopt.curve_fit(michaelis_menten, CONCENTRATION, RATE, p0=[100.0, 0.1])
    print("\nMichaelis-Menten fitted to Treloar's enzyme data by Levenberg-Marquardt:")
    names = ["v_max [counts/min^2]", "k_m [ppm]"]
    for name, value, error in zip(names, popt, np.sqrt(np.diag(pcov)), strict=True):
        print(f"  {name:<21} = {value:9.4g} +- {error:.2g}")
    return np.asarray(popt), np.asarray(pcov)


# --- sixteen learning rates in one program ----------------------------------------------------


def sweep(train: Digits, epochs: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Trains 16 networks at once; returns rates and loss curves."""

    def losses(tx: Any) -> jax.Array:
        def one(carry: Any, key: jax.Array) -> tuple[Any, jax.Array]:
            params, state, losses = epoch(tx, *carry, train, key)
            return (params, state), losses

        params = init_network(jax.random.key(0))
        keys = jax.random.split(jax.random.key(1), epochs)
        return jax.lax.scan(one, (params, tx.init(params)), keys)[1].ravel()

    rates = jnp.logspace(-5, 0, 16)
    optimizers = jax.vmap(fnopt.adam)(rates)
    curves = jax.jit(jax.vmap(losses))(optimizers)
    final = curves[:, -20:].mean(1)
    print(f"\n16 learning rates in one vmapped program, {curves.shape[1]} steps each:")
    best = int(jnp.nanargmin(final))
    for i, what in ((0, "smallest"), (best, "best"), (15, "largest")):
        print(f"  {what:<8} rate {rates[i]:7.1e}: loss {final[i]:.3f}")
    return np.asarray(rates), np.asarray(curves)


# --- the picture ------------------------------------------------------------------------------


def smooth(values: np.ndarray, width: int) -> np.ndarray:
    """A moving average along the last axis."""
    sums = np.cumsum(np.insert(values, 0, 0, axis=-1), axis=-1)
    return (sums[..., width:] - sums[..., :-width]) / width


def draw_training(ax: Any, history: dict[str, list[float]]) -> None:
    """Loss on the left, accuracy on the right."""
    loss = np.asarray(history["loss"])
    ax.semilogy(loss, color="C0", alpha=0.25, lw=0.8)
    ax.semilogy(np.arange(22, len(loss) + 1), smooth(loss, 22), color="C0")
    ax.set(xlabel="step", ylabel="training loss", title="Digits: clip, AdamW, warm-up cosine")
    ax.yaxis.label.set_color("C0")
    right = ax.twinx()
    ends = np.arange(1, EPOCHS + 1) * len(loss) / EPOCHS
    right.plot(ends, 100 * np.asarray(history["accuracy"]), color="C1")
    right.set(ylim=(80, 100.5))
    right.set_ylabel("test accuracy [%]", color="C1")
    right.grid(False)
    right.spines["right"].set_visible(True)


def draw_sweep(ax: Any, rates: np.ndarray, curves: np.ndarray) -> None:
    """One loss curve for every rate."""
    colors = plt.get_cmap("viridis")(np.linspace(0, 0.95, len(rates)))
    for curve, color in zip(smooth(curves, 11), colors, strict=True):
        ax.semilogy(np.arange(11, curves.shape[1] + 1), curve, color=color, lw=1.3)
    norm = mpl.colors.LogNorm(rates[0], rates[-1])
    plt.colorbar(plt.cm.ScalarMappable(norm, "viridis"), ax=ax, label="learning rate")
    ax.set(xlabel="step", ylabel="training loss", title="16 learning rates, one program")


def draw_fit(ax: Any, popt: np.ndarray, pcov: np.ndarray) -> None:
    """Data, curve and the band of two standard errors (by the delta method)."""
    x = jnp.linspace(0, 1.2, 200)
    curve = michaelis_menten(x, *popt)
    J = jax.jacfwd(lambda p: michaelis_menten(x, *p))(jnp.asarray(popt))
    error = np.sqrt(np.einsum("ni,ij,nj->n", J, pcov, J))
    ax.fill_between(x, curve - 2 * error, curve + 2 * error, color="C0", alpha=0.2, lw=0)
    ax.plot(x, curve, color="C0", label="fit, two standard errors")
    ax.plot(CONCENTRATION, RATE, "o", color="C1", ms=4.5, label="Treloar, 1974")
    ax.set(xlabel="substrate [ppm]", ylabel="speed [counts/min$^2$]", ylim=(0, None))
    ax.set_title("Levenberg-Marquardt: enzyme kinetics")
    ax.legend(loc="lower right")


def draw_digits(fig: Any, test: Digits, hard: Hard, rows: int = 2, columns: int = 5) -> None:
    """The digits with the largest gradients."""
    fig.suptitle("Hardest digits: largest gradient norms", x=0.02, ha="left", fontsize=11)
    axes = fig.subplots(rows, columns).ravel()
    for ax, i in zip(axes, hard.order, strict=False):
        wrong = hard.guesses[i] != test.y[i]
        ax.imshow(test.x[i].reshape(8, 8), cmap="gray_r")
        ax.set(xticks=[], yticks=[])
        ax.spines[:].set_visible(True)
        ax.set_title(f"norm {hard.norms[i]:.1f}", loc="center", fontsize=8)
        said = f"{test.y[i]}, read as {hard.guesses[i]}"
        ax.set_xlabel(said, fontsize=8, color="C1" if wrong else "black")


def draw(path: Path, history: Any, hard: Hard, test: Digits, fit: Any, swept: Any) -> None:
    """Four panels."""
    plt.style.use(Path(__file__).parent.parent / "matplotlibrc")
    fig = plt.figure(figsize=(11, 7.2), dpi=110)
    quarters = fig.subfigures(2, 2, hspace=0.04, wspace=0.03)
    draw_training(quarters[0, 0].subplots(), history)
    draw_sweep(quarters[0, 1].subplots(), *swept)
    draw_fit(quarters[1, 0].subplots(), *fit)
    draw_digits(quarters[1, 1], test, hard)
    path.parent.mkdir(exist_ok=True)
    fig.savefig(path)
    plt.close(fig)


def main() -> None:
    """Everything, in order."""
    start = time.perf_counter()
    train, test = load()
    params, history = train_digits(train, test)
    hard = hardest(params, test)
    fit = fit_curve()
    swept = sweep(train)
    path = OUTPUT / "demo.png"
    draw(path, history, hard, test, fit, swept)
    print(f"\nthe picture is in {path} ({time.perf_counter() - start:.0f} s)")


if __name__ == "__main__":
    main()

"""All tasks by name."""

from __future__ import annotations

import jax

from benchmarks.training.digits import autoencoder, classifier, convolutional
from benchmarks.training.poisson import pinn
from benchmarks.training.task import Task
from benchmarks.training.text import transformer

TASKS = {
    "digits_mlp": classifier,
    "autoencoder": autoencoder,
    "digits_cnn": convolutional,
    "transformer": transformer,
    "pinn": pinn,
}
WIDE = {"pinn"}


def create_task(name: str, smoke: bool) -> Task:
    """Create a task; the precision must be set."""
    task = TASKS[name](smoke)
    assert task.name == name
    assert task.wide == jax.config.jax_enable_x64
    return task

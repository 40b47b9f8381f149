"""The code of the README runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import fnopt

README = Path(__file__).parents[1] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


def loss(params, batch):
    """For one example or many: the README says `loss` to both."""
    return jnp.mean((batch @ params - 1.0) ** 2)


def train(optimizer):
    def step(carry, _):
        params, state = carry
        value, gradients = jax.value_and_grad(loss)(params, batch)
        updates, state = optimizer.update(gradients, state, params)
        return (fnopt.apply_updates(params, updates), state), value

    params, batch = jnp.zeros(2), jnp.ones((3, 2))
    return jax.lax.scan(step, (params, optimizer.init(params)), length=5)[1]


@pytest.fixture(scope="module")
def names():
    """What the README takes for granted, and everything that its blocks define."""
    flax = pytest.importorskip("flax.linen")
    x = jnp.linspace(-1, 1, 16)[:, None]
    names = {"jax": jax, "jnp": jnp, "fnopt": fnopt, "nn": flax, "loss": loss, "train": train}
    names |= {"x": x, "y": jnp.sin(x), "params": jnp.zeros(2), "batch": jnp.ones((3, 2))}
    return names | {"weights": jnp.ones(3)}


def test_the_blocks_run(names, capsys):
    first, sweep, fit, per_example, inside = BLOCKS
    exec(first, names)
    arguments = [names[name] for name in ("optimizer", "params", "state", "batch")]
    _, state = names["step"](*arguments)
    assert int(fnopt.named(names["optimizer"], state)["scale_by_adam"].count) == 1
    exec(sweep, names)
    assert names["losses"].shape == (16, 5)
    assert isinstance(names["slope"], fnopt.Chain)
    exec(per_example, names)
    assert names["gradients"].shape == (3, 2)
    assert names["info"].norm.shape == (3,)
    exec(fit, names)
    assert bool(names["solution"].cost < 1e-3)
    assert "least squares" in capsys.readouterr().out
    exec(inside, names | {"network": {"w": jnp.ones((1, 4)), "v": jnp.ones(4)}})
    assert "backward / forward" in capsys.readouterr().out

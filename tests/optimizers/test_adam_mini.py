"""Adam-mini against its update written out, and its blocks."""

import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from tests.optimizers.written_out import assert_same, by_hand, ema, path

AXES = {"kernel": (0,), "bias": (0,), "embed": (1,)}


def test_agrees_with_the_paper():
    def step(name, t, p, g, s):
        square = np.mean(g**2, axis=AXES[name], keepdims=True)
        m, v = ema(s, "m", g, 0.9), ema(s, "v", square, 0.99)
        direction = m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.99**t)) + 1e-3)
        return -0.1 * (direction + 0.05 * p)

    assert_same(path(fnopt.adam_mini(0.1, b2=0.99, eps=1e-3, weight_decay=0.05)), by_hand(step))


def shapes(labels, **arrays):
    return {k: v.shape for k, v in fnopt.scale_by_adam_mini(blocks=labels).init(arrays).nu.items()}


def test_blocks():
    w = jnp.ones((2, 3, 4))
    for label, shape in {
        "leaf": (1, 1, 1),
        "rows": (2, 1, 1),
        "outputs": (1, 1, 4),
        "auto": (1, 1, 4),
        1: (1, 3, 1),
        -2: (1, 3, 1),
    }.items():
        assert shapes(label, w=w) == {"w": shape}
    by_name = fnopt.by_pattern({"q": 1}, default="auto")
    assert shapes(by_name, q=w, b=jnp.ones(3), s=jnp.ones(())) == {
        "q": (1, 3, 1),
        "b": (1,),
        "s": (),
    }


@pytest.mark.parametrize("label", ["head", 3])
def test_refuses_other_labels(label):
    with pytest.raises(
        ValueError, match=r"blocks: got the label .* for an array with 1 axis, expected"
    ):
        shapes(label, b=jnp.ones(3))

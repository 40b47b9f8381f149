"""Text of messages: a count has the singular or the plural of its noun."""

from __future__ import annotations

import re

import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt import tree
from fnopt.errors import count_text


def test_a_count_has_the_number_of_its_noun():
    for n, text in ((0, "0 params"), (1, "1 param"), (np.int64(1), "1 param"), (2, "2 params")):
        assert count_text(n, "param") == text
    assert count_text(1, "leaf", "leaves") == "1 leaf"
    assert count_text(3, "leaf", "leaves") == "3 leaves"


def _raised(fn, *args, **kwargs):
    with pytest.raises((TypeError, ValueError)) as error:
        fn(*args, **kwargs)
    return error.value


def test_counts_of_one_are_singular():
    x = jnp.ones(1)
    one_step = fnopt.least_squares(lambda p: p - 1, x)
    texts = [
        one_step,
        fnopt.root(lambda p: p - 1, x),
        fnopt.minimize(lambda p: jnp.sum((p - 1) ** 2), x),
        tree.restore({"a": x}, {"b": x})[1],
        tree.restore({"a": x}, {"a": x})[1],
        _raised(fnopt.weighted_grad(lambda p, x: p * x), x),
        _raised(fnopt.curve_fit, lambda x, a: a * x, x, x * jnp.nan, nan_policy="raise"),
        _raised(fnopt.jacobian(lambda p: p, argnums=2), x),
        _raised(fnopt.join_schedules, [fnopt.constant_schedule(0.1)], [3]),
    ]
    for text in map(str, texts):
        # The bounds in "0.1 s" and "n >= 1 schedules" aren't counts.
        assert re.search(r"(?<![.\d])(?<![-=] )1 [a-z]+( [a-z]+)?\b", text), text
        assert not re.search(r"(?<![.\d])(?<![-=] )1 (?!of )[a-z]+s\b", text), text

"""What an error of a user's function of ONE example comes from."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from fnopt.core._checks import described
from fnopt.core._errors import listing
from fnopt.core._missing_keys import missing_keys
from fnopt.core._paths import leaves_with_names, shown
from fnopt.core._written_for_jax import NotForJaxError, written_for_jax


@contextlib.contextmanager
def of_one_example(name: str, example: Any, params: Any = None) -> Iterator[None]:
    """Adds to an error with what the function was called, and what does not fit into one.

    Args:
        name: What the user called.
        example: An example of the batch, without the axis of these.
        params: What the function gets beside it.
    """
    try:
        with written_for_jax(name, "the function"), missing_keys(params):
            yield
    except NameError as error:
        if "unbound axis name" not in str(error):
            raise
        raise ValueError(
            f"{name}: the model takes statistics over a batch ({error}), as batch normalisation "
            "does in training. Expected a function of ONE example: one that normalises with "
            "running averages (use_running_average=True, eqx.nn.inference_mode, "
            "is_training=False), or by LayerNorm or GroupNorm."
        ) from error
    except NotForJaxError:
        raise  # it says all
    except Exception as error:
        leaves = leaves_with_names(example)[0]
        seen = listing([f"{shown(path)}: {described(leaf)}" for path, leaf in leaves])
        error.add_note(
            f"{name} calls the function with ONE example, without the axis of the batch: {seen}. "
            "What random layers need is part of it (a key for each example, jax.random.split(key, "
            "n)). A function whose examples depend on each other has no such form: normalise with "
            "running averages, by LayerNorm or GroupNorm."
        )
        raise

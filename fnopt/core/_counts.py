"""Step counts of states, and the error where a count is missing."""

from __future__ import annotations

from typing import Any

import jax

from fnopt.core._dtypes import safe_increment, zero_count
from fnopt.core._errors import where
from fnopt.core._value import Schedule


def scheduled(tx: Any) -> tuple[str, ...]:
    """The names of a transform's hyper-parameters that are schedules.

    They are known from the value itself: numbers, arrays and traced numbers are constants.
    """
    names, values = tx._leaf_names, tx._flatten()[0]
    return tuple(n for n, x in zip(names, values, strict=True) if isinstance(x, Schedule))


def needs_count(tx: Any) -> bool:
    """Whether a transform needs the number of the step."""
    if tx.reads_step:
        return True
    for x in tx._flatten()[0]:  # noqa: SIM110  (an eager update asks it of every member)
        if isinstance(x, Schedule):
            return True
    return False


def first_count(tx: Any) -> jax.Array | None:
    """The count of a fresh state: zero, or None for a transform that doesn't need it."""
    return zero_count() if needs_count(tx) else None


def next_count(count: jax.Array | None) -> jax.Array | None:
    """The count after a step; None for None."""
    return None if count is None else safe_increment(count)


def count_of(tx: Any, state: Any) -> jax.Array | None:
    """The count of a state; None, or a ValueError where it is needed, if it has none.

    A count that isn't needed any more goes on, so that a schedule may come back.
    """
    if state.count is None and needs_count(tx):
        raise missing_count(tx)
    return state.count


def missing_count(tx: Any) -> ValueError:
    """The error for a state without a count that is needed."""
    names = ", ".join(scheduled(tx))
    why = f"{names} follows a schedule" if names else "it reads the number of the step"
    return ValueError(
        f"{where()}{type(tx).__name__} needs a count of steps ({why}), and its state has none: "
        "that is of an optimizer which needed none. Go on with state, report = "
        "fnopt.tree.restore(tx.init(params), state, count=n), n the steps made so far."
    )

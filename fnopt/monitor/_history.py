"""History of health statistics on the host, from an optimizer's state or from a log."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from fnopt.core import Transformation
from fnopt.errors import count_text, names_text
from fnopt.monitor._flags import Flag, FlagReport
from fnopt.monitor._groups import group
from fnopt.monitor._measure import STATISTICS
from fnopt.monitor._record import RecordHealthState, record_health


# `eq=False`, because a comparison of arrays has no single truth value.
@dataclasses.dataclass(frozen=True, eq=False)
class History:
    """Health statistics of many steps.

    Attributes:
        names: The names of the groups.
        steps: The step numbers, ascending, `[times]`.
        values: The statistics, `[times, groups]`, keyed by name; histograms have a last axis of 32.
            `'flag'`, if recorded, contains `Flag` codes.
    """

    names: tuple[str, ...]
    steps: np.ndarray
    values: dict[str, np.ndarray]

    def records(self) -> Iterator[dict[str, Any]]:
        """Iterate over the steps as flat dicts, like the records that writers receive."""
        for t, step in enumerate(self.steps):
            record: dict[str, Any] = {"step": int(step)}
            for stat, rows in self.values.items():
                for name, value in zip(self.names, rows[t], strict=True):
                    record[f"{stat}/{name}"] = value
            yield record

    def report(self) -> FlagReport:
        """List the groups whose flags were raised at the last recorded step."""
        code = self.values["flag"][-1] if len(self.steps) else np.zeros(len(self.names))
        kinds = Flag.DEAD, Flag.EXPLODING, Flag.NONFINITE, Flag.VANISHING, Flag.HALF_DEAD
        return FlagReport.from_flags(self.names, [code == kind for kind in kinds])


def _find_recorders(
    tx: Transformation, state: Any, path: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(tx, record_health):
        yield path or "record_health", tx, state
    for member in tx.members(state):
        yield from _find_recorders(member.tx, member.state, f"{path}/{member.name}".lstrip("/"))


def _choose(tx: Transformation, state: Any, name: str | None) -> tuple[Any, RecordHealthState]:
    recorders = {path: (recorder, part) for path, recorder, part in _find_recorders(tx, state)}
    selection = {path: pair for path, pair in recorders.items() if name in (None, path)}
    if len(selection) == 1:
        return next(iter(selection.values()))
    if not recorders:
        raise ValueError(
            f"health_history: tx is {tx!r}, expected an optimizer that contains record_health, as "
            "in fnopt.chain(record_health(), optimizer)."
        )
    raise ValueError(
        "health_history: the optimizer has "
        f"{'several recorders' if name is None else f'no recorder {name!r}'}, "
        f"expected the argument `name` to be one of {names_text([*recorders])}."
    )


def health_history(
    tx: Transformation, state: Any, params: Any, *, name: str | None = None
) -> History:
    """Read the history that `record_health` stores in the state of an optimizer.

    Call `health_history` outside `jax.jit`. If the state has additional axes (from a `jax.vmap`
    over optimizers), select one entry first: `jax.tree.map(lambda x: x[i], state)`.

    Args:
        tx: The optimizer.
        state: The optimizer's state.
        params: The params, for the names of the groups; `jax.ShapeDtypeStruct`s are sufficient.
        name: The recorder's name in the chain, if there are several recorders.

    Returns:
        A `History` of the last recordings, oldest first.

    Raises:
        ValueError: If there is no recorder with this name, there are several recorders without
            `name`, or the groups of the params differ from the recorded groups.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> from fnopt.monitor import health_history, record_health
        >>> params = {"w": jnp.ones(4), "b": jnp.ones(())}
        >>> tx = fnopt.chain(record_health(every=2), fnopt.sgd(0.1))
        >>> state = tx.init(params)
        >>> for _ in range(5):
        ...     updates, state = tx.update(params, state, params)
        >>> history = health_history(tx, state, params)
        >>> history.names, history.steps, history.values["norm"][-1]
        (('b', 'w'), array([0, 2, 4]), array([1., 2.], dtype=float32))
    """
    recorder, part = _choose(tx, state, name)
    if np.ndim(part.count):
        raise ValueError(
            f"health_history: the state is a batch of shape {np.shape(part.count)}, expected one "
            "state. Select an entry of the batch: jax.tree.map(lambda x: x[i], state)."
        )
    names = group(params, recorder.groups).names
    if len(names) != part.flags.dead.size:
        raise ValueError(
            f"health_history: the params have {count_text(len(names), 'group')}, expected "
            f"{part.flags.dead.size} as in the state. A recorder inside masked or partition "
            "receives only some leaves: pass the params with None in place of the other leaves."
        )
    # Rounded up, because step 0 is recorded.
    recordings = -(-int(part.count) // recorder.every)
    stored = np.arange(max(0, recordings - recorder.size), recordings)
    # Recording `i` is entry `i % size` of the ring buffer.
    values = {k: np.asarray(v)[stored % recorder.size] for k, v in part.ring.items()}
    return History(names, stored * recorder.every, values)


def history_of(records: Iterable[Mapping[str, Any]], prefix: str = "") -> History:
    """Build a `History` from the records of a sink or of a log file.

    Args:
        records: Flat dicts with a `'step'` and entries such as `'norm/dense/kernel'`. Other entries
            are ignored. Records from JSON lines have `None` in place of non-finite numbers.
        prefix: The prefix of the health entries, if any, such as `'grads'`.

    Returns:
        A `History`, sorted by step. Missing entries of a record are NaN.

    Raises:
        ValueError: If no record contains a health statistic.

    Example:
        >>> from fnopt.monitor import history_of
        >>> history = history_of([{"step": 1, "norm/w": 3.0}, {"step": 0, "norm/w": 2.0}])
        >>> history.steps, history.values["norm"].tolist()
        (array([0, 1]), [[2.0], [3.0]])
    """
    rows = sorted(records, key=lambda record: record["step"])
    start = f"{prefix.rstrip('/')}/" if prefix else ""
    kinds = (*STATISTICS, "flag")
    entries = dict.fromkeys(
        tuple(key.removeprefix(start).split("/", 1))
        for row in rows
        for key in row
        if key.startswith(start)
        and key.removeprefix(start).split("/", 1)[0] in kinds
        and "/" in key
    )
    if not entries:
        raise ValueError(
            f"history_of: got {count_text(len(rows), 'record')} without health statistics, "
            f"expected entries such as '{start}norm/...'."
        )
    names = tuple(dict.fromkeys(entry[1] for entry in entries))
    values = {
        stat: np.asarray(
            [[_number(row, f"{start}{stat}/{n}", stat) for n in names] for row in rows]
        )
        for stat in dict.fromkeys(entry[0] for entry in entries)
    }
    return History(names, np.asarray([int(row["step"]) for row in rows]), values)


def _number(row: Mapping[str, Any], key: str, stat: str) -> Any:
    value = row.get(key)
    if stat == "histogram":
        return np.full(32, np.nan) if value is None else np.asarray(value, float)
    if stat == "flag":
        return 0 if value is None else int(value)
    return float("nan") if value is None else float(value)

"""Partial restore: the fitting leaves of a saved tree in a fresh one, with a report."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from fnopt.core import described, is_array_like, listing, show_report
from fnopt.tree._named_leaves import named_leaves, renamed
from fnopt.tree._recount import recount


@dataclasses.dataclass(frozen=True)
class RestoreReport:
    """The report of `restore`: what was done with every leaf, by name.

    Attributes:
        taken: Leaves of the fresh tree that have saved values now.
        fresh: Leaves that stay as they were: nothing of their name was saved.
        reshaped: Leaves that stay as they were although something of their name was saved, with
            the shape or dtype of either, fresh and saved.
        left_over: Saved leaves that the fresh tree has no place for.
        counted: Step counts that weren't saved, and what their number was taken from: the name of
            a saved count, or `'count='` for the argument.
        dropped: Saved step counts that the fresh tree has no place for, but whose number it has.
    """

    taken: tuple[str, ...]
    fresh: tuple[str, ...]
    reshaped: dict[str, tuple[str, str]]
    left_over: tuple[str, ...]
    counted: dict[str, str] = dataclasses.field(default_factory=dict)
    dropped: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether every leaf was taken, and nothing is left over but counts that are known."""
        return not (self.fresh or self.reshaped or self.left_over)

    def __str__(self) -> str:
        lines = [f"{len(self.taken)} leaves taken"]
        if self.fresh:
            lines.append(f"{len(self.fresh)} fresh: {listing([*self.fresh])}")
        for name, (mine, theirs) in self.reshaped.items():
            lines.append(f"{name!r} stays fresh: it is {mine}, saved is {theirs}")
        if self.left_over:
            lines.append(f"{len(self.left_over)} left over: {listing([*self.left_over])}")
        lines += [f"{name!r} taken from {theirs}" for name, theirs in self.counted.items()]
        if self.dropped:
            lines.append(f"{len(self.dropped)} counts not needed: {listing([*self.dropped])}")
        return "\n".join(lines)

    _repr_pretty_ = show_report


def restore(
    fresh: Any, saved: Any, rename: Mapping[str, str] | None = None, count: int | None = None
) -> tuple[Any, RestoreReport]:
    """Copy the matching leaves of a saved tree into a fresh one, with a report.

    Leaves belong together if their names do, which are spelled alike for all containers
    (`fnopt.leaf_paths`); the slots of optimizers if the names of slot and param do, wherever in a
    chain they stand: the state of `adam` goes into that of `adamw`, and a transform or a leaf may
    have come or gone. A slot that is one vector (of :class:`fnopt.flatten`) and one that is a tree
    go into each other, if they have as many numbers: those of the params in the order of the saved
    tree. A step count that wasn't saved (of a rate that follows a schedule now) gets the number of
    the saved counts nearest to it, if these agree. Nothing is silent: print the report, or refuse
    what is not `report.complete`. Leaves that hold no numbers (an activation function in a module)
    stay as they are, and aren't reported.

    Args:
        fresh: The tree to fill: params of a new model, or the state `tx.init(params)`.
        saved: The tree with the values, of any structure: a nested dict of arrays will do.
        rename: From the beginnings of saved names to what they are called in the fresh tree, such
            as `{'encoder': 'backbone'}`; the longest that fits is used. Names are whole parts of a
            path.
        count: The number of steps made, for the counts that weren't saved: optimizers keep none
            where nothing reads it.

    Returns:
        A tree like `fresh`, its arrays in the dtypes and where those of `fresh` are; and a
        `RestoreReport`.

    Raises:
        ValueError: If two saved leaves have the same name after renaming.

    Example:
        >>> from fnopt import tree
        >>> pretrained = {"encoder": {"w": jnp.ones(2)}, "head": jnp.ones(1000)}
        >>> model = {"backbone": {"w": jnp.zeros(2)}, "head": jnp.zeros(10)}
        >>> params, report = tree.restore(model, pretrained, rename={"encoder": "backbone"})
        >>> print(report)
        1 leaves taken
        'head' stays fresh: it is float32[10], saved is float32[1000]
    """
    target = named_leaves(fresh)
    sources: dict[str, Any] = {}
    for name, leaf in named_leaves(saved).pairs:
        name = renamed(name, rename or {})
        if not is_array_like(leaf):
            continue
        if name in sources:
            raise ValueError(
                f"restore: two saved leaves are called {name!r} after renaming: give them "
                "different names."
            )
        sources[name] = leaf
    for (name, _), path in zip(target.pairs, target.paths, strict=True):
        if name not in sources and path in sources:  # a state that was saved as plain dicts
            sources[name] = sources.pop(path)
    _repack(target.slots, target.pairs, sources)
    other = {name for name, _ in target.pairs}.difference(target.counts)
    counted, dropped = recount(target.counts, other, sources, count)
    torn = _torn_codes(target.pairs, sources)
    taken, new, reshaped, leaves = [], [], {}, []
    for name, leaf in target.pairs:
        source = sources.pop(name, None)
        if not is_array_like(leaf):
            pass
        elif source is None:
            new.append(name)
        elif name in torn or not _fits(source, leaf):
            reshaped[name] = (described(leaf), described(source))
        else:
            taken.append(name)
            leaf = _placed(source, leaf)
        leaves.append(leaf)
    report = RestoreReport(tuple(taken), tuple(new), reshaped, tuple(sources), counted, dropped)
    return target.treedef.unflatten(leaves), report


def _repack(names: list[str], targets: list[tuple[str, Any]], sources: dict[str, Any]) -> None:
    """Brings saved slots that are trees to fresh ones that are vectors, and the other way."""
    arrays = {name: leaf for name, leaf in targets if is_array_like(leaf)}
    for slot in names:
        here = [name for name in arrays if name.startswith(f"{slot}/")]
        there = [name for name in sources if name.startswith(f"{slot}/")]
        if here and not there and _is_vector_of(sources.get(slot), [arrays[k] for k in here]):
            vector = jnp.asarray(sources.pop(slot))
            ends = np.cumsum([jnp.size(arrays[k]) for k in here])[:-1]
            for name, part in zip(here, jnp.split(vector, ends.tolist()), strict=True):
                sources[name] = part.reshape(jnp.shape(arrays[name]))
        saved = [sources[name] for name in there]
        fits = bool(there) and not here and _is_vector_of(arrays.get(slot), saved)
        if fits and all(_castable(x, arrays[slot]) for x in saved):
            sources[slot] = _vector([sources.pop(k) for k in there], arrays[slot])


def _is_vector_of(x: Any, leaves: list[Any]) -> bool:
    """Whether an array has the numbers of these in a row, as `fnopt.flatten` lays them."""
    return x is not None and jnp.shape(x) == (sum(map(jnp.size, leaves)),)


def _vector(leaves: list[Any], like: Any) -> jax.Array:
    dtype = jnp.result_type(like)
    return jnp.concatenate([jnp.ravel(jnp.asarray(x)).astype(dtype) for x in leaves])


def _torn_codes(targets: list[tuple[str, Any]], sources: dict[str, Any]) -> set[str]:
    """Codes whose scales don't fit, and scales whose codes don't: one says nothing without both."""
    arrays = {name: leaf for name, leaf in targets if is_array_like(leaf)}
    torn: set[str] = set()
    for name, leaf in arrays.items():
        start, _, end = name.rpartition("/")
        both = name, f"{start}/1"
        if end == "0" and jnp.result_type(leaf) == jnp.uint8 and both[1] in arrays:
            fits = [k in sources and _fits(sources[k], arrays[k]) for k in both]
            torn |= set() if all(fits) else {*both}
    return torn


def _fits(source: Any, leaf: Any) -> bool:
    return jnp.shape(source) == jnp.shape(leaf) and _castable(source, leaf)


def _castable(source: Any, leaf: Any) -> bool:
    return jnp.can_cast(jnp.result_type(source), jnp.result_type(leaf), casting="same_kind")


def _placed(source: Any, leaf: Any) -> Any:
    value = jnp.asarray(source).astype(jnp.result_type(leaf))
    if isinstance(leaf, jax.Array) and not isinstance(leaf, Tracer) and leaf.committed:
        return jax.device_put(value, leaf.sharding)
    return value

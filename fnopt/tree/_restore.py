"""Partial restore: copy the matching leaves and step counts of a saved tree into a fresh tree."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from fnopt.errors import count_text, names_text, show_report, type_text
from fnopt.numerics import is_array_like
from fnopt.tree._matching import (
    WRAPPER_COUNTS,
    NamedLeaf,
    NamedLeaves,
    are_equal,
    match_counts,
    match_scalars,
    match_slots,
    named_leaves,
    repack,
)


def recount(
    counts: Iterable[str], other: set[str], sources: dict[str, Any], count: int | None
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Assign saved step counts to fresh counts, and drop superfluous saved counts.

    Args:
        counts: The names of the fresh tree's step counts.
        other: The names of the fresh tree's other leaves.
        sources: The saved leaves, keyed by name; modified in place.
        count: The number of steps, for counts that weren't saved. With None, these counts are set
            to the nearest saved counts in the tree, if the nearest saved counts agree.

    Returns:
        The sources of the counts that weren't saved, keyed by name; and the names of the dropped
        counts.
        A saved count that doesn't exist in the fresh tree is dropped if a fresh count has the same
        value.
    """
    saved = {}
    for k, x in sources.items():
        is_count = _field(k) == "gradient_step" or (_field(k) == "count" and k not in other)
        if is_count and jnp.issubdtype(jnp.result_type(x), jnp.integer):
            saved[k] = x
    wrappers = {
        k.removesuffix(_field(k))
        for k in other.intersection(sources)
        if _field(k) in WRAPPER_COUNTS
    }
    filled: dict[str, str] = {}
    for name in counts:
        if name in sources:
            continue
        # A wrapper such as `accumulate` forwards only some steps, so counts inside it are smaller.
        wrapper = _innermost_wrapper(name, wrappers)
        nearest = _nearest(name, [k for k in saved if _innermost_wrapper(k, wrappers) == wrapper])
        if count is not None:
            sources[name], filled[name] = np.int32(count), "count="
        elif nearest and all(are_equal(saved[nearest[0]], saved[k]) for k in nearest):
            sources[name], filled[name] = saved[nearest[0]], nearest[0]
    restored = {name: sources[name] for name in counts if name in sources}
    superfluous = [k for k in saved if k not in restored and k not in other]
    redundant = [k for k in superfluous if any(are_equal(saved[k], x) for x in restored.values())]
    for name in redundant:
        del sources[name]
    return filled, tuple(name for name in redundant if name not in filled.values())


def _field(name: str) -> str:
    return name.rpartition("/")[2]


def _innermost_wrapper(name: str, wrappers: Iterable[str]) -> str | None:
    """Path of the innermost wrapper with fewer steps than calls."""
    return max((place for place in wrappers if name.startswith(place)), key=len, default=None)


def _nearest(name: str, others: Iterable[str]) -> list[str]:
    """Names that share the longest path prefix with `name`.

    Members of one chain have equal step counts, so their counts can replace a missing count.
    """
    lengths = {}
    for other in others:
        matches = [a == b for a, b in zip(name.split("/"), other.split("/"), strict=False)]
        lengths[other] = (*matches, False).index(False)
    return [other for other, n in lengths.items() if n == max(lengths.values())]


@dataclasses.dataclass(frozen=True)
class RestoreReport:
    """Report of `restore`: the names of restored leaves, and all mismatches.

    Attributes:
        taken: Leaves of the fresh tree that were set to saved values.
        fresh: Unchanged leaves for which no leaf of the same name was saved.
        reshaped: Unchanged leaves whose saved leaf has another shape or dtype, with a description
            of the fresh leaf and of the saved leaf.
        left_over: Saved leaves that don't exist in the fresh tree.
        counted: Step counts that weren't saved, with the source of their value: the name of a saved
            count, or `'count='` for the argument.
        dropped: Saved step counts that don't exist in the fresh tree, but equal one of its counts.
        alike: Whether fresh and left-over leaves exist although both trees have leaves of the same
            shapes and dtypes in the same order. The trees may then differ only in names.
    """

    taken: tuple[str, ...]
    fresh: tuple[str, ...]
    reshaped: dict[str, tuple[str, str]]
    left_over: tuple[str, ...]
    counted: dict[str, str] = dataclasses.field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    alike: bool = False

    @property
    def complete(self) -> bool:
        """Whether every leaf was restored, and every saved leaf was used or dropped."""
        return not (self.fresh or self.reshaped or self.left_over)

    def __str__(self) -> str:
        lines = [f"{count_text(len(self.taken), 'leaf', 'leaves')} restored"]
        if self.fresh:
            leaves = count_text(len(self.fresh), "leaf", "leaves")
            lines.append(f"{leaves} not saved: {names_text([*self.fresh])}")
        for name, (fresh_type, saved_type) in self.reshaped.items():
            lines.append(f"{name!r} not restored: saved as {saved_type}, expected {fresh_type}")
        if self.left_over:
            lines.append(
                f"{count_text(len(self.left_over), 'saved leaf', 'saved leaves')} not used: "
                f"{names_text([*self.left_over])}"
            )
        lines += [f"{name!r} copied from {source}" for name, source in self.counted.items()]
        if self.dropped:
            counts = count_text(len(self.dropped), "count")
            lines.append(f"{counts} not needed: {names_text([*self.dropped])}")
        if self.alike:
            lines.append(
                "both trees have leaves of the same shapes in the same order; if only names differ,"
                " use jax.tree.unflatten(jax.tree.structure(fresh), jax.tree.leaves(saved))"
            )
        return "\n".join(lines)

    _repr_pretty_ = show_report


def restore(
    fresh: Any, saved: Any, rename: Mapping[str, str] | None = None, count: int | None = None
) -> tuple[Any, RestoreReport]:
    """Copy the matching leaves of a saved tree into a fresh tree, and report mismatches.

    Leaves match by name, which has the same form for all containers (`fnopt.leaf_paths`). Slots of
    optimizers match by the names of slot and param, at any position in chains, partitions, dicts
    and lists. Thus a state of `adam` can be restored into a state of `adamw`, and transforms,
    wrappers and leaves may be added or removed. Counts and other numbers of a state are restored
    together with its slots.

    A slot stored as one vector (by :class:`fnopt.flatten`) is converted to a tree of the same
    number of elements, and a tree to a vector. A new schedule may need a step count that wasn't
    saved. Such a count is set to the value of the nearest saved counts, if the nearest counts
    agree.

    The report lists all mismatches: print it, or raise an error unless `report.complete`. Leaves
    that aren't numbers (an activation function in a module) are unchanged and aren't reported.

    Args:
        fresh: The tree to fill: params of a new model, or the state `tx.init(params)`.
        saved: The tree with the saved values, of any structure; a nested dict of arrays is
            sufficient.
        rename: A map from prefixes of saved names to prefixes in the fresh tree, such as
            `{'encoder': 'backbone'}`; the longest matching prefix is used. Prefixes consist of
            whole parts of a path.
        count: The number of completed steps, for counts that weren't saved. Optimizers store a
            count only if they use it. The count of moments that weren't saved remains 0.

    Returns:
        A tree like `fresh`, with the dtypes and shardings of `fresh`; and a `RestoreReport`.

    Raises:
        ValueError: If two saved leaves have the same name after renaming.

    Example:
        >>> from fnopt import tree
        >>> pretrained = {"encoder": {"w": jnp.ones(2)}, "head": jnp.ones(1000)}
        >>> model = {"backbone": {"w": jnp.zeros(2)}, "head": jnp.zeros(10)}
        >>> params, report = tree.restore(model, pretrained, rename={"encoder": "backbone"})
        >>> print(report)
        1 leaf restored
        'head' not restored: saved as float32[1000], expected float32[10]
    """
    target, source = named_leaves(fresh), _check_saved(named_leaves(saved, rename))
    matching = match_slots(target, source)
    packed = repack(target, source, matching)
    fresh_names = match_scalars(target, source, matching)
    match_counts(target, source, matching, fresh_names)
    sources = {name: leaf.leaf for name, leaf in matching.found.items()} | packed
    unused = {x.name: x.leaf for x in source.leaves if x.path not in matching.used}
    # An unmatched saved leaf may have the same name as a fresh leaf.
    unused = {f"saved {name}" if name in target.names else name: x for name, x in unused.items()}
    # A step count may be copied from a matched or from an unused saved leaf.
    pool = {**unused, **sources}
    counts = [name for name in target.counts if name not in fresh_names]
    counted, dropped = recount(counts, target.names.difference(target.counts), pool, count)
    sources |= {name: pool.pop(name) for name in counted}
    incomplete = _incomplete_codes(target.leaves, sources)
    restored, unsaved, reshaped, leaves = [], [], {}, []
    for name, _, leaf, _ in target.leaves:
        value = sources.get(name)
        if not is_array_like(leaf):  # such as an activation function
            pass
        elif value is None:
            unsaved.append(name)
        elif name in incomplete or not _fits(value, leaf):
            reshaped[name] = (type_text(leaf), type_text(value))
        else:
            restored.append(name)
            leaf = _cast_and_place(value, leaf)
        leaves.append(leaf)
    left_over = tuple(name.removeprefix("saved ") for name in pool if name not in sources)
    alike = bool(unsaved and left_over) and _have_same_leaves(target, source)
    report = RestoreReport(
        tuple(restored), tuple(unsaved), reshaped, left_over, counted, dropped, alike
    )
    return target.treedef.unflatten(leaves), report


def _check_saved(saved: NamedLeaves) -> NamedLeaves:
    """Select the saved leaves that are arrays or numbers, and check that their names differ."""
    leaves = [x for x in saved.leaves if is_array_like(x.leaf)]
    for name, times in Counter(x.name for x in leaves).items():
        if times > 1:
            raise ValueError(
                f"restore: {times} saved leaves have the name {name!r} after renaming, expected "
                "distinct names. Change the argument rename."
            )
    return saved._replace(leaves=leaves)


def _have_same_leaves(fresh: NamedLeaves, saved: NamedLeaves) -> bool:
    """Whether two trees have leaves of the same shapes and dtypes in the same order."""
    fresh_types, saved_types = (
        [(jnp.shape(x.leaf), jnp.result_type(x.leaf)) for x in tree.leaves if is_array_like(x.leaf)]
        for tree in (fresh, saved)
    )
    return fresh_types == saved_types


def _incomplete_codes(targets: list[NamedLeaf], sources: dict[str, Any]) -> set[str]:
    """Names of quantized leaves of which only the codes or only the scales can be restored."""
    arrays = {x.name: x.leaf for x in targets if is_array_like(x.leaf)}
    incomplete: set[str] = set()
    for name, leaf in arrays.items():
        start, _, end = name.rpartition("/")
        # The names of the codes and scales of a quantized leaf end with 0 and 1.
        pair = name, f"{start}/1"
        dtype = jnp.result_type(leaf)
        if end == "0" and dtype in (jnp.uint8, jnp.int4) and pair[1] in arrays:
            fits = [k in sources and _fits(sources[k], arrays[k]) for k in pair]
            fits.append(name in sources and jnp.result_type(sources[name]) == dtype)
            # Codes with the scales of other codes would be wrong numbers.
            incomplete |= set() if all(fits) else {*pair}
    return incomplete


def _fits(source: Any, leaf: Any) -> bool:
    # "same_kind" allows float32 to bfloat16, but not complex to real or float to integer.
    return jnp.shape(source) == jnp.shape(leaf) and jnp.can_cast(
        jnp.result_type(source), jnp.result_type(leaf), casting="same_kind"
    )


def _cast_and_place(source: Any, leaf: Any) -> Any:
    value = jnp.asarray(source).astype(jnp.result_type(leaf))
    # A committed leaf keeps its sharding; JAX moves an uncommitted leaf to the program's devices.
    if isinstance(leaf, jax.Array) and not isinstance(leaf, Tracer) and leaf.committed:
        return jax.device_put(value, leaf.sharding)
    return value

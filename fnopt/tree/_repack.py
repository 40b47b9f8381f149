"""Slots that are trees for such that are vectors, and the other way."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fnopt.core import is_array_like
from fnopt.tree._matching import Matching
from fnopt.tree._named_leaves import NamedLeaf, NamedLeaves, SlotPlace


def repack(fresh: NamedLeaves, saved: NamedLeaves, matching: Matching) -> dict[str, Any]:
    """Brings saved slots that are trees to fresh ones that are vectors, and the other way.

    Returns:
        The arrays by the names of fresh leaves; `matching` says from where.
    """
    slots: dict[tuple[str, str], list[NamedLeaf]] = defaultdict(list)
    for leaf in fresh.leaves:
        if leaf.slot is not None and is_array_like(leaf.leaf):
            slots[leaf.slot[:2]].append(leaf)
    packed: dict[str, Any] = {}
    for (_, field), here in slots.items():
        if any(leaf.name in matching.found for leaf in here):
            continue
        free = [x for x in saved.leaves if x.path not in matching.used]
        fitting = [there for there in _slots_of(field, free) if _fits(here, there)]
        if len(fitting) != 1:
            continue
        (there,) = fitting
        arrays = [leaf.leaf for leaf in there]
        torn = len(there) == 1
        packed |= (
            _split_vector(arrays[0], here)
            if torn
            else {here[0].name: _join_leaves(arrays, here[0])}
        )
        for leaf in here:
            matching.add(leaf.name, there[0])
        matching.used.update(leaf.path for leaf in there)
    return packed


def _fits(here: list[NamedLeaf], there: list[NamedLeaf]) -> bool:
    """Whether one of two slots is a vector of the other."""
    mine, theirs = ([leaf.leaf for leaf in leaves] for leaves in (here, there))
    if len(there) == 1:
        return _is_vector_of(theirs[0], mine)
    castable = all(
        jnp.can_cast(jnp.result_type(x), jnp.result_type(mine[0]), casting="same_kind")
        for x in theirs
    )
    return len(here) == 1 and _is_vector_of(mine[0], theirs) and castable


def _slots_of(field: str, saved: list[NamedLeaf]) -> list[list[NamedLeaf]]:
    """The saved slots that may be called so."""
    found: dict[str, list[NamedLeaf]] = defaultdict(list)
    for leaf in saved:
        place = leaf.slot or _guess_place(field, leaf.path)
        if place is not None and place.field == field:
            found[place.state].append(leaf._replace(slot=place))
    return [*found.values()]


def _guess_place(field: str, path: str) -> SlotPlace | None:
    """The place in a slot of a leaf that was saved in a plain dict."""
    before, here, after = f"/{path}/".partition(f"/{field}/")
    return SlotPlace(before.strip("/"), field, after.strip("/")) if here else None


def _split_vector(vector: Any, leaves: list[NamedLeaf]) -> dict[str, Any]:
    ends = np.cumsum([jnp.size(x.leaf) for x in leaves])[:-1]
    parts = jnp.split(jnp.asarray(vector), ends.tolist())
    return {x.name: p.reshape(jnp.shape(x.leaf)) for x, p in zip(leaves, parts, strict=True)}


def _is_vector_of(x: Any, leaves: list[Any]) -> bool:
    """Whether an array has the numbers of these in a row, as `fnopt.flatten` lays them."""
    return jnp.shape(x) == (sum(map(jnp.size, leaves)),)


def _join_leaves(leaves: list[Any], like: NamedLeaf) -> jax.Array:
    dtype = jnp.result_type(like.leaf)
    return jnp.concatenate([jnp.ravel(jnp.asarray(x)).astype(dtype) for x in leaves])

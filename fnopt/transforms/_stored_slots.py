"""Wrappers that keep the slots of an optimizer in another form than it computes with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import map_slots, matches, names_text, where
from fnopt.transforms._wrapper import Wrapper


def pattern_items(given: Any) -> tuple[tuple[str, Any], ...]:
    """A mapping from names of slots as a field that can be hashed."""
    if not isinstance(given, (Mapping, tuple)):
        raise TypeError(
            f"{where()}slots = {given!r}, expected a dict from the name of a slot to its form, as "
            "in {'mu': ...}."
        )
    return tuple((str(name), value) for name, value in dict(given).items())


def is_coded(x: Any) -> bool:
    """Whether a node of a slot is 8-bit codes with their scales."""
    return isinstance(x, tuple) and len(x) == 2 and getattr(x[0], "dtype", None) == jnp.uint8


def _fits(pattern: str, path: str) -> bool:
    return pattern == path.rpartition("/")[2] or matches(path, pattern)


class StoredSlots(Wrapper):
    """A wrapper whose inner state has some slots in another form.

    Slots are chosen by name, by their path where names are ambiguous (`'1/trace'`), or by a glob;
    the first of `slots` that fits says the form.
    """

    slots: Any

    def _map(self, fn: Callable[[Any, Any], Any], state: Any) -> Any:
        """The inner state with `fn(form, leaf)` in place of the leaves of the chosen slots."""

        def map_leaves(form: Any, tree: Any) -> Any:
            return jax.tree.map(lambda x: fn(form, x), tree, is_leaf=is_coded)

        return self._map_slots(map_leaves, state)

    def _map_slots(self, fn: Callable[[Any, Any], Any], state: Any) -> Any:
        """The inner state with `fn(form, slot)` in place of the chosen slots."""

        def map_slot(path: str, tree: Any) -> Any:
            form = next((form for pattern, form in self.slots if _fits(pattern, path)), None)
            return tree if form is None else fn(form, tree)

        return map_slots(map_slot, state)

    def _check_names(self, state: Any) -> None:
        slots: dict[str, Any] = {}
        map_slots(slots.setdefault, state)
        for pattern, _ in self.slots:
            chosen = [path for path in slots if _fits(pattern, path)]
            if slots and not chosen:
                raise ValueError(
                    f"{where()}no slot is named {pattern!r}; the slots of this optimizer are "
                    f"{names_text([*slots])}."
                )
            coded = [
                path
                for path in chosen
                if any(map(is_coded, jax.tree.leaves(slots[path], is_leaf=is_coded)))
            ]
            if coded:
                name = type(self).__name__
                raise ValueError(
                    f"{where()}{pattern!r} chooses the slot {coded[0]!r}, which a quantized_state "
                    f"inside keeps in codes. Name other slots, or put {name} inside of that one."
                )

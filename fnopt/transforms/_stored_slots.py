"""Wrappers that keep the slots of an optimizer in another form than it computes with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from fnopt.core import listing, map_slots, matches, where
from fnopt.transforms._wrapper import Wrapper


def pattern_items(given: Any) -> tuple[tuple[str, Any], ...]:
    """A mapping from names of slots as a field that can be hashed."""
    return tuple((str(name), value) for name, value in dict(given).items())


def _fits(pattern: str, path: str) -> bool:
    return pattern == path.rpartition("/")[2] or matches(path, pattern)


class StoredSlots(Wrapper):
    """A wrapper whose inner state has some slots in another form.

    Slots are chosen by name, by their path where names are ambiguous (`'1/trace'`), or by a glob;
    the first of `slots` that fits says the form.
    """

    slots: Any

    def _is_leaf(self, x: Any) -> bool:
        """Whether a node of a slot is one leaf in its stored form."""
        del x
        return False

    def _map(self, fn: Callable[[Any, Any], Any], state: Any) -> Any:
        """The inner state with `fn(form, leaf)` in place of the leaves of the chosen slots."""

        def slot(path: str, tree: Any) -> Any:
            form = next((form for pattern, form in self.slots if _fits(pattern, path)), None)
            if form is None:
                return tree
            return jax.tree.map(lambda x: fn(form, x), tree, is_leaf=self._is_leaf)

        return map_slots(slot, state)

    def _check_names(self, state: Any) -> None:
        found: list[str] = []
        map_slots(lambda path, tree: found.append(path), state)
        for pattern, _ in self.slots:
            if found and not any(_fits(pattern, path) for path in found):
                raise ValueError(
                    f"{where()}no slot is named {pattern!r}; the slots of this optimizer are "
                    f"{listing(found)}."
                )

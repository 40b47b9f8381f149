"""Composition of transforms: chains, wrappers, and checks of extra arguments."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from fnopt.core import (
    ANY,
    EmptyState,
    Member,
    Transformation,
    as_transformation,
    call_text,
    cast_like,
    extra_arg_names,
    static,
)
from fnopt.errors import error_scope, names_text, where


class Wrapper(Transformation):
    """A transform around one `inner` transform; the field `inner_state` is the inner state.

    A wrapper passes all extra arguments of `update` to the inner transform. `State` is None if the
    state is the inner state itself.
    """

    inner: Any  # a Transformation once constructed; another library's pair is taken too

    def __post_init__(self) -> None:
        self._set("inner", as_transformation(self.inner, f"{type(self).__name__}: inner"))
        super().__post_init__()

    def members(self, state: Any = None) -> tuple[Member, ...]:
        """The inner transform, with its name."""
        inner_state = state if state is None or self.State is None else state.inner_state
        return (Member(self.inner._place, self.inner, inner_state),)

    def _first(self, name: str, params: Any) -> Any:
        return self.inner.init(params) if name == "inner_state" else super()._first(name, params)

    def _step_if(
        self,
        holds: jax.Array,
        updates: Any,
        inner_state: Any,
        params: Any,
        extra_args: dict[str, Any],
        otherwise: Any = None,
        prepare: Callable[[Any], Any] = lambda updates: updates,
    ) -> tuple[Any, Any]:
        """Take the inner step if a condition holds, else return other updates and the state."""

        def step() -> tuple[Any, Any]:
            gradients = prepare(updates)
            new, inner = self.inner.update(gradients, inner_state, params, **extra_args)
            # The types of a state never change, because a loop rejects other types.
            return new, cast_like(inner, inner_state)

        def skip() -> tuple[Any, Any]:
            # `cond` requires equal types of both branches; `eval_shape` computes nothing.
            shapes, _ = jax.eval_shape(step)
            other = jax.tree.map(jnp.zeros_like, shapes) if otherwise is None else otherwise
            return cast_like(other, shapes), inner_state

        return jax.lax.cond(holds, step, skip)


Tree = TypeVar("Tree")
State = TypeVar("State")


class Chain(Transformation):
    r"""Transforms applied one after another; made by `chain`.

    .. math:: u^{(0)} = g, \qquad u^{(i)}, s_i' = \mathrm{update}_i(u^{(i-1)}, s_i, \theta)

    Args:
        transforms: The members, in order.
        names: A name for every member; None for unnamed members.

    Example:
        >>> import fnopt
        >>> fnopt.sgd(0.1)
        chain(scale_by_learning_rate(learning_rate=0.1))
    """

    transforms: tuple[Transformation, ...]
    names: tuple[str, ...] | None = static(default=None)

    @property
    def _place(self) -> str:
        return "chain"

    @property
    def other_gradients(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the first member takes gradients of another form than the params."""
        return bool(self.transforms) and self.transforms[0].other_gradients

    @property
    def _keys(self) -> tuple[Any, ...]:
        return self.names or tuple(range(len(self.transforms)))

    def init(self, params: Any) -> Any:
        """The members' states: a tuple, or a dict keyed by name if the members are named."""
        states = []
        for key, tx in zip(self._keys, self.transforms, strict=True):
            with error_scope(f"[{key}]"):
                states.append(tx.init(params))
        return self._pack_states(states)

    def update(
        self, updates: Tree, state: State, params: Any = None, **extra_args: Any
    ) -> tuple[Tree, State]:
        """Pass the updates from member to member; all members receive the extra arguments."""
        states = self._unpack_states(state)
        new_states = []
        for key, tx, member_state in zip(self._keys, self.transforms, states, strict=True):
            with error_scope(f"[{key}]"):
                updates, member_state = tx.update(updates, member_state, params, **extra_args)
            new_states.append(member_state)
        return updates, self._pack_states(new_states)

    def _pack_states(self, states: list[Any]) -> Any:
        return dict(zip(self.names, states, strict=True)) if self.names else tuple(states)

    def _unpack_states(self, state: Any) -> list[Any]:
        if self.names:
            if isinstance(state, dict) and state.keys() == set(self.names):
                return [state[name] for name in self.names]
            expected = f"a dict with the keys {names_text(sorted(self.names))}"
        else:
            # A NamedTuple is the state of some other transform, not one entry per member.
            if type(state) in (tuple, list) and len(state) == len(self.transforms):
                return list(state)
            expected = f"a tuple of {len(self.transforms)}, one for each member"
        keys = f" with the keys {names_text(sorted(state))}" if isinstance(state, dict) else ""
        size = f" of {len(state)}" if type(state) in (tuple, list) else ""
        raise TypeError(
            f"{where()}the state is a {type(state).__name__}{size}{keys}, expected "
            f"{expected}. It looks like the state of another optimizer: use the state "
            "that init(params) returned."
        )

    def members(self, state: Any = None) -> tuple[Member, ...]:
        """Every transform with its state and its name (the given name, or the transform's own)."""
        own = [tx._place for tx in self.transforms]
        times = Counter(own)
        names = self.names or [
            name if times[name] == 1 else f"{name}_{i}" for i, name in enumerate(own)
        ]
        states = [None] * len(own) if state is None else self._unpack_states(state)
        return tuple(map(Member, names, self.transforms, states))

    def __repr__(self) -> str:
        parts = list(map(repr, self.transforms))
        if self.names:
            parts = [f"({n!r}, {p})" for n, p in zip(self.names, parts, strict=True)]
        return call_text("chain", parts)


def _is_named(member: Any) -> bool:
    return isinstance(member, tuple) and len(member) == 2 and isinstance(member[0], str)


def chain(*transforms: Any) -> Chain:
    r"""Apply transforms one after another.

    .. math:: u^{(0)} = g, \qquad u^{(i)}, s_i' = \mathrm{update}_i(u^{(i-1)}, s_i, \theta)

    Args:
        *transforms: Transformations, other libraries' (init, update) pairs, or pairs
            `(name, transform)`; either all members are named or none.

    Returns:
        A transformation. Its state is a tuple of the members' states, or a dict keyed by name if
        the members are named.

    Raises:
        ValueError: If there are no members, if names are repeated, or if only some members have
            names.
        TypeError: If a member isn't an optimizer.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.chain(("clip", fnopt.clip_by_global_norm(1.0)), ("sgd", fnopt.sgd(0.1)))
        >>> sorted(tx.init({"w": jnp.ones(2)}))
        ['clip', 'sgd']
    """
    if not transforms:
        raise ValueError("chain: no transform is given, expected at least one (or identity()).")
    first = transforms[0]
    is_sequence = isinstance(first, (list, tuple)) and all(hasattr(tx, "update") for tx in first)
    if len(transforms) == 1 and is_sequence:
        raise TypeError(
            "chain takes its members one by one: write chain(a, b), or chain(*members)."
        )
    if not any(map(_is_named, transforms)):
        members = enumerate(transforms)
        return Chain(tuple(as_transformation(t, f"chain: member {i}") for i, t in members))
    unnamed = [i for i, t in enumerate(transforms) if not _is_named(t)]
    if unnamed:
        raise ValueError(
            f"chain: members {unnamed} have no name, others have: name all members or none."
        )
    names = tuple(name for name, _ in transforms)
    repeated = [name for name, times in Counter(names).items() if times > 1]
    if repeated:
        raise ValueError(f"chain: the names {names_text(repeated)} are used more than once.")
    return Chain(tuple(as_transformation(t, f"chain: member {n!r}") for n, t in transforms), names)


def states_of(state: Any, kind: type) -> list[Any]:
    """All states of a class inside a state."""
    if isinstance(state, kind):
        return [state]
    if isinstance(state, EmptyState) or not isinstance(state, (tuple, list, dict)):
        return []
    parts = state.values() if isinstance(state, dict) else state
    return [found for part in parts for found in states_of(part, kind)]


def find_state(state: Any, kind: type, who: str, maker: str) -> Any:
    """Find the only state of a class inside a state.

    Raises:
        ValueError: If there is no such state, or more than one.
    """
    found = states_of(state, kind)
    _check_number(len(found), who, maker)
    return found[0]


def _check_number(found: int, who: str, maker: str, what: str = "in this state") -> None:
    if found != 1:
        raise ValueError(
            f"{who}: {found} states of {maker} are {what}, expected one. Give the "
            "optimizer's state, as its update returned it; get one of several by "
            "fnopt.named(tx, state)."
        )


def read_slot(
    params: Any,
    state: Any,
    kind: type,
    slot: str,
    read: Callable[[Any, Any, Any], Any],
    who: str,
    maker: str,
) -> Any:
    """Replace params by `read(state, p, slot leaf)` wherever a state of a class has a slot.

    Several states may have the slots of different leaves, as in a partition. A leaf without a slot
    (frozen, or excluded by a mask) stays the param itself.

    Raises:
        ValueError: If there is no such state, or if several states have a slot for the same leaf.
    """
    found = states_of(state, kind)
    _check_number(min(len(found), 1), who, maker)
    leaves, treedef = jax.tree.flatten(params)
    try:
        columns = [treedef.flatten_up_to(getattr(kept, slot)) for kept in found]
    except ValueError:
        raise ValueError(
            f"{who}: the state and the params have different structures, expected the params that "
            f"the state was made for. Inside of flatten slots are vectors: put {maker} around it."
        ) from None

    def read_leaf(p: Any, *parts: Any) -> Any:
        own = [(kept, x) for kept, x in zip(found, parts, strict=True) if x is not None]
        _check_number(max(len(own), 1), who, maker, "of one leaf")
        return read(own[0][0], p, own[0][1]) if own else p

    return treedef.unflatten(map(read_leaf, leaves, *columns))


class strict(Wrapper):
    """Raise an error for unknown extra arguments, and report all missing ones at once.

    Every `update` accepts any extra argument, so that one call works for all members of a chain.
    Therefore a misspelled argument is ignored. With `strict` around the whole optimizer, a
    misspelled argument raises an error while the step is traced. The state is the inner optimizer's
    state, so you can add or remove the wrapper during training.

    The known names are the keyword-only parameters of `update` (see `Transformation.reads`).
    Functions given as extra arguments, such as `value_fn`, add the names of their own parameters.
    If a transform of another library has `**kwargs`, every name is known.

    Args:
        inner: The optimizer, of fnopt or any (init, update) pair.

    Raises:
        TypeError: From `update`, if an extra argument is unknown or missing.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.strict(fnopt.chain(fnopt.sgd(0.1), fnopt.reduce_on_plateau()))
        >>> tx.needs
        ('value',)
        >>> params = {"w": jnp.ones(2)}
        >>> tx.update(params, tx.init(params), params, value=1.0, los=2.0)
        Traceback (most recent call last):
        ...
        TypeError: strict: update got ['los'], which none of its members takes; it takes ['value'].
    """

    State = None

    @property
    def other_gradients(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the inner transform takes gradients of another form than the params."""
        return self.inner.other_gradients

    def reads(self) -> Mapping[str, bool]:
        """Any name, because `strict` checks every name."""
        return {ANY: False}

    def update(
        self, updates: Any, state: Any, params: Any = None, **extra_args: Any
    ) -> tuple[Any, Any]:
        """Return the inner updates, if all argument names are known."""
        _check_names(self.inner, extra_args)
        return self.inner.update(updates, state, params, **extra_args)


def _check_names(tx: Transformation, given: dict[str, Any]) -> None:
    known = extra_arg_names(tx, given)
    unknown = [] if ANY in known else sorted(given.keys() - known)
    missing = [name for name in tx.needs if name not in given]
    parts = []
    if unknown:
        near = {name: difflib.get_close_matches(name, sorted(known), n=1) for name in unknown}
        hints = [f"{found[0]!r} for {name!r}" for name, found in near.items() if found]
        hint = f" (did you mean {', '.join(hints)}?)" if hints else ""
        parts.append(f"got {names_text(unknown)}, which none of its members takes{hint}")
    if missing:
        parts.append(f"needs {names_text(missing)}, which it did not get")
    if unknown or (missing and not known):
        parts.append(f"it takes {names_text(sorted(known - {ANY}))}" if known else "it takes none")
    if parts:
        raise TypeError(f"{where()}update {'; '.join(parts)}.")

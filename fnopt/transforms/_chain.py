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
from fnopt.errors import error_scope, names_text, unboxed, where


class Wrapper(Transformation):
    """Base class of transforms that wrap one transform, `inner`.

    A wrapper passes all extra arguments of `update` to the inner transform. The field `inner_state`
    of `State` is the inner state. `State` is None if the wrapper's state is the inner state itself.
    """

    inner: Any  # `__post_init__` converts an (init, update) pair to a Transformation

    def __post_init__(self) -> None:
        self._set("inner", as_transformation(self.inner, f"{type(self).__name__}: inner"))
        super().__post_init__()

    def members(self, state: Any = None) -> tuple[Member, ...]:
        """The inner transform, named after its class."""
        inner_state = state if state is None or self.State is None else state.inner_state
        return (Member(self.inner._place, self.inner, inner_state),)

    def _init_field(self, name: str, params: Any) -> Any:
        is_inner = name == "inner_state"
        return self.inner.init(params) if is_inner else super()._init_field(name, params)

    def _step_if(
        self,
        condition: jax.Array,
        updates: Any,
        inner_state: Any,
        params: Any,
        extra_args: dict[str, Any],
        otherwise: Any = None,
        prepare: Callable[[Any], Any] = lambda updates: updates,
    ) -> tuple[Any, Any]:
        """Take the inner step if `condition` is True, else return `otherwise` or zeros."""

        def step() -> tuple[Any, Any]:
            gradients = prepare(updates)
            new_updates, new_state = self.inner.update(gradients, inner_state, params, **extra_args)
            # `jax.lax.cond` and `scan` require that the dtypes of a state don't change.
            return new_updates, cast_like(new_state, inner_state)

        def skip() -> tuple[Any, Any]:
            # `cond` requires equal dtypes in both branches; `eval_shape` doesn't compute the step.
            shapes, _ = jax.eval_shape(step)
            other = jax.tree.map(jnp.zeros_like, shapes) if otherwise is None else otherwise
            return cast_like(other, shapes), inner_state

        return jax.lax.cond(condition, step, skip)


Tree = TypeVar("Tree")
State = TypeVar("State")


class Chain(Transformation):
    r"""Composition of transforms, as `chain` returns it.

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
        """Whether the first member accepts gradients whose structure differs from the params."""
        return bool(self.transforms) and self.transforms[0].other_gradients

    @property
    def _keys(self) -> tuple[Any, ...]:
        return self.names or tuple(range(len(self.transforms)))

    def init(self, params: Any) -> Any:
        """Initialize all members: a tuple of states, or a dict keyed by name for named members."""
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
            # A NamedTuple of the same length is the state of another transform, not of the members.
            if type(state) in (tuple, list) and len(state) == len(self.transforms):
                return list(state)
            expected = f"a tuple of length {len(self.transforms)}, the states of the members"
        keys = f" with the keys {names_text(sorted(state))}" if isinstance(state, dict) else ""
        size = f" of length {len(state)}" if type(state) in (tuple, list) else ""
        raise TypeError(
            f"{where()}the state is a {type(state).__name__}{size}{keys}, expected "
            f"{expected}. Use the state that init(params) of this optimizer returned."
        )

    def members(self, state: Any = None) -> tuple[Member, ...]:
        """The transforms with their states; unnamed members get the names of their classes."""
        class_names = [tx._place for tx in self.transforms]
        occurrences = Counter(class_names)
        names = self.names or [
            name if occurrences[name] == 1 else f"{name}_{i}" for i, name in enumerate(class_names)
        ]
        states = [None] * len(names) if state is None else self._unpack_states(state)
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
            `(name, transform)`. Name all members or none.

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
        raise ValueError("chain: got no transform, expected at least one (or identity()).")
    first = transforms[0]
    is_sequence = isinstance(first, (list, tuple)) and all(hasattr(tx, "update") for tx in first)
    if len(transforms) == 1 and is_sequence:
        raise TypeError(
            "chain: got one list of members, expected one argument per member. Write chain(a, b), "
            "or chain(*members)."
        )
    if not any(map(_is_named, transforms)):
        members = enumerate(transforms)
        return Chain(tuple(as_transformation(t, f"chain: member {i}") for i, t in members))
    unnamed = [i for i, t in enumerate(transforms) if not _is_named(t)]
    if unnamed:
        raise ValueError(
            f"chain: members {unnamed} have no name, expected names for all members or for none."
        )
    names = tuple(name for name, _ in transforms)
    duplicates = [name for name, occurrences in Counter(names).items() if occurrences > 1]
    if duplicates:
        text = f"chain: the names {names_text(duplicates)} are used more than once"
        raise ValueError(f"{text}, expected a different name for every member.")
    return Chain(tuple(as_transformation(t, f"chain: member {n!r}") for n, t in transforms), names)


def states_of(state: Any, kind: type) -> list[Any]:
    """Find all states of a class inside a state."""
    if isinstance(state, kind):
        return [state]
    if isinstance(state, EmptyState) or not isinstance(state, (tuple, list, dict)):
        return []
    parts = state.values() if isinstance(state, dict) else state
    return [x for part in parts for x in states_of(part, kind)]


def find_state(state: Any, kind: type, who: str, maker: str) -> Any:
    """Find the only state of a class inside a state.

    Raises:
        ValueError: If `state` contains no state of the class, or more than one.
    """
    states = states_of(unboxed(state), kind)
    _check_single(len(states), who, maker)
    return states[0]


def _check_single(number: int, who: str, maker: str, what: str = "in this state") -> None:
    if number != 1:
        raise ValueError(
            f"{who}: got {number} states of {maker} {what}, expected one. Pass the state that the "
            "optimizer's update returned, or one of several states by fnopt.named(tx, state)[name]."
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

    Several states may have slots for different leaves, as in a partition. A param without a slot
    (frozen, or excluded by a mask) is returned unchanged.

    Raises:
        ValueError: If `state` contains no state of the class, or several with a slot for one leaf.
    """
    states = states_of(unboxed(state), kind)
    _check_single(min(len(states), 1), who, maker)
    (leaves, treedef), structure = jax.tree.flatten(params), jax.tree.structure(unboxed(params))
    try:
        columns = [structure.flatten_up_to(getattr(x, slot)) for x in states]
    except ValueError:
        raise ValueError(
            f"{who}: the state and the params have different structures, expected the params of "
            f"this state (flax: nnx.state(model, nnx.Param)), and {maker} around flatten, if any."
        ) from None

    def read_leaf(p: Any, *slots: Any) -> Any:
        pairs = [(s, x) for s, x in zip(states, slots, strict=True) if x is not None]
        _check_single(max(len(pairs), 1), who, maker, "for one leaf")
        return read(pairs[0][0], p, pairs[0][1]) if pairs else p

    return treedef.unflatten(map(read_leaf, leaves, *columns))


class strict(Wrapper):
    """Raise an error for unknown extra arguments, and report all missing arguments at once.

    Every `update` accepts any extra argument, so that one call works for all members of a chain.
    Therefore a misspelled argument is ignored. With `strict` around the whole optimizer, a
    misspelled argument raises an error while the step is traced. The state is the inner optimizer's
    state, so you can add or remove the wrapper during training.

    The known names are the keyword-only parameters of the members' `update` (see
    `Transformation.reads`) and the parameters of the extra argument `value_fn`. If the `update` of
    another library's transform has `**kwargs`, every name is known.

    Args:
        inner: The optimizer, a `Transformation` or any (init, update) pair.

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
        TypeError: strict: update got the arguments ['los'], which no transform reads; ...
    """

    State = None

    @property
    def other_gradients(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the inner transform accepts gradients whose structure differs from the params."""
        return self.inner.other_gradients

    def reads(self) -> Mapping[str, bool]:
        """Accept any name, because `update` checks all names."""
        return {ANY: False}

    def update(
        self, updates: Any, state: Any, params: Any = None, **extra_args: Any
    ) -> tuple[Any, Any]:
        """Return the inner updates, if all argument names are known."""
        _check_names(self.inner, extra_args)
        return self.inner.update(updates, state, params, **extra_args)


def _check_names(tx: Transformation, extra_args: dict[str, Any]) -> None:
    names = extra_arg_names(tx, extra_args)
    unknown = [] if ANY in names else sorted(extra_args.keys() - names)
    missing = [name for name in tx.needs if name not in extra_args]
    parts = []
    if unknown:
        matches = {name: difflib.get_close_matches(name, sorted(names), n=1) for name in unknown}
        hints = [f"{match[0]!r} for {name!r}" for name, match in matches.items() if match]
        hint = f" (did you mean {', '.join(hints)}?)" if hints else ""
        parts.append(f"got the arguments {names_text(unknown)}, which no transform reads{hint}")
    if missing:
        parts.append(f"needs the missing arguments {names_text(missing)}")
    if unknown or (missing and not names):
        parts.append(f"expected {names_text(sorted(names - {ANY})) if names else 'no argument'}")
    if parts:
        raise TypeError(f"{where()}update {'; '.join(parts)}.")

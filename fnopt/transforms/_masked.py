"""Transforms of selected leaves: masks, frozen parameters and partitions."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fnopt.core import Member, Transformation, as_transformation, static, translate_extra_args
from fnopt.errors import error_scope, leaves_with_names, names_text, where
from fnopt.numerics import dtype_of, is_array_like, is_inexact
from fnopt.transforms._chain import Wrapper
from fnopt.transforms._select import as_label, as_labels, as_mask, select, select_mask


class MaskedState(NamedTuple):
    """State of the inner transform, for the selected leaves only."""

    inner_state: Any


def keep_selected(chosen: Any, tree: Any) -> Any:
    """Keep the leaves where `chosen` is True; replace all other leaves by None, an empty tree."""
    return jax.tree.map(lambda c, x: x if c else None, chosen, tree)


def merge_masked(chosen: Any, tree: Any, other: Any) -> Any:
    """Take the leaves of `tree` where `chosen` is True, and the leaves of `other` elsewhere."""
    return jax.tree.map(lambda c, x, y: x if c else y, chosen, tree, other)


class Selective(Wrapper):
    """A wrapper whose inner transform receives the selected leaves, and None for all other leaves.

    Extra arguments that are functions of the params (`value_fn`, `obj_fn` ...) become functions of
    the selected leaves.
    """

    # If False, the other leaves get updates too, so they need gradients.
    _others_stay: ClassVar[bool] = False

    mask: Any = static(convert=as_mask)

    def _select(self, tree: Any) -> Any:
        """Mask of the leaves of the inner transform."""
        return select_mask(self.mask, tree)

    def _updates_of_others(self, updates: Any, params: Any) -> Any:
        """Updates of the leaves outside of the inner transform, as a tree."""
        raise NotImplementedError

    def left_out(self, params: Any) -> Any:
        """Mask of the leaves that don't change, including the inner transform's frozen leaves."""
        chosen = self._select(params)
        others = jax.tree.map(lambda _: self._others_stay, chosen)
        return merge_masked(chosen, self.inner.left_out(keep_selected(chosen, params)), others)

    def init(self, params: Any) -> MaskedState:
        """Return the inner state for the selected leaves."""
        return MaskedState(self.inner.init(keep_selected(self._select(params), params)))

    def update(
        self, updates: Any, state: MaskedState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, MaskedState]:
        """Join the inner updates of the selected leaves with the updates of all other leaves."""
        # The params decide if they are given, because `init` saw their dtypes; gradients may have
        # others.
        chosen = self._select(updates if params is None else params)
        inward = functools.partial(keep_selected, chosen)
        inner_params = None if params is None else inward(params)
        if params is not None:
            extra_args = translate_extra_args(
                extra_args, inward, lambda p: merge_masked(chosen, p, params)
            )
        # Levenberg-Marquardt takes no gradient.
        inner_updates = None if updates is None else inward(updates)
        inside, inner_state = self.inner.update(
            inner_updates, state.inner_state, inner_params, **extra_args
        )
        return merge_masked(chosen, inside, self._updates_of_others(updates, params)), MaskedState(
            inner_state
        )


class masked(Selective):
    r"""Apply a transform to the selected leaves; the updates of all other leaves pass unchanged.

    .. math:: u_\ell = \begin{cases} \mathrm{inner}(g)_\ell & m_\ell \\
              g_\ell & \text{otherwise} \end{cases}

    The inner transform receives None for the other leaves, and has no state for them. The updates
    of unselected leaves are *gradients*. Use `masked` for a part of a chain, and `freeze` for
    params that should not change.

    Args:
        inner: The transform for the selected leaves, of fnopt or any (init, update) pair.
        mask: The selected leaves: a tree of bools with the structure of the params or a prefix of
            it, a pattern on the leaf path (`'*/bias'`), `by_pattern` or `by_path`.

    Raises:
        TypeError: If `mask` is a bare function or has leaves that are not bools.
        ValueError: If leaves have no label, or the mask matches no leaf of the params.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.masked(fnopt.clip(1.0), "*/bias")
        >>> grads = {"kernel": 3 * jnp.ones(2), "bias": 3 * jnp.ones(2)}
        >>> tx.update(grads, tx.init(grads))[0]
        {'bias': Array([1., 1.], dtype=float32), 'kernel': Array([3., 3.], dtype=float32)}
    """

    def _updates_of_others(self, updates: Any, params: Any) -> Any:
        return jax.tree.map(lambda _: None, params) if updates is None else updates


class freeze(Selective):
    r"""Freeze the selected parameters, and train all other parameters.

    .. math:: u_\ell = \begin{cases} 0 & m_\ell \\
              \mathrm{inner}(g)_\ell & \text{otherwise} \end{cases}

    Frozen leaves have no state, and their gradients are ignored, so they may be NaN or None. You
    can also freeze integers (a counter inside a model), keys of `jax.random` and functions. Put
    `freeze` around the whole optimizer, so that no other transform sees the frozen leaves. Where
    the gradient is None, the update is None.

    Args:
        inner: The optimizer of the other leaves, of fnopt or any (init, update) pair.
        mask: The leaves to freeze, in any form that `masked` takes.

    Raises:
        TypeError: If `mask` is a bare function or has leaves that are not bools.
        ValueError: If leaves have no label, or the mask matches no leaf of the params.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.freeze(fnopt.adam(0.1), "encoder/*")
        >>> params = {"encoder": {"w": jnp.ones(2)}, "head": {"w": jnp.ones(2)}}
        >>> fnopt.slots(tx.init(params))["mu"]
        {'encoder': {'w': None}, 'head': {'w': Array([0., 0.], dtype=float32)}}
        >>> tx.update(params, tx.init(params), params)[0]["encoder"]
        {'w': Array([0., 0.], dtype=float32)}
    """

    _others_stay = True

    def _select(self, tree: Any) -> Any:
        return jax.tree.map(lambda frozen: not frozen, super()._select(tree))

    def _updates_of_others(self, updates: Any, params: Any) -> Any:
        updates = params if updates is None else updates
        return jax.tree.map(_no_update, updates, updates if params is None else params)


def _no_update(g: Any, p: Any) -> Any:
    """Return a zero update, in the gradient's dtype for floating params, else in the param's dtype.

    For a key of `jax.random`, to which no number can be added, return zeros of dtype `float0`, like
    `jax.grad(allow_int=True)`. For other objects, return None.
    """
    if not is_array_like(p):
        return None
    dtype = dtype_of(g if is_inexact(p) else p)
    if dtype == jax.dtypes.float0 or jnp.issubdtype(dtype, jax.dtypes.prng_key):
        # JAX's gradients of integers and keys have this dtype.
        return np.zeros(jnp.shape(p), jax.dtypes.float0)
    return jnp.zeros_like(p, dtype=dtype)


class partition(Transformation):
    r"""Apply a transform to every leaf, selected by the leaf's label.

    .. math:: u_\ell = \mathrm{tx}_{c(\ell)}(g)_\ell

    Every transform receives the leaves with its label, and None for all other leaves, and has state
    for its leaves only. Extra arguments are passed to all transforms.

    Args:
        transforms: A dict from label to transform, of fnopt or any (init, update) pair. Labels are
            strings, ints, or other hashable objects with a unique text (not floats), such as
            members of an enum; the states use this text. A label without leaves is allowed.
        labels: The label of every leaf: a tree of labels with the structure of the params or a
            prefix of it, `by_pattern`, `by_path`, or one label for all leaves.

    Raises:
        TypeError: If `transforms` isn't a dict of optimizers, or `labels` a bare function.
        ValueError: In use, if leaves have no label, or a label has no transform; the message lists
            these leaves or labels.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.partition(
        ...     {"slow": fnopt.sgd(0.1), "fast": fnopt.sgd(1.0)},
        ...     fnopt.by_pattern({"*/bias": "fast"}, default="slow"),
        ... )
        >>> grads = {"kernel": jnp.ones(2), "bias": jnp.ones(2)}
        >>> tx.update(grads, tx.init(grads))[0]
        {'bias': Array([-1., -1.], dtype=float32), 'kernel': Array([-0.1, -0.1], dtype=float32)}
    """

    transforms: dict[Any, Any]
    labels: Any = static(convert=as_labels)

    def __post_init__(self) -> None:
        self._set("transforms", _check_transforms(self.transforms))
        super().__post_init__()

    def init(self, params: Any) -> dict[Any, Any]:
        """Return a dict from label to the state of its transform."""
        labels = self._labels(params)
        states = {}
        with self._scope(params):
            for label, tx in self.transforms.items():
                with error_scope(f"[{label}]"):
                    states[label] = tx.init(_select_label(labels, label, params))
        return states

    def update(
        self, updates: Any, state: dict[Any, Any], params: Any = None, **extra_args: Any
    ) -> tuple[Any, dict[Any, Any]]:
        """Join the updates of every label's transform."""
        self._check_state(state)
        if updates is None and jax.tree.leaves(params):
            raise ValueError(
                f"{where()}the gradients are None, expected the tree of the params. Put a "
                "method without gradients inside fnopt.freeze or fnopt.masked."
            )
        whole = updates if params is None else params
        labels = self._labels(whole)
        new_state, merged = {}, updates
        with self._scope(whole):
            for label, tx in self.transforms.items():
                inward = functools.partial(_select_label, labels, label)
                mine, extras = None, extra_args
                if params is not None:
                    mine = inward(params)
                    outward = functools.partial(_replace_label, labels, label, old=params)
                    extras = translate_extra_args(extra_args, inward, outward)
                with error_scope(f"[{label}]"):
                    new, new_state[label] = tx.update(inward(updates), state[label], mine, **extras)
                merged = _replace_label(labels, label, new, merged)
        return merged, new_state

    def left_out(self, params: Any) -> Any:
        """Mask of the leaves that don't change, from every label's transform."""
        found = labels = self._labels(params)
        for label, tx in self.transforms.items():
            out = tx.left_out(_select_label(labels, label, params))
            found = _replace_label(labels, label, out, found)
        return found

    def members(self, state: Any = None) -> tuple[Member, ...]:
        """The transforms, keyed by label."""
        states = dict.fromkeys(self.transforms) if state is None else state
        return tuple(Member(str(label), tx, states[label]) for label, tx in self.transforms.items())

    def _scope(self, tree: Any) -> Any:
        """Context in which the transforms can read the labels of all leaves."""
        return getattr(self.labels, "scope", contextlib.nullcontext)(tree)

    def _labels(self, tree: Any) -> Any:
        # Labels match by their text, whatever their type.
        by_text = {str(k): k for k in self.transforms}
        labels = jax.tree.map(lambda x: by_text.get(str(x), x), select(self.labels, tree))
        found = leaves_with_names(labels)[0]
        unknown = [path for path, label in found if label not in self.transforms]
        if unknown:
            names = sorted({repr(label) for _, label in found if label not in self.transforms})
            raise ValueError(
                f"{where()}leaves {names_text(unknown)} have the labels [{', '.join(names)}], but "
                f"there are transforms for {names_text(sorted(map(str, self.transforms)))} only."
            )
        return labels

    def _check_state(self, state: Any) -> None:
        if isinstance(state, dict) and state.keys() == self.transforms.keys():
            return
        came = (
            names_text(sorted(map(str, state))) if isinstance(state, dict) else type(state).__name__
        )
        raise TypeError(
            f"{where()}the state is {came}, expected a dict with the labels "
            f"{names_text(sorted(map(str, self.transforms)))}. It looks like the state of "
            "another optimizer: use the state that init(params) returned."
        )


class FrozenDict(dict[Any, Any]):
    """Immutable dict from labels to transforms, a field of the immutable `partition`."""

    def __setitem__(self, key: Any, value: Any) -> None:
        raise TypeError(
            f"transforms[{key!r}] = ...: values of fnopt are immutable. Make a new one: "
            f"partition({{**old.transforms, label: new}}, old.labels)."
        )

    # Pickle fills a dict by `__setitem__`, which raises here.
    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenDict, (dict(self),)


jax.tree_util.register_pytree_with_keys(
    FrozenDict,
    lambda d: (tuple((jax.tree_util.DictKey(k), v) for k, v in d.items()), tuple(d)),
    lambda keys, values: FrozenDict(zip(keys, values, strict=True)),
)


def _check_transforms(transforms: Any) -> FrozenDict:
    if not isinstance(transforms, Mapping):
        raise TypeError(
            f"{where()}partition: transforms = {transforms!r}, expected a dict from label to "
            "optimizer."
        )
    named: dict[Any, Any] = {as_label(k, "partition: a label"): tx for k, tx in transforms.items()}
    if not any(all(isinstance(k, kind) for k in named) for kind in (str, int)):
        named = {str(label): tx for label, tx in named.items()}
    if len(named) < len(transforms):
        raise ValueError(
            f"{where()}partition: two of the labels {list(transforms)} have the same "
            "text, expected different ones."
        )
    # Labels are sorted, as JAX sorts the keys of a dict, so that their order never distinguishes
    # two values.
    labels = sorted(named)
    return FrozenDict(
        (k, as_transformation(named[k], f"partition: transforms[{k!r}]")) for k in labels
    )


def _select_label(labels: Any, label: Any, tree: Any) -> Any:
    mine = keep_selected(jax.tree.map(lambda x: x == label, labels), tree)
    # The tree is one leaf with another label; `None` would mean that there are no params.
    return () if mine is None and tree is not None else mine


def _replace_label(labels: Any, label: Any, new: Any, old: Any) -> Any:
    return jax.tree.map(lambda x, n, o: n if x == label else o, labels, new, old)

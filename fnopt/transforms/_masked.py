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


def keep_selected(mask: Any, tree: Any) -> Any:
    """Replace the leaves where `mask` is False by None, which JAX treats as an empty tree."""
    return jax.tree.map(lambda m, x: x if m else None, mask, tree)


def merge_masked(mask: Any, tree: Any, other: Any) -> Any:
    """Select the leaves of `tree` where `mask` is True, and the leaves of `other` elsewhere."""
    return jax.tree.map(lambda m, x, y: x if m else y, mask, tree, other)


class Selective(Wrapper):
    """Wrapper whose inner transform receives the selected leaves, and None for all other leaves.

    Extra arguments that are functions of the params (`value_fn`, `obj_fn` ...) become functions of
    the selected leaves.
    """

    # Whether the other leaves don't change. If they change, they need gradients.
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
        mask = self._select(params)
        other_mask = jax.tree.map(lambda _: self._others_stay, mask)
        return merge_masked(mask, self.inner.left_out(keep_selected(mask, params)), other_mask)

    def init(self, params: Any) -> MaskedState:
        """Return the inner state for the selected leaves."""
        return MaskedState(self.inner.init(keep_selected(self._select(params), params)))

    def update(
        self, updates: Any, state: MaskedState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, MaskedState]:
        """Join the inner updates of the selected leaves with the updates of all other leaves."""
        # The mask depends on dtypes. `init` computed the mask from the params, whose dtypes may
        # differ from the dtypes of the gradients.
        mask = self._select(updates if params is None else params)
        inward = functools.partial(keep_selected, mask)
        inner_params = None if params is None else inward(params)
        if params is not None:
            extra_args = translate_extra_args(
                extra_args, inward, lambda p: merge_masked(mask, p, params)
            )
        # For Levenberg-Marquardt, the updates are None.
        inner_updates = None if updates is None else inward(updates)
        inner_updates, inner_state = self.inner.update(
            inner_updates, state.inner_state, inner_params, **extra_args
        )
        other_updates = self._updates_of_others(updates, params)
        return merge_masked(mask, inner_updates, other_updates), MaskedState(inner_state)


class masked(Selective):
    r"""Apply a transform to the selected leaves; the updates of all other leaves pass unchanged.

    .. math:: u_\ell = \begin{cases} \mathrm{inner}(g)_\ell & m_\ell \\
              g_\ell & \text{otherwise} \end{cases}

    The inner transform receives None in place of unselected leaves, and stores no state for
    unselected leaves, whose updates are *gradients*. Use `masked` for a part of a chain, and
    `freeze` for params that should not change.

    Args:
        inner: The transform for the selected leaves, a `Transformation` or any (init, update) pair.
        mask: The selected leaves: a tree of bools with the structure of the params or a prefix of
            it, a pattern on the leaf path (`'*/bias'`), `by_pattern` or `by_path`.

    Raises:
        TypeError: If `mask` is a plain function or has leaves that are not bools.
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

    Frozen leaves have no state. The gradients of frozen leaves are ignored, so the gradients may be
    NaN or None; the update for None is None. You can also freeze integers (a counter inside a
    model), keys of `jax.random` and functions. Put `freeze` around the whole optimizer, so that
    other transforms don't receive the frozen leaves.

    Args:
        inner: The optimizer of the other leaves, a `Transformation` or any (init, update) pair.
        mask: The leaves to freeze, in any form that `masked` accepts.

    Raises:
        TypeError: If `mask` is a plain function or has leaves that are not bools.
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
    """Make a zero update, in the gradient's dtype for floating params, else in the param's dtype.

    For a key of `jax.random`, the zeros have the dtype `float0`, as in `jax.grad(allow_int=True)`.
    For objects that aren't arrays, the result is None.
    """
    if not is_array_like(p):
        return None
    dtype = dtype_of(g if is_inexact(p) else p)
    if dtype == jax.dtypes.float0 or jnp.issubdtype(dtype, jax.dtypes.prng_key):
        return np.zeros(jnp.shape(p), jax.dtypes.float0)
    return jnp.zeros_like(p, dtype=dtype)


class partition(Transformation):
    r"""Apply a transform to every leaf, selected by the leaf's label.

    .. math:: u_\ell = \mathrm{tx}_{c(\ell)}(g)_\ell

    Every transform receives the leaves with its label, and None in place of all other leaves. A
    transform stores state only for leaves with its label. All transforms receive the extra
    arguments.

    Args:
        transforms: A dict from label to transform (a `Transformation` or any (init, update) pair).
            Labels are strings, ints, or other hashable objects with a unique text (not floats),
            such as members of an enum; the states use this text. A label may have no leaves.
        labels: The label of every leaf: a tree of labels with the structure of the params or a
            prefix of it, `by_pattern`, `by_path`, or one label for all leaves.

    Raises:
        TypeError: If `transforms` isn't a dict of optimizers, or `labels` is a plain function.
        ValueError: From `init` and `update`, if leaves have no label, or a label has no transform;
            the message lists these leaves or labels.

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
        """Apply the transform of every label to its leaves, and join the updates."""
        self._check_state(state)
        if updates is None and jax.tree.leaves(params):
            raise ValueError(
                f"{where()}the gradients are None, expected a tree like the params. Wrap an "
                "optimizer that needs no gradients in fnopt.freeze or fnopt.masked."
            )
        tree = updates if params is None else params
        labels = self._labels(tree)
        new_state, new_updates = {}, updates
        with self._scope(tree):
            for label, tx in self.transforms.items():
                inward = functools.partial(_select_label, labels, label)
                inner_params, inner_args = None, extra_args
                if params is not None:
                    inner_params = inward(params)
                    outward = functools.partial(_replace_label, labels, label, old=params)
                    inner_args = translate_extra_args(extra_args, inward, outward)
                with error_scope(f"[{label}]"):
                    label_updates, new_state[label] = tx.update(
                        inward(updates), state[label], inner_params, **inner_args
                    )
                new_updates = _replace_label(labels, label, label_updates, new_updates)
        return new_updates, new_state

    def left_out(self, params: Any) -> Any:
        """Mask of the leaves that don't change, according to the transforms of their labels."""
        mask = labels = self._labels(params)
        for label, tx in self.transforms.items():
            label_mask = tx.left_out(_select_label(labels, label, params))
            mask = _replace_label(labels, label, label_mask, mask)
        return mask

    def members(self, state: Any = None) -> tuple[Member, ...]:
        """The transforms, named by their labels."""
        states = dict.fromkeys(self.transforms) if state is None else state
        return tuple(Member(str(label), tx, states[label]) for label, tx in self.transforms.items())

    def _scope(self, tree: Any) -> Any:
        """Context in which the transforms can read the labels of all leaves."""
        return getattr(self.labels, "scope", contextlib.nullcontext)(tree)

    def _labels(self, tree: Any) -> Any:
        # Labels of different types are equal if their texts are equal.
        keys = {str(k): k for k in self.transforms}
        labels = jax.tree.map(lambda x: keys.get(str(x), x), select(self.labels, tree))
        unknown = [(p, x) for p, x in leaves_with_names(labels)[0] if x not in self.transforms]
        if unknown:
            paths, names = [p for p, _ in unknown], sorted({repr(x) for _, x in unknown})
            raise ValueError(
                f"{where()}leaves {names_text(paths)} have the labels [{', '.join(names)}], "
                f"expected the labels of the transforms: {names_text(sorted(map(str, keys)))}."
            )
        return labels

    def _check_state(self, state: Any) -> None:
        if isinstance(state, dict) and state.keys() == self.transforms.keys():
            return
        text = type(state).__name__
        if isinstance(state, dict):
            text = f"a dict with the keys {names_text(sorted(map(str, state)))}"
        raise TypeError(
            f"{where()}the state is {text}, expected a dict with the keys "
            f"{names_text(sorted(map(str, self.transforms)))}. Use the state that init(params) of "
            "this optimizer returned."
        )


class FrozenDict(dict[Any, Any]):
    """Immutable dict from labels to transforms, a field of the immutable `partition`."""

    def __setitem__(self, key: Any, value: Any) -> None:
        raise TypeError(
            f"transforms[{key!r}] = ...: the transforms of a partition are immutable. Make a new "
            f"partition: partition({{**old.transforms, label: new}}, old.labels)."
        )

    # By default, pickle fills a dict with `__setitem__`, which raises an error.
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
    transform_of: dict[Any, Any] = {
        as_label(k, "partition: a label"): tx for k, tx in transforms.items()
    }
    if not any(all(isinstance(k, kind) for k in transform_of) for kind in (str, int)):
        transform_of = {str(label): tx for label, tx in transform_of.items()}
    if len(transform_of) < len(transforms):
        raise ValueError(
            f"{where()}partition: two of the labels {list(transforms)} have the same "
            "text, expected labels with different texts."
        )
    # Labels are sorted, as JAX sorts the keys of a dict, so that partitions with the same labels in
    # another order are equal.
    labels = sorted(transform_of)
    return FrozenDict(
        (k, as_transformation(transform_of[k], f"partition: transforms[{k!r}]")) for k in labels
    )


def _select_label(labels: Any, label: Any, tree: Any) -> Any:
    selected = keep_selected(jax.tree.map(lambda x: x == label, labels), tree)
    # If the tree is a single leaf with another label, the result is the empty tree `()`. None would
    # mean that there are no params.
    return () if selected is None and tree is not None else selected


def _replace_label(labels: Any, label: Any, new: Any, old: Any) -> Any:
    return jax.tree.map(lambda x, n, o: n if x == label else o, labels, new, old)

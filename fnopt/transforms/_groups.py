"""Hyper-parameters per group of parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fnopt.core import ScalarOrSchedule
from fnopt.errors import names_text, where
from fnopt.transforms._basic import scale_by_schedule
from fnopt.transforms._masked import partition
from fnopt.transforms._select import by_pattern

_REST = "others"


class GroupLabels(by_pattern):
    """Labels by patterns; a pattern that matches no leaf raises an error."""

    def check(self, positions: list[str]) -> None:
        """Raise an error for patterns that match no leaf."""
        # `by_pattern` with a default accepts such patterns, but here a pattern is probably
        # misspelled if its hyper-parameters apply to no leaf.
        unmatched = [pattern for pattern, _ in self.patterns if not self.finds(pattern, positions)]
        if unmatched:
            raise ValueError(
                f"{where()}the groups {names_text(unmatched)} match no leaf, expected patterns "
                f"that match some of the leaves {names_text(positions)}."
            )


def _check_groups(groups: Any, what: str) -> dict[str, Any]:
    if not isinstance(groups, Mapping) or not all(isinstance(k, str) for k in groups):
        raise TypeError(
            f"{where()}{what} = {groups!r}, expected a dict whose keys are patterns of leaf paths, "
            "such as '*/bias' or 'encoder/*'."
        )
    if _REST in groups:
        raise ValueError(
            f"{where()}{what} has the key {_REST!r}, expected another key, because {_REST!r} is "
            "the label of all other leaves."
        )
    return dict(groups)


def param_groups(
    recipe: Callable[..., Any], groups: Mapping[str, Mapping[str, Any]], *args: Any, **kwargs: Any
) -> partition:
    """Override hyper-parameters of an optimizer for groups of leaves.

    Args:
        recipe: A function that returns an optimizer, such as `fnopt.adamw`.
        groups: A mapping from patterns on leaf paths to the arguments that differ for these leaves.
            The first matching pattern applies.
        *args: The arguments for all other leaves, which are also the defaults of the groups.
        **kwargs: The keyword arguments for all other leaves, and defaults of the groups.

    Returns:
        A `partition` with a transform for each group and a transform for all other leaves. Put
        transforms that need all gradients, such as `clip_by_global_norm`, before this partition in
        a chain.

    Raises:
        TypeError: If `recipe` isn't a function, `groups` isn't a dict of dicts, or the recipe has
            no such argument.
        ValueError: In `init` and `update`, if a pattern matches no leaf.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> groups = {"*/bias": {"weight_decay": 0.0}, "encoder/*": {"learning_rate": 0.01}}
        >>> tx = fnopt.param_groups(fnopt.adamw, groups, 0.1, weight_decay=0.5)
        >>> params = {"encoder": {"kernel": jnp.ones(1), "bias": jnp.ones(1)}}
        >>> params |= {"head": {"kernel": jnp.ones(1)}}
        >>> updates, _ = tx.update(params, tx.init(params), params)
        >>> [f"{u[0]:.3f}" for u in (*updates["encoder"].values(), *updates["head"].values())]
        ['-0.100', '-0.015', '-0.150']
    """
    groups = _check_groups(groups, "param_groups: groups")
    if not callable(recipe):
        raise TypeError(
            f"{where()}param_groups: recipe is {recipe!r}, expected a function that makes "
            "an optimizer, followed by its arguments: param_groups(fnopt.adamw, groups, "
            "1e-3)."
        )
    # Arguments are bound by name, so that a group can override a positional argument.
    default_args = dict(inspect.signature(recipe).bind_partial(*args).arguments) | kwargs
    for pattern, group_args in groups.items():
        if not isinstance(group_args, Mapping):
            raise TypeError(
                f"{where()}param_groups: the group {pattern!r} is {group_args!r}, expected a dict "
                "of arguments, such as {'learning_rate': 1e-4}."
            )
    transforms = {
        pattern: recipe(**(default_args | dict(group_args)))
        for pattern, group_args in groups.items()
    }
    labels = GroupLabels({pattern: pattern for pattern in groups}, default=_REST)
    return partition({**transforms, _REST: recipe(**default_args)}, labels)


def scale_by_group(
    factors: Mapping[str, ScalarOrSchedule], default: ScalarOrSchedule = 1.0
) -> partition:
    r"""Scale every leaf by the factor of its group: :math:`u_\ell = c_\ell\, g_\ell`.

    After an optimizer, the factors multiply the learning rate and the decoupled weight decay of
    each leaf.

    Args:
        factors: A mapping from patterns on leaf paths to numbers or `Schedule`s. The first matching
            pattern applies.
        default: The factor of all other leaves.

    Returns:
        A `partition`.

    Raises:
        TypeError: If `factors` isn't a dict.
        ValueError: In `init` and `update`, if a pattern matches no leaf.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx = fnopt.chain(fnopt.sgd(1.0), fnopt.scale_by_group({"*/bias": 2.0}))
        >>> params = {"kernel": jnp.ones(1), "bias": jnp.ones(1)}
        >>> tx.update(params, tx.init(params), params)[0]
        {'bias': Array([-2.], dtype=float32), 'kernel': Array([-1.], dtype=float32)}
    """
    factors = _check_groups(factors, "scale_by_group: factors")
    labels = GroupLabels({pattern: pattern for pattern in factors}, default=_REST)
    factors = {**factors, _REST: default}
    return partition({label: scale_by_schedule(f) for label, f in factors.items()}, labels)


def layer_decay(decay: float, layers: Sequence[str]) -> dict[str, float]:
    r"""Compute factors that decay from the last layer to the first: :math:`c_i = d^{n-i}`.

    For fine-tuning, pass the factors to `scale_by_group`.

    Args:
        decay: :math:`d`, the ratio of the factors of a layer and the next layer.
        layers: A pattern for each of the :math:`n` layers, from the input to the output. If several
            patterns match a leaf, the first pattern applies.

    Returns:
        A dict from patterns to factors. Leaves outside of all layers aren't scaled.

    Raises:
        ValueError: If `decay` isn't positive, or a pattern is repeated.

    Example:
        >>> import fnopt
        >>> fnopt.layer_decay(0.5, ["embed/*", "blocks/0/*", "blocks/1/*"])
        {'embed/*': 0.25, 'blocks/0/*': 0.5, 'blocks/1/*': 1.0}
        >>> factors = fnopt.layer_decay(0.8, ["body/*", "head/*"])
        >>> tx = fnopt.chain(fnopt.adamw(1e-3), fnopt.scale_by_group(factors))

    Reference:
        Howard and Ruder, 2018, arXiv:1801.06146; Clark et al., 2020, arXiv:2003.10555.
    """
    if isinstance(layers, str) or len(set(layers)) != len(layers):
        raise ValueError(
            f"layer_decay: layers = {layers!r}, expected a list of different patterns."
        )
    if not decay > 0:
        raise ValueError(f"layer_decay: decay = {decay}, expected a number > 0.")
    last = len(layers) - 1
    return {pattern: float(decay) ** (last - i) for i, pattern in enumerate(layers)}

"""Statistics of a tree of gradients or updates, per leaf or group of leaves."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from fnopt.core import check_same_tree
from fnopt.errors import names_text, show_report, where
from fnopt.monitor._groups import as_groups, group
from fnopt.monitor._measure import CHEAP, STATISTICS, as_stats, measure, num_shards
from fnopt.sharding import axis_names, check_axis_name, shards_over


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=[*STATISTICS],
    meta_fields=["names", "sizes", "skipped", "shapes"],
)
# `eq=False`, because a comparison of arrays has no single truth value.
@dataclasses.dataclass(frozen=True, eq=False)
class Health:
    """Result of `health`: for each statistic an array over the groups, or None.

    A `Health` is a pytree with static names, which functions under `jax.jit`, `jax.vmap` and
    `jax.lax.scan` can return. `jax.vmap` and `jax.lax.scan` add leading axes.

    Attributes:
        names: The names of the groups; without `groups`, the paths of the leaves.
        sizes: The number of elements of every group.
        skipped: The paths of the leaves that were skipped, because they aren't floating.
        shapes: The shape of every group that is a single leaf; None for other groups.
        norm: Euclidean norm, `[groups]`. Other statistics except the histogram have this shape too.
        max: Largest absolute value.
        mean: Mean; for complex leaves, the mean of the real part.
        rms: Root mean square.
        ratio: Norm divided by the norm of the params; for updates, the relative step length.
        zeros: Fraction of elements that are exactly zero.
        nonfinite: Number of elements that are infinite or NaN.
        histogram: Number of elements in each bin of `histogram_edges()`, `[groups, 32]`.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    skipped: tuple[str, ...] = ()
    shapes: tuple[tuple[int, ...] | None, ...] = ()
    norm: Any = None
    max: Any = None
    mean: Any = None
    rms: Any = None
    ratio: Any = None
    zeros: Any = None
    nonfinite: Any = None
    histogram: Any = None

    @property
    def stats(self) -> tuple[str, ...]:
        """Names of the measured statistics."""
        return tuple(s for s in STATISTICS if getattr(self, s) is not None)

    def __str__(self) -> str:
        """Format as a table if the statistics are concrete, else as `repr`."""
        return (
            self.table() if self.stats and all(map(self._is_concrete, self.stats)) else repr(self)
        )

    _repr_pretty_ = show_report

    def _is_concrete(self, stat: str) -> bool:
        x = getattr(self, stat)
        is_concrete = isinstance(x, (jax.Array, np.ndarray)) and not isinstance(x, Tracer)
        return is_concrete and x.ndim == 1 + (stat == "histogram")

    def as_dict(self) -> dict[str, Any]:
        """Flatten to a dict such as `{'norm/dense/kernel': ...}`, for loggers."""
        return {
            f"{stat}/{name}": getattr(self, stat)[..., i, :]
            if stat == "histogram"
            else getattr(self, stat)[..., i]
            for stat in self.stats
            for i, name in enumerate(self.names)
        }

    def table(self) -> str:
        """Format the statistics as a table; a histogram shows its range of magnitudes."""
        columns = [("", [*self.names])]
        for stat in self.stats:
            values = np.asarray(getattr(self, stat))
            if stat == "histogram":
                columns.append(("exponents", [_exponents(row) for row in values]))
            else:
                columns.append((stat, [f"{x:.3g}" for x in values]))
        lines = _lines(columns)
        if self.skipped:
            lines.append(
                f"skipped, because the dtype isn't floating: {names_text([*self.skipped])}"
            )
        return "\n".join(lines)


def _exponents(row: Any) -> str:
    bins = np.flatnonzero(row)
    return f"2^{2 * bins[0] - 42}..2^{2 * bins[-1] - 40}" if bins.size else "none"


def _lines(columns: list[tuple[str, list[str]]]) -> list[str]:
    rows: Iterable[tuple[str, ...]] = zip(
        *[[title, *cells] for title, cells in columns], strict=True
    )
    widths = [max(map(len, [title, *cells])) for title, cells in columns]
    return [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
        for row in rows
    ]


def health(
    tree: Any, params: Any = None, *, stats: Any = None, groups: Any = None, axis_name: Any = None
) -> Health:
    r"""Compute statistics of the gradients or updates of a step, per leaf or group of leaves.

    .. math::
        \text{norm} = \lVert g_\ell \rVert_2, \quad
        \text{rms} = \frac{\lVert g_\ell \rVert_2}{\sqrt{n_\ell}}, \quad
        \text{ratio} = \frac{\lVert g_\ell \rVert_2}{\lVert \theta_\ell \rVert_2}

    Call `health` inside the jitted step. Only the requested statistics are computed, in float32 for
    16-bit leaves. Non-finite elements make the norm infinite or NaN, and `nonfinite` counts such
    elements. Elements are tested only in steps with a non-finite norm.

    Args:
        tree: Gradients or updates: a tree of floating or complex arrays. Leaves of other types
            are skipped and listed in `skipped`.
        params: The params, a tree of the same structure; needed for the ratio.
        stats: One or several of `'norm'`, `'max'`, `'mean'`, `'rms'`, `'ratio'`, `'zeros'`,
            `'nonfinite'`, `'histogram'`. By default `'norm'`, `'nonfinite'`, and `'ratio'` if
            params are passed.
        groups: The groups of leaves. With `None`, every leaf is a group. With an integer `n`,
            leaves whose paths share the first `n` parts form a group. A list of patterns
            (`'encoder'`, `'*/bias'`), or a dict from names to one or several patterns, defines
            groups by pattern. A leaf belongs to the first matching group, else to `'other'`.
        axis_name: Inside `jax.shard_map`, the named axis, or several axes, over which every leaf is
            split into equal parts (FSDP). The statistics then cover the full leaves, and are equal
            on all devices. If instead the batch is sharded, average the gradients over the devices
            first.

    Returns:
        A `Health` with the statistics and the names of the groups.

    Raises:
        ValueError: If the tree has no floating leaf, a pattern matches no leaf, a statistic is
            unknown, or the ratio is requested without params.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.monitor import health
        >>> grads = {"dense": {"kernel": jnp.full((3, 4), 0.5), "bias": jnp.zeros(4)}}
        >>> print(health(grads, stats=("norm", "max", "zeros")).table())
                          norm  max  zeros
            dense/bias       0    0      1
            dense/kernel  1.73  0.5      0
    """
    if stats is None:
        stats = [s for s in CHEAP if s != "ratio" or params is not None]
    stats = as_stats(stats)
    if "ratio" in stats and params is None:
        raise ValueError(
            f"{where()}health: params is None, expected a tree like the gradients, because the "
            "statistic 'ratio' needs the params. Call health(tree, params)."
        )
    grouping = group(tree, as_groups(groups))
    if not grouping.names:
        contents = "without leaves"
        if grouping.skipped:
            contents = f"of the non-floating leaves {names_text([*grouping.skipped])}"
        raise ValueError(
            f"{where()}health: got a tree {contents}, expected at least one floating leaf."
        )
    if params is not None:
        check_same_tree(tree, params, "gradients", "params")
    check_axis_name(axis_name)
    with shards_over(axis_names(axis_name)) if axis_name else contextlib.nullcontext():
        rows = measure(jax.tree.leaves(tree), jax.tree.leaves(params), grouping, stats)
        # The grouping has the sizes of the shards.
        sizes = tuple(n * num_shards() for n in grouping.sizes)
    return Health(grouping.names, sizes, grouping.skipped, grouping.shapes, **rows)

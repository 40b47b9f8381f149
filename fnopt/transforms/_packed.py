"""Params, gradients and state in one flat buffer for each dtype."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from fnopt.core import Value, static
from fnopt.errors import check_inexact, leaf_text, leaves_with_names, names_text, type_text, where
from fnopt.sharding import concatenate, is_tracing, replicate, reshape
from fnopt.transforms._chain import Wrapper
from fnopt.transforms._select import Selector, as_labels, select

# In these steps a probe compares the tree and its buffers: wrappers act every few steps.
_STEPS = 8
# The compile time of the probe grows with its leaves; leaves that are treated alike need no more.
_LEAVES = 16
# During the steps, the gradients of the probe shrink by a factor of a thousand and more.
_RATIO = 0.3


class Layout(NamedTuple):
    """The positions of a tree's leaves in its buffers.

    Attributes:
        treedef: The structure of the tree.
        leaves: The shapes and dtypes of the leaves.
        buffers: The name of the buffer of every leaf.
    """

    treedef: Any
    leaves: tuple[jax.ShapeDtypeStruct, ...]
    buffers: tuple[str, ...]

    def parts(self) -> dict[str, list[int]]:
        """The indices of the leaves of every buffer, in their order."""
        return {name: [i for i, b in enumerate(self.buffers) if b == name] for name in self.names}

    @property
    def paths(self) -> list[str]:
        """The paths of the leaves."""
        return [path for path, _ in leaves_with_names(self.treedef.unflatten(self.leaves))[0]]

    @property
    def names(self) -> list[str]:
        """The names of the buffers."""
        return sorted(set(self.buffers))


def _layout_of(params: Any, labels: Selector | None) -> Layout:
    check_inexact(params, "params")
    leaves, treedef = jax.tree.flatten(params)
    types = tuple(jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x)) for x in leaves)
    chosen = [] if labels is None else jax.tree.leaves(select(labels, params))
    prefixes = [f"{label}." for label in chosen] or [""] * len(types)
    names = (prefix + x.dtype.name for prefix, x in zip(prefixes, types, strict=True))
    return Layout(treedef, types, tuple(names))


class packed(Wrapper):
    r"""Keep params, gradients and state in one flat buffer for each dtype.

    .. math:: \mathrm{pack}(\theta) = (\mathrm{vec}\,\theta_1, \dots, \mathrm{vec}\,\theta_n),
              \qquad \mathrm{unpack}(\mathrm{pack}(\theta)) = \theta

    A training loop keeps `tx.pack(params)`, a dict of vectors, and the loss reads
    `tx.unpack(buffers)` inside the jitted step. The gradient with respect to the buffers is packed,
    too. Therefore a step of thousands of small leaves compiles and runs like a step of one leaf.
    For large leaves, packing has no benefit, and the copies between leaves and buffers take time.

    Elementwise optimizers and global norms give the same updates as for the tree. For methods that
    use norms, shapes or paths of leaves, a buffer is one leaf. Therefore `packed` compares eight
    steps on a test tree of the same paths with eight steps on its buffers, and rejects an optimizer
    whose steps differ. The test tree has at most 16 small leaves. `packed` doesn't check optimizers
    that need extra arguments, or whose hyper-parameters are traced.

    Args:
        inner: The optimizer, of fnopt or any (init, update) pair.
        layout: The params (arrays or their shapes), from which the layout is taken.
        labels: The labels of the leaves; leaves of a label share a buffer: a tree of labels,
            `by_pattern` or `by_path`. A buffer is called `'label.dtype'`, so that `mask='decay.*'`
            selects the buffers labeled `'decay'`.

    Raises:
        TypeError: If a leaf is not floating or complex.
        ValueError: If the optimizer treats leaves differently from their buffer; from `pack`,
            `unpack`, `init` and `update`, if a tree doesn't match the layout.

    Example:
        >>> import jax, jax.numpy as jnp, fnopt
        >>> tree = {"w": jnp.ones((2, 2)), "b": jnp.zeros(2)}
        >>> tx = fnopt.packed(fnopt.sgd(0.5), tree)
        >>> params = tx.pack(tree)
        >>> state = tx.init(params)
        >>> def loss(params):
        ...     p = tx.unpack(params)
        ...     return jnp.sum(p["w"] @ p["b"]) + jnp.sum(p["b"])
        >>> updates, state = tx.update(jax.grad(loss)(params), state, params)
        >>> tx.unpack(fnopt.apply_updates(params, updates))["b"]
        Array([-1.5, -1.5], dtype=float32)
    """

    State = None

    layout: Any = static()
    labels: Any = static(default=None)

    def __post_init__(self) -> None:
        if not isinstance(self.layout, Layout):
            labels = None if self.labels is None else as_labels(self.labels)
            self._set("labels", labels)
            self._set("layout", _layout_of(self.layout, labels))
        super().__post_init__()
        self._check_alike()

    def pack(self, tree: Any) -> dict[str, jax.Array]:
        """Pack the leaves of a tree into buffers: a dict from the name of a buffer to a vector."""
        named, treedef = leaves_with_names(tree)
        if treedef != self.layout.treedef:
            came, expected = [name for name, _ in named], self.layout.paths
            raise ValueError(
                f"{where()}pack: the tree lacks the leaves "
                f"{names_text(_missing(expected, came))} and "
                f"has the additional leaves {names_text(_missing(came, expected))}, expected the "
                "structure of the params that packed was made with."
            )
        leaves = []
        for (name, x), y in zip(named, self.layout.leaves, strict=True):
            if (jnp.shape(x), jnp.result_type(x)) != (y.shape, y.dtype):
                raise ValueError(
                    f"{where()}pack: {leaf_text(name)} is {type_text(x)}, expected {type_text(y)}."
                )
            leaves.append(jnp.asarray(x, y.dtype))
        return {
            name: concatenate([reshape(leaves[i], leaves[i].size) for i in parts])
            for name, parts in self.layout.parts().items()
        }

    def unpack(self, buffers: Any) -> Any:
        """Unpack buffers into the tree of leaves, in the buffers' dtypes."""
        self._check(buffers, "unpack")
        found: dict[int, jax.Array] = {}
        for name, parts in self.layout.parts().items():
            shapes = [self.layout.leaves[i].shape for i in parts]
            pieces = _split(replicate(buffers[name]), [*map(math.prod, shapes)])
            whole = (x.reshape(shape) for x, shape in zip(pieces, shapes, strict=True))
            found |= zip(parts, whole, strict=True)
        return self.layout.treedef.unflatten([found[i] for i in range(len(found))])

    def init(self, params: Any) -> Any:
        """Return the inner state for the buffers."""
        self._check(params, "params")
        return self.inner.init(params)

    def update(
        self, updates: Any, state: Any, params: Any = None, **extra_args: Any
    ) -> tuple[Any, Any]:
        """Return the inner updates of the buffers."""
        self._check(updates, "gradients")
        return self.inner.update(updates, state, params, **extra_args)

    def _check(self, buffers: Any, what: str) -> None:
        names = self.layout.names
        if not isinstance(buffers, dict) or sorted(buffers) != names:
            came = names_text(sorted(map(str, buffers))) if isinstance(buffers, dict) else buffers
            raise ValueError(
                f"{where()}{what}: got {came}, expected the buffers {names_text(names)}: call "
                "pack(params) once, and differentiate with respect to its result."
            )
        for name, parts in self.layout.parts().items():
            size = sum(math.prod(self.layout.leaves[i].shape) for i in parts)
            if jnp.shape(buffers[name]) != (size,):
                raise ValueError(
                    f"{where()}{what}: the buffer {name!r} is {type_text(buffers[name])}, "
                    f"expected shape ({size},), the total size of the {len(parts)} leaves "
                    "of the layout. Pack the params again by pack(params)."
                )

    def _check_alike(self) -> None:
        traced = is_tracing() or any(isinstance(x, Tracer) for x in jax.tree.leaves(self.inner))
        if not self.layout.names or self.inner.needs or traced:
            return
        probe = _Probe(self.inner, self.layout)
        buffers, tree = probe.end(probe.buffers), probe.end(probe.tree)
        if not buffers and not tree:
            probe.movement(probe.buffers)  # raises the error that ended both runs
        differing = _differing(buffers, tree)
        # Masks that don't depend on the paths of the tree may be meant for the names of buffers.
        if differing and not _differing(tree, probe.end(lambda x: {"_": probe.tree(x)})):
            differing = _differing(buffers, probe.end(probe.trees))
        if differing:
            raise ValueError(
                f"{where()}{self.inner._place} steps the buffer {differing[0]!r} differently from "
                "the leaves in it, because it uses norms, shapes, paths or random numbers of "
                "single leaves. Use the optimizer for the tree, without packed. Masks and labels "
                "by path have to fit the names of the buffers: with packed(..., labels=by_pattern("
                "{'*kernel': 'decay'}, default='plain')), mask='decay.*' chooses the kernels."
            )


class _Probe:
    """Steps of a few small leaves with the paths of a layout, in trees of several forms."""

    def __init__(self, inner: Any, layout: Layout) -> None:
        self._inner, self._layout = inner, layout
        self._chosen = _representatives(inner, layout)
        self._params, self._grads = [], []
        count: Counter[str] = Counter()
        rng = np.random.default_rng(0)
        for i in self._chosen:
            leaf, j = layout.leaves[i], count[layout.buffers[i]]
            # Two sizes: an optimizer that looks at shapes treats them differently.
            shape = [min(n, 2 + j % 2) for n in leaf.shape]
            size = math.prod(shape)
            p, grads = rng.uniform(1, 3, size), rng.normal(size=(_STEPS, size))
            if size > 1:  # AdamP (Heo et al., 2020) looks for gradients orthogonal to a leaf.
                grads[1::2] -= np.outer(grads[1::2] @ p / (p @ p), p)
            # Neighbors in a buffer differ in norm. With _RATIO the norms pass 1e3 to 1e-3.
            grads *= 10.0 ** (3 - j % 4) * _RATIO ** np.arange(_STEPS)[:, None]
            self._params.append(jnp.asarray(1e3 / (1 + j) * p.reshape(shape), leaf.dtype))
            self._grads.append(jnp.asarray(grads.reshape(_STEPS, *shape), leaf.dtype))
            count[layout.buffers[i]] += 1

    def tree(self, leaves: Any) -> Any:
        """The tree of the layout with these leaves, and None in place of all others."""
        found = dict(zip(self._chosen, leaves, strict=True))
        return self._layout.treedef.unflatten([*map(found.get, range(len(self._layout.leaves)))])

    def by_name(self, leaves: Any) -> dict[str, list[Any]]:
        """The leaves of every buffer, with None for the leaves of other buffers."""
        names = [self._layout.buffers[i] for i in self._chosen]
        return {
            name: [x if b == name else None for b, x in zip(names, leaves, strict=True)]
            for name in names
        }

    def trees(self, leaves: Any) -> dict[str, Any]:
        """A tree of the leaves of every buffer."""
        return {name: self.tree(part) for name, part in self.by_name(leaves).items()}

    def buffers(self, leaves: Any) -> dict[str, Any]:
        """The buffers."""
        return {
            name: concatenate([jnp.ravel(x) for x in part if x is not None])
            for name, part in self.by_name(leaves).items()
        }

    def movement(self, form: Any) -> Any:
        """Sum of the updates of the leaves of a form."""
        grads = jax.vmap(form)(self._grads)
        return jax.jit(_movement)(self._inner, form(self._params), grads)

    def end(self, form: Any) -> dict[str, np.ndarray]:
        """Sum of the updates of every buffer; empty if the optimizer refuses the tree."""
        try:
            moved = self.movement(form)
        except Exception:  # a user's function of paths may fail with any error for other paths
            return {}
        if form not in (self.trees, self.buffers):
            moved = self.by_name(jax.tree.leaves(moved))
        return {
            name: np.concatenate([np.ravel(x) for x in jax.tree.leaves(part)])
            for name, part in moved.items()
        }


def _representatives(inner: Any, layout: Layout) -> list[int]:
    """Leaves of the test tree: one of each kind, then a second of each kind, up to the limit.

    A kind is a buffer, a number of axes, and the labels of the selectors in the optimizer.
    """
    tree = layout.treedef.unflatten(layout.leaves)
    labels = [_labels(selector, tree) for selector in _selectors(inner)]
    kinds = [
        (b, len(x.shape), *selected)
        for b, x, *selected in zip(layout.buffers, layout.leaves, *labels, strict=True)
    ]
    count: Counter[Any] = Counter()
    order = []
    for i, kind in enumerate(kinds):
        order.append((count[kind], i))
        count[kind] += 1
    return sorted(i for _, i in sorted(order)[: max(_LEAVES, len(count))])


def _selectors(part: Any) -> list[Selector]:
    """The selectors in an optimizer."""
    if isinstance(part, Selector):
        return [part]
    parts: Any = part if isinstance(part, tuple) else ()
    if isinstance(part, dict):
        parts = part.values()
    elif isinstance(part, Value):
        parts = vars(part).values()
    return [selector for x in parts for selector in _selectors(x)]


def _labels(selector: Selector, tree: Any) -> list[str]:
    named, _ = leaves_with_names(tree)
    try:
        return [*map(str, selector.choose(named))]
    except Exception:  # the mask is meant for the names of the buffers
        return [""] * len(named)


def _differing(some: dict[str, np.ndarray], others: dict[str, np.ndarray]) -> list[str]:
    """Names of the buffers whose updates differ."""

    def close(x: np.ndarray | None, y: np.ndarray | None) -> bool:
        if x is None or y is None:
            return False
        tolerance = float(jnp.finfo(x.dtype).eps) ** 0.5  # half of the digits
        # Both forms may overflow alike.
        return np.allclose(x, y, rtol=tolerance, atol=0, equal_nan=True)

    names = sorted({*some, *others})
    return [name for name in names if not close(some.get(name), others.get(name))]


def _split(x: Any, sizes: list[int]) -> list[jax.Array]:
    if isinstance(x, Tracer):
        # Unlike that of many slices, the derivative of `split` is one concatenation.
        return [*jax.lax.split(x, sizes)]
    # XLA for a CPU takes 26 s to compile a program of 2,000 results; slices share a program.
    starts = itertools.accumulate(sizes, initial=0)
    return [jax.lax.dynamic_slice(x, (i,), (n,)) for i, n in zip(starts, sizes, strict=False)]


def _missing(names: list[str], others: list[str]) -> list[str]:
    return [name for name in names if name not in set(others)]


def _movement(tx: Any, params: Any, grads: Any) -> Any:
    """The sum of the updates of the steps."""

    def step(carry: Any, grads: Any) -> Any:
        moved, state = carry
        updates, state = tx.update(grads, state, jax.tree.map(jnp.add, params, moved))
        return (jax.tree.map(lambda m, u: (m + u).astype(m.dtype), moved, updates), state), None

    start = jax.tree.map(jnp.zeros_like, params), tx.init(params)
    return jax.lax.scan(step, start, grads)[0][0]

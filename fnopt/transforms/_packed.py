"""Params, gradients and state in one flat buffer per dtype."""

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

_STEPS = 8  # more than one step, because some wrappers change the updates only every few steps
_LEAVES = 16  # largest number of leaves of the probe, because its compile time grows with them
_RATIO = 0.3  # ratio of the norms of successive gradients of a leaf: 0.3^7 = 2e-4 over all steps
_SCALES = (1e-6, 1.0, 1e6)  # factors of the probe's gradients for thresholds from 1e-9 to 1e9


class Layout(NamedTuple):
    """Positions of the leaves of a tree in the buffers.

    Attributes:
        treedef: The structure of the tree.
        leaves: The shapes and dtypes of the leaves.
        buffers: The name of the buffer of every leaf.
    """

    treedef: Any
    leaves: tuple[jax.ShapeDtypeStruct, ...]
    buffers: tuple[str, ...]

    def parts(self) -> dict[str, list[int]]:
        """The indices of the leaves of every buffer, in ascending order."""
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
    leaf_labels = [] if labels is None else jax.tree.leaves(select(labels, params))
    prefixes = [f"{label}." for label in leaf_labels] or [""] * len(types)
    names = (prefix + x.dtype.name for prefix, x in zip(prefixes, types, strict=True))
    return Layout(treedef, types, tuple(names))


class packed(Wrapper):
    r"""Store params, gradients and state in one flat buffer per dtype.

    .. math:: \mathrm{pack}(\theta) = (\mathrm{vec}\,\theta_1, \dots, \mathrm{vec}\,\theta_n),
              \qquad \mathrm{unpack}(\mathrm{pack}(\theta)) = \theta

    A training loop passes `tx.pack(params)`, a dict of vectors, to the optimizer, and the loss
    reads `tx.unpack(buffers)` inside the jitted step. The gradient with respect to the buffers is
    packed, too. Therefore a step of thousands of small leaves compiles and runs like a step of one
    leaf. For large leaves, packing has no benefit, and copies between leaves and buffers take time.

    Elementwise optimizers and global norms compute the same updates as for the tree. For methods
    that use norms, shapes or paths of leaves, a buffer is one leaf. Therefore `packed` compares
    eight steps for a small test tree of the same paths with eight steps for its buffers, for small,
    medium and large gradients. It rejects an optimizer whose steps differ. `packed` doesn't check
    optimizers with required extra arguments or traced hyper-parameters.

    Args:
        inner: The optimizer, a `Transformation` or any (init, update) pair.
        layout: The params, arrays or `jax.ShapeDtypeStruct`, which determine the layout.
        labels: Labels of the leaves (a tree of labels, `by_pattern` or `by_path`). Leaves with the
            same label and dtype share the buffer `'label.dtype'`, so that `mask='decay.*'` selects
            the buffers labeled `'decay'`.

    Raises:
        TypeError: If a leaf is not floating or complex.
        ValueError: If the optimizer's steps for leaves and for their buffer differ. From `pack`,
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
        self._check_equivalence()

    def pack(self, tree: Any) -> dict[str, jax.Array]:
        """Pack the leaves of a tree into buffers: a dict from the name of a buffer to a vector."""
        named_leaves, treedef = leaves_with_names(tree)
        if treedef != self.layout.treedef:
            paths, expected = [name for name, _ in named_leaves], self.layout.paths
            raise ValueError(
                f"{where()}pack: the tree lacks the leaves {names_text(_missing(expected, paths))} "
                f"and has the additional leaves {names_text(_missing(paths, expected))}, expected "
                "the structure of the params that were passed to packed as its layout."
            )
        leaves = []
        for (name, x), y in zip(named_leaves, self.layout.leaves, strict=True):
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
        leaves: dict[int, jax.Array] = {}
        for name, parts in self.layout.parts().items():
            shapes = [self.layout.leaves[i].shape for i in parts]
            vectors = _split(replicate(buffers[name]), [*map(math.prod, shapes)])
            arrays = (x.reshape(shape) for x, shape in zip(vectors, shapes, strict=True))
            leaves |= zip(parts, arrays, strict=True)
        return self.layout.treedef.unflatten([leaves[i] for i in range(len(leaves))])

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
            text = names_text(sorted(map(str, buffers))) if isinstance(buffers, dict) else buffers
            raise ValueError(
                f"{where()}{what}: got {text}, expected the buffers {names_text(names)}. Call "
                "pack(params) once, and differentiate with respect to the result."
            )
        for name, parts in self.layout.parts().items():
            size = sum(math.prod(self.layout.leaves[i].shape) for i in parts)
            if jnp.shape(buffers[name]) != (size,):
                raise ValueError(
                    f"{where()}{what}: the buffer {name!r} is {type_text(buffers[name])}, "
                    f"expected shape ({size},), the total size of the layout's leaves "
                    "of this dtype. Pack the params again with pack(params)."
                )

    def _check_equivalence(self) -> None:
        """Raise an error if steps for a small tree and for its buffers differ."""
        traced = is_tracing() or any(isinstance(x, Tracer) for x in jax.tree.leaves(self.inner))
        if not self.layout.names or self.inner.needs or traced:
            return
        probe = _Probe(self.inner, self.layout)
        buffers, tree = probe.buffer_updates(probe.buffers), probe.buffer_updates(probe.tree)
        if not buffers and not tree:
            probe.total_update(probe.buffers)  # raises the error that both runs raised
        names = _unequal_buffers(buffers, tree)
        # If the steps don't depend on a prefix of the paths, masks may be patterns for the names of
        # buffers. Such patterns also match the paths of trees inside a dict with these names.
        prefixed = probe.buffer_updates(lambda x: {"_": probe.tree(x)}) if names else {}
        if names and not _unequal_buffers(tree, prefixed):
            names = _unequal_buffers(buffers, probe.buffer_updates(probe.trees))
        if names:
            raise ValueError(
                f"{where()}{self.inner._place} computes different updates for the buffer "
                f"{names[0]!r} and for its leaves, expected an optimizer without norms, shapes, "
                "paths or random numbers of leaves. Use the optimizer without packed. Masks and "
                "labels must match the names of buffers: with packed(..., labels=by_pattern("
                "{'*kernel': 'decay'}, default='plain')), mask='decay.*' selects the kernels."
            )


class _Probe:
    """Test steps for a few small leaves with the paths of a layout, in several tree structures."""

    def __init__(self, inner: Any, layout: Layout) -> None:
        self._inner, self._layout = inner, layout
        self._indices = _representatives(inner, layout)
        self._params, self._grads = [], []
        count: Counter[str] = Counter()
        rng = np.random.default_rng(0)
        for i in self._indices:
            leaf, j = layout.leaves[i], count[layout.buffers[i]]
            # Two sizes, because an optimizer that uses shapes treats different sizes differently.
            shape = [min(n, 2 + j % 2) for n in leaf.shape]
            size = math.prod(shape)
            p, grads = rng.uniform(1, 3, size), rng.normal(size=(_STEPS, size))
            if size > 1:  # AdamP (Heo et al., 2020) has a rule for gradients orthogonal to a leaf
                grads[1::2] -= np.outer(grads[1::2] @ p / (p @ p), p)
            # Adjacent leaves in a buffer differ in norm, and one grows while the other shrinks.
            exponents = np.arange(_STEPS)[:, None] if j % 2 else np.arange(_STEPS)[::-1, None]
            grads *= 10.0 ** (3 - j % 4) * _RATIO**exponents
            self._params.append(jnp.asarray(1e3 / (1 + j) * p.reshape(shape), leaf.dtype))
            self._grads.append(jnp.asarray(grads.reshape(_STEPS, *shape), leaf.dtype))
            count[layout.buffers[i]] += 1

    def tree(self, leaves: Any) -> Any:
        """Make the tree of the layout from these leaves, with None in place of all others."""
        present = dict(zip(self._indices, leaves, strict=True))
        return self._layout.treedef.unflatten([*map(present.get, range(len(self._layout.leaves)))])

    def by_name(self, leaves: Any) -> dict[str, list[Any]]:
        """Group leaves by buffer, with None in place of the leaves of other buffers."""
        pairs = [(self._layout.buffers[i], x) for i, x in zip(self._indices, leaves, strict=True)]
        return {name: [x if b == name else None for b, x in pairs] for name, _ in pairs}

    def trees(self, leaves: Any) -> dict[str, Any]:
        """Make a tree for every buffer, which contains only the leaves of the buffer."""
        return {name: self.tree(part) for name, part in self.by_name(leaves).items()}

    def buffers(self, leaves: Any) -> dict[str, Any]:
        """Concatenate the leaves of every buffer."""
        return {
            name: concatenate([jnp.ravel(x) for x in part if x is not None])
            for name, part in self.by_name(leaves).items()
        }

    def total_update(self, form: Any) -> Any:
        """Sum the updates of all steps; `form` converts the list of leaves to a tree."""
        grads = jax.vmap(form)(self._grads)
        return jax.jit(_total_update)(self._inner, form(self._params), grads)

    def buffer_updates(self, form: Any) -> dict[str, np.ndarray]:
        """Sum the updates of every buffer; empty if the optimizer raises an error for the tree."""
        try:
            total = self.total_update(form)
        except Exception:  # a user's function of paths may raise any error for other paths
            return {}
        if form not in (self.trees, self.buffers):
            total = self.by_name(jax.tree.leaves(total))
        n = len(_SCALES)
        return {
            name: np.concatenate([np.reshape(x, (n, -1)) for x in jax.tree.leaves(part)], axis=1)
            for name, part in total.items()
        }


def _representatives(inner: Any, layout: Layout) -> list[int]:
    """Select leaves for the probe: one of each kind, then a second of each kind, up to `_LEAVES`.

    Leaves of the same kind have the same buffer, number of axes, and labels of all selectors in the
    optimizer.
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
    """List the selectors in an optimizer."""
    if isinstance(part, Selector):
        return [part]
    part = vars(part) if isinstance(part, Value) else part
    part = tuple(part.values()) if isinstance(part, dict) else part
    parts = part if isinstance(part, tuple) else ()
    return [selector for x in parts for selector in _selectors(x)]


def _labels(selector: Selector, tree: Any) -> list[str]:
    leaves, _ = leaves_with_names(tree)
    try:
        return [*map(str, selector.choose(leaves))]
    except Exception:  # the selector matches names of buffers instead of paths of the tree
        return [""] * len(leaves)


def _unequal_buffers(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> list[str]:
    """Names of the buffers whose updates differ."""

    def is_close(x: np.ndarray | None, y: np.ndarray | None) -> bool:
        if x is None or y is None:
            return False
        tolerance = float(jnp.finfo(x.dtype).eps) ** 0.5  # half of the digits
        # NaN equals NaN, because both runs may overflow.
        return np.allclose(x, y, rtol=tolerance, atol=0, equal_nan=True)

    return [name for name in sorted({*a, *b}) if not is_close(a.get(name), b.get(name))]


def _split(x: Any, sizes: list[int]) -> list[jax.Array]:
    if isinstance(x, Tracer):
        # The derivative of `split` is a single concatenation, unlike the derivative of many slices.
        return [*jax.lax.split(x, sizes)]
    # On a CPU, XLA compiles a program with 2,000 results for 26 s; eager slices share a program.
    starts = itertools.accumulate(sizes, initial=0)
    return [jax.lax.dynamic_slice(x, (i,), (n,)) for i, n in zip(starts, sizes, strict=False)]


def _missing(names: list[str], others: list[str]) -> list[str]:
    return [name for name in names if name not in set(others)]


def _total_update(tx: Any, params: Any, grads: Any) -> Any:
    """Take a step for every gradient, and sum the updates; for all `_SCALES` of the gradients."""

    def step(carry: Any, grads: Any) -> Any:
        total, state = carry
        updates, state = tx.update(grads, state, jax.tree.map(jnp.add, params, total))
        return (jax.tree.map(lambda t, u: (t + u).astype(t.dtype), total, updates), state), None

    def total(scale: jax.Array) -> Any:
        scaled = jax.tree.map(lambda g: g * scale.astype(g.dtype), grads)
        return jax.lax.scan(step, start, scaled)[0][0]

    start = jax.tree.map(jnp.zeros_like, params), tx.init(params)
    return jax.lax.map(total, jnp.asarray(_SCALES))

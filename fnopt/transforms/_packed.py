"""Params, gradients and state in one flat buffer for each dtype."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from fnopt.core import (
    Member,
    check_inexact,
    check_same_tree,
    described,
    gathered,
    is_staged,
    joined,
    leaves_with_names,
    listing,
    reshaped,
    static,
    where,
)
from fnopt.transforms._select import as_labels, select
from fnopt.transforms._selectors import Selector
from fnopt.transforms._wrapper import Wrapper

# In these steps a probe compares the tree and its buffers: wrappers act every few steps.
_STEPS = 8


class Layout(NamedTuple):
    """Where the leaves of a tree are in its buffers.

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
    `tx.unpack(buffers)` inside the jitted step. The derivative with respect to the buffers is
    packed, too. So a step of thousands of small leaves compiles and runs as a step of one leaf.
    For large leaves it saves nothing, and the copies between the leaves and the buffer cost time.

    Elementwise optimizers and global norms give the same updates as for the tree. Methods that use
    norms, shapes or paths of leaves see whole buffers; `packed` compares eight steps of a small
    tree with those of its buffers, and refuses an optimizer whose steps differ. It doesn't
    compare optimizers that need extra arguments, or whose hyper-parameters are traced.

    Args:
        inner: The optimizer, fnopt's or any (init, update) pair.
        layout: The params (arrays or their shapes), of which the layout is kept.
        labels: Which leaves share a buffer: a tree of labels, `by_pattern` or `by_path`. A buffer
            is called `'label.dtype'`, so that `mask='decay.*'` chooses those labelled `'decay'`.

    Raises:
        TypeError: If a leaf is not floating or complex.
        ValueError: If the optimizer treats leaves differently from their buffer; from `pack`,
            `unpack`, `init` and `update`, if a tree doesn't fit the layout.

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
        """The leaves of a tree as buffers: a dict from the name of a buffer to a vector."""
        like = self.layout.treedef.unflatten(self.layout.leaves)
        check_same_tree(like, tree, "the layout", "the tree")
        leaves = [jnp.asarray(x) for x in jax.tree.leaves(tree)]
        for (name, x), y in zip(leaves_with_names(tree)[0], self.layout.leaves, strict=True):
            if jnp.result_type(x) != y.dtype:
                raise ValueError(f"{where()}pack: {name} is {described(x)}, expected {y.dtype}.")
        return {
            name: joined([reshaped(leaves[i], leaves[i].size) for i in parts])
            for name, parts in self.layout.parts().items()
        }

    def unpack(self, buffers: Any) -> Any:
        """The tree of the leaves in buffers, in the buffers' dtypes."""
        self._check(buffers, "unpack")
        found: dict[int, jax.Array] = {}
        for name, parts in self.layout.parts().items():
            shapes = [self.layout.leaves[i].shape for i in parts]
            # Unlike that of many slices, the derivative of `split` is one concatenation.
            pieces = jax.lax.split(gathered(buffers[name]), [*map(math.prod, shapes)])
            whole = (x.reshape(shape) for x, shape in zip(pieces, shapes, strict=True))
            found |= zip(parts, whole, strict=True)
        return self.layout.treedef.unflatten([found[i] for i in range(len(found))])

    def init(self, params: Any) -> Any:
        """The inner state, for buffers."""
        self._check(params, "params")
        return self.inner.init(params)

    def update(
        self, updates: Any, state: Any, params: Any = None, **extra_args: Any
    ) -> tuple[Any, Any]:
        """The inner updates of buffers."""
        self._check(updates, "gradients")
        return self.inner.update(updates, state, params, **extra_args)

    def members(self, state: Any = None) -> tuple[Member, ...]:
        """The inner transform, whose state is that of the whole."""
        return (Member(self.inner._place, self.inner, state),)

    def _check(self, buffers: Any, what: str) -> None:
        names = self.layout.names
        if not isinstance(buffers, dict) or sorted(buffers) != names:
            came = listing(sorted(map(str, buffers))) if isinstance(buffers, dict) else buffers
            raise ValueError(
                f"{where()}{what}: got {came}, expected the buffers {listing(names)}: call "
                "pack(params) once, and differentiate with respect to its result."
            )
        for name, parts in self.layout.parts().items():
            size = sum(math.prod(self.layout.leaves[i].shape) for i in parts)
            if jnp.shape(buffers[name]) != (size,):
                raise ValueError(
                    f"{where()}{what}: the buffer {name!r} is {described(buffers[name])}, "
                    f"expected {size} numbers, those of the {len(parts)} leaves of the layout."
                )

    def _check_alike(self) -> None:
        traced = is_staged() or any(isinstance(x, Tracer) for x in jax.tree.leaves(self.inner))
        if not self.layout.names or self.inner.needs or traced:
            return
        tree = {name: _probe(name.rpartition(".")[2]) for name in self.layout.names}
        one = {name: joined([jnp.ravel(x) for x in pair]) for name, pair in tree.items()}
        apart, together = jax.jit(_trajectories)(self.inner, tree, one)
        for name, x in together.items():
            tolerance = float(jnp.finfo(x.dtype).eps) ** 0.5  # half of the digits
            y = np.concatenate([np.ravel(part) for part in apart[name]])
            if not np.allclose(x, y, rtol=tolerance, atol=0, equal_nan=True):
                raise ValueError(
                    f"{where()}{self.inner._place} steps the buffer {name!r} differently from the "
                    "leaves in it: it uses norms, shapes, paths or random numbers of single "
                    "leaves. Use the optimizer for the tree, without packed; masks and labels "
                    "that are patterns have to fit the names of the buffers."
                )


def _probe(dtype: str) -> list[jax.Array]:
    """A matrix and a vector of different norms."""
    numbers = np.asarray([3.0, -1.0, 2.0, 1.5, 0.1, -0.3, 0.2])
    return [jnp.asarray(x, dtype) for x in (numbers[:4].reshape(2, 2), numbers[4:])]


def _trajectories(tx: Any, *trees: Any) -> tuple[Any, ...]:
    """The sums of the updates of some steps, for each tree of params."""

    def end(params: Any) -> Any:
        def step(_: Any, carry: Any) -> Any:
            moved, state, grads = carry
            updates, state = tx.update(grads, state, jax.tree.map(jnp.add, params, moved))
            moved = jax.tree.map(lambda m, u: (m + u).astype(m.dtype), moved, updates)
            return moved, state, jax.tree.map(lambda g: -0.5 * g, grads)

        grads = jax.tree.map(lambda p: jnp.cos(5 * p), params)
        start = jax.tree.map(jnp.zeros_like, params), tx.init(params), grads
        return jax.lax.fori_loop(0, _STEPS, step, start)[0]

    return tuple(map(end, trees))

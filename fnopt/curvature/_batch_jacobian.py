"""Products with the Jacobian `J` of a batch's residuals and with `J J^T`, without forming `J`."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import check_same_tree
from fnopt.curvature._bound import bind, checked_batches
from fnopt.curvature._jacobian_part import JacobianPart
from fnopt.errors import check_choice, check_chunk_size, type_text, where
from fnopt.jacobians import ravel
from fnopt.sharding import all_gather_tree, pvary_like, replicate, reshard_like, use_mesh_of

METHODS = ("auto", "ghost", "formed")
Residuals = Callable[..., Any] | Sequence[Callable[..., Any]]
_NAME = "batch_jacobian"


def batch_jacobian(
    residual_fn: Residuals,
    *,
    method: str = "auto",
    chunk_size: int | None = None,
    axis_name: Any = None,
) -> Callable[[Any, Any], BatchJacobian]:
    r"""Make the Jacobian of a batch's residuals as a linear map, with its Gram matrix.

    .. math:: J_{(i,c),\theta} = \frac{\partial r_c(\theta, x_i)}{\partial \theta}, \qquad
              K = J J^\top \in \mathbb{R}^{nk \times nk}

    With more params than residuals, Gauss-Newton and natural gradient need only `K`, not `J`:
    :math:`(J^\top J + \lambda I)^{-1} J^\top r = J^\top (K + \lambda I)^{-1} r`.
    `K` is also the empirical neural tangent kernel of `residual_fn`.

    One forward pass, and one backward pass per residual of an example, record the inputs and
    cotangents of every matrix product in the model. For a matrix with inputs `a_s` and output
    cotangents `c_s` at positions `s`,

    .. math:: K_{ij} = \sum_{s,t} (a_{is} \cdot a_{jt}) (c_{is} \cdot c_{jt}),

    so `J` is never formed. This works for any JAX function, even if the residuals contain
    derivatives (such as the Laplacian of a network).

    Args:
        residual_fn: `fn(params, example)` for ONE example returns an array or a tree of arrays.
            A sequence of such functions, with one batch per function (interior and boundary
            points), results in one Jacobian with concatenated rows.
        method: `'ghost'` uses the formula above, and forms Jacobian rows only for params without a
            rule (:func:`fnopt.gradients.ghost_report` lists these params). `'formed'` computes the
            whole Jacobian by `jax.vmap`. `'auto'` chooses the method that needs less memory per
            example.
        chunk_size: Number of examples to process at once; `None` for all. With `c` chunks the Gram
            matrix takes `c (c + 1)` passes over a chunk instead of one.
        axis_name: Inside `jax.shard_map` (or `jax.vmap` with a name), the named axis along which
            the batch is sharded, or several axes. `residuals` and `mv` then contain only this
            device's examples; `vector`, `vector_at`, `gram`, `rmv`, `sizes` and `shape` include the
            examples of all devices, in device order. Devices pass recorded factors around a ring,
            and each device computes its rows of the Gram matrix. With chunks, the examples are
            gathered on every device.

    Returns:
        A function `(params, batch)` -> a `BatchJacobian`. The leaves of the batch have a leading
        axis of `n` examples. For a sequence of functions, pass a sequence of batches.

    Raises:
        TypeError: If params or residuals aren't floating, or params are complex.
        ValueError: If the example axes disagree or are empty, or an option is invalid.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.curvature import batch_jacobian
        >>> def residual(w, example):
        ...     x, y = example
        ...     return x @ w - y
        >>> batch = (jnp.asarray([[1.0, 2.0], [3.0, 4.0]]), jnp.ones(2))
        >>> J = batch_jacobian(residual)(jnp.zeros(2), batch)
        >>> J.residuals.tolist(), J.gram().tolist()
        ([-1.0, -1.0], [[5.0, 11.0], [11.0, 25.0]])
        >>> J.rmv(J.residuals).tolist()
        [-4.0, -6.0]

    Reference:
        Jacot, Gabriel and Hongler, 2018, "Neural Tangent Kernel", arXiv:1806.07572. Rochette,
        Manoel and Tramel, 2019, arXiv:1912.06015, for the inner products of activations.
    """
    check_choice(method, METHODS, "method", _NAME)
    chunk_size = check_chunk_size(chunk_size, _NAME)

    def jacobian_at(params: Any, batch: Any) -> BatchJacobian:
        if callable(residual_fn):
            fns, batches = (residual_fn,), (batch,)
        elif isinstance(residual_fn, (list, tuple)) and residual_fn:
            fns, batches = residual_fn, checked_batches(batch, len(residual_fn), _NAME)
        else:
            raise TypeError(
                f"{_NAME}: residual_fn is {type_text(residual_fn)}, expected fn(params, example) "
                "or a sequence of such functions."
            )
        # Inside shard_map the params must vary over devices, so that derivatives refer to this
        # device's examples and aren't summed over devices.
        local_params = pvary_like(jax.tree.map(replicate, params), batches)
        with use_mesh_of(batches, params):
            name = where().removesuffix(": ") or _NAME
            bound = [bind(fn, local_params, b, name) for fn, b in zip(fns, batches, strict=True)]
            parts = [JacobianPart(b, method, chunk_size, axis_name) for b in bound]
        return BatchJacobian(params, parts, callable(residual_fn), axis_name)

    return jacobian_at


class BatchJacobian:
    """The Jacobian of a batch's residuals as a linear map, returned by `batch_jacobian`.

    The first product records the Jacobian for later products. Therefore use an instance within a
    single `jax.jit`, or eagerly.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.curvature import batch_jacobian
        >>> J = batch_jacobian(lambda w, x: jnp.tanh(w * x))(jnp.zeros(()), jnp.arange(3.0))
        >>> J.shape, J.mv(jnp.ones(())).tolist()
        ((3, 1), [0.0, 1.0, 2.0])
    """

    def __init__(
        self, params: Any, parts: list[JacobianPart], single: bool, axis_name: Any = None
    ) -> None:
        self._params, self._parts, self._single = params, parts, single
        self._axis_name = axis_name

    @property
    def shape(self) -> tuple[int, int]:
        """The number of residuals, and the number of entries of the params."""
        rows = sum(part.total * part.layout.size for part in self._parts)
        return rows, sum(math.prod(jnp.shape(p)) for p in jax.tree.leaves(self._params))

    @property
    def forms_rows(self) -> bool:
        """Whether the Jacobian rows of all functions are formed instead of recorded on a tape."""
        return all(part.ghost is None for part in self._parts)

    @property
    def residuals(self) -> Any:
        """The residuals, with a leading example axis; a tuple for several functions."""
        return self._as_residuals(self._values())

    @property
    def vector(self) -> jax.Array:
        """Concatenated residuals of all examples, in the row order of `gram`."""
        return self.flatten(self._values())

    def _values(self) -> list[jax.Array]:
        with self._mesh():
            return [part.residuals for part in self._parts]

    @property
    def sizes(self) -> tuple[tuple[int, int], ...]:
        """For every residual function, the number of examples and of residuals per example."""
        return tuple((part.total, part.layout.size) for part in self._parts)

    def vector_at(self, params: Any) -> jax.Array:
        """Concatenated residuals at other params, computed by a forward pass.

        Args:
            params: A tree like the params.
        """
        params = jax.tree.map(replicate, params)
        with self._mesh():
            return self.flatten([part.residuals_at(params) for part in self._parts])

    def gram(self) -> jax.Array:
        r""":math:`K = J J^\top`, float32 or wider, symmetric."""
        blocks: dict[tuple[int, int], jax.Array] = {}
        with self._mesh():
            for i, part in enumerate(self._parts):
                for j, other in enumerate(self._parts[: i + 1]):
                    # An upper block is the transpose of a lower block, so that the Gram matrix is
                    # symmetric bit for bit.
                    blocks[i, j] = replicate(part.gram(other))
                    blocks[j, i] = blocks[i, j].T
        count = range(len(self._parts))
        return jnp.concatenate([jnp.concatenate([blocks[i, j] for j in count], 1) for i in count])

    def normal(self, weights: Sequence[float] | None = None) -> jax.Array:
        r""":math:`\sum_f w_f J_f^\top J_f` over the residual functions, `[P, P]`, symmetric.

        This matrix is smaller than `gram` if there are fewer params than residuals. The rows of `J`
        are formed, chunk by chunk if `chunk_size` is set.

        Args:
            weights: The weight :math:`w_f` of each residual function; by default 1.

        Returns:
            The matrix, float32 or wider, in the order of the concatenated leaves of the params.
        """
        weights = [1.0] * len(self._parts) if weights is None else weights
        with self._mesh():
            pairs = zip(self._parts, weights, strict=True)
            return functools.reduce(jnp.add, [w * part.normal() for part, w in pairs])

    def ravel(self, tree: Any) -> tuple[jax.Array, Callable[[jax.Array], Any]]:
        """Flatten a tree like the params to a vector in the order of `normal`.

        Args:
            tree: A tree like the params.
        """
        check_same_tree(tree, self._params, f"{_NAME}: the tree", "the params")
        return ravel(tree)

    def mv(self, direction: Any) -> Any:
        """The product `J v`.

        Args:
            direction: `v`, a tree like the params.

        Returns:
            A tree like `residuals`, float32 or wider.
        """
        check_same_tree(direction, self._params, f"{_NAME}: v", "the params")
        replicated = jax.tree.map(replicate, direction)
        with self._mesh():
            return self._as_residuals([part.push(replicated) for part in self._parts])

    def rmv(self, weights: Any) -> Any:
        r"""The product :math:`J^\top a`.

        Args:
            weights: `a`, a tree like `residuals` or a vector like `vector`.

        Returns:
            A tree like the params, float32 or wider.
        """
        parts = self._parts_of(weights)
        with self._mesh():
            products = [part.pull(a) for part, a in zip(self._parts, parts, strict=True)]
            total = jax.tree.map(lambda *x: functools.reduce(jnp.add, x), *products)
            return jax.tree.map(reshard_like, total, self._params)

    def _mesh(self) -> contextlib.AbstractContextManager[None]:
        return use_mesh_of([part.bound.batch for part in self._parts], self._params)

    def flatten(self, parts: Sequence[jax.Array]) -> jax.Array:
        """Concatenate arrays `[n, k]` of all functions, over all devices."""
        # On an explicit mesh, JAX can't merge a sharded axis with another axis.
        vectors = [replicate(x).reshape(-1) for x in parts]
        return jnp.concatenate([all_gather_tree(x, self._axis_name) for x in vectors])

    def parts(self, residuals: Any) -> list[jax.Array]:
        """Reshape a tree like `residuals` to arrays `[n, k]`, one per residual function."""
        trees = (residuals,) if self._single else residuals
        return [
            jax.vmap(p.layout.flatten)(tree) for p, tree in zip(self._parts, trees, strict=True)
        ]

    def _parts_of(self, weights: Any) -> list[jax.Array]:
        """Convert weights of this device's residuals to arrays `[n, k]`, one per function."""
        if len(jax.tree.leaves(weights)) == 1 and jnp.shape(weights) == (self.shape[0],):
            parts = zip(self._parts, self.split(weights), strict=True)
            return [part.local_rows(x) for part, x in parts]
        check_same_tree(weights, self.residuals, f"{_NAME}: weights", "the residuals")
        return self.parts(weights)

    def split(self, x: jax.Array) -> list[jax.Array]:
        """Split an array with a row per residual into arrays `[n, k, ...]`, one per function."""
        arrays, start = [], 0
        for n, k in self.sizes:
            arrays.append(x[start : start + n * k].reshape(n, k, *x.shape[1:]))
            start += n * k
        return arrays

    def _as_residuals(self, parts: Sequence[jax.Array]) -> Any:
        pairs = zip(self._parts, parts, strict=True)
        trees = tuple(jax.vmap(part.layout.unflatten)(x) for part, x in pairs)
        return trees[0] if self._single else trees

    def __repr__(self) -> str:
        return f"BatchJacobian(shape={self.shape})"

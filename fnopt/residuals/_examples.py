"""Residuals of a batch by functions of one example, in the form that the linear solver needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fnopt.core import Value, static
from fnopt.errors import (
    check_batch,
    explain_example_errors,
    leaf_text,
    leaves_with_names,
    type_text,
    where,
)
from fnopt.jacobians import per_example_jacobian
from fnopt.linear import linear_solver
from fnopt.residuals._flat import FlatResidual
from fnopt.residuals._given import given_derivative
from fnopt.sharding import replicate_for_batch, row_axes

Function = Callable[..., Any]
_SHARED = (
    "Let residual_fn close over what all examples share, or pass it in args. If "
    "residual_fn takes the whole batch at once, pass the batch in args and leave batch "
    "out."
)


class ExampleResiduals(Value):
    """Functions of one example as a single function of the batch, `(params, batch, *args)`.

    Args:
        fns: Functions `fn(params, example, *args)`.
        structure: The tree structure of the user's container of functions; a leaf for a single
            function.
    """

    fns: tuple[Function, ...]
    structure: Any = static()

    def __call__(self, params: Any, batch: Any, *args: Any) -> Any:
        """Residuals of all examples, in a container like the container of the functions."""
        axes = (None, 0, *(None for _ in args))
        pairs = zip(self.fns, self.batches(batch), strict=True)
        found = []
        for fn, each in pairs:
            with explain_example_errors("residual_fn", _example(each)):
                common = replicate_for_batch((params, args), each)
                found.append(jax.vmap(fn, axes)(common[0], each, *common[1]))
        return jax.tree.unflatten(self.structure, found)

    def batches(self, batch: Any) -> list[Any]:
        """Batch of each function."""
        if jax.tree_util.treedef_is_leaf(self.structure):
            return [batch]
        if isinstance(batch, dict):
            fits = jax.tree.structure(dict.fromkeys(batch, 0)) == self.structure
            found = [batch[key] for key in sorted(batch)] if fits else []
        else:
            named = isinstance(jax.tree.unflatten(self.structure, self.fns), dict)
            found = list(batch) if isinstance(batch, (list, tuple)) and not named else []
        if len(found) != len(self.fns):
            raise TypeError(
                f"{where()}batch is {type_text(batch)}, expected a list of {len(self.fns)} "
                "batches: one for each residual function (a dict for a dict of functions)."
            )
        return found

    def mapped(self, fn: Callable[[Function, Any], Any], batch: Any) -> ExampleResiduals:
        """Replace every function by `fn(function, shapes of its example)`."""
        pairs = zip(self.fns, self.batches(batch), strict=True)
        return ExampleResiduals(tuple(fn(f, _example(b)) for f, b in pairs), self.structure)

    def of_free(
        self, assemble: Callable[[Any], Any], batch: Any, args: tuple[Any, ...]
    ) -> Examples:
        """Residuals as functions of the free variables and an example.

        Args:
            assemble: Function from the free variables to the params.
            batch: The examples.
            args: Further arguments.
        """

        def free(fn: Function) -> Function:
            return lambda free, example: fn(assemble(free), example, *args)

        fns = ExampleResiduals(tuple(map(free, self.fns)), self.structure)
        return Examples(fns, self.batches(batch))


def _example(batch: Any) -> Any:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), batch)


class Examples(NamedTuple):
    """Functions of params and one example, with their batches."""

    residuals: ExampleResiduals
    batches: list[Any]
    method: str = "auto"  # as in :func:`fnopt.curvature.batch_jacobian`
    chunk_size: int | None = None  # number of examples that are processed at once

    def __call__(self, params: Any) -> Any:
        """The blocks of the Jacobian."""
        return jax.tree.unflatten(
            self.residuals.structure, [J(params, batch) for J, batch in self._rows()]
        )

    def fold(self, step: Any, carry: Any, params: Any, args: tuple[()], along: Any) -> Any:
        """Fold over the rows of every function, as :func:`fnopt.per_example_jacobian` does."""
        del args
        trees = [self.residuals.structure.flatten_up_to(tree) for tree in along]
        for i, (J, batch) in enumerate(self._rows()):
            carry = J.fold(step, carry, params, (batch,), tuple(parts[i] for parts in trees))
        return carry

    def _rows(self) -> list[tuple[Any, Any]]:
        fns, chunk_size = self.residuals.fns, self.chunk_size
        rows = [per_example_jacobian(fn, chunk_size=chunk_size) for fn in fns]
        return list(zip(rows, self.batches, strict=True))

    def gram(self, params: Any, factor: Any = None) -> jax.Array:
        r""":math:`J J^\top`, in the order of the concatenated residuals.

        Args:
            params: The params.
            factor: Factor of the residuals, which prevents overflow.
        """
        params = replicate_for_batch(params, self.batches)
        K = self.jacobian(params, factor).gram()
        order = np.concatenate(self._order(params))
        return K if np.array_equal(order, np.arange(order.size)) else K[order[:, None], order]

    def jacobian(self, params: Any, factor: Any = None) -> Any:
        """Per-example Jacobian: its rows, or a tape of the functions for products."""
        from fnopt.curvature import batch_jacobian  # imported here to save time for other methods

        def times(fn: Function) -> Function:
            def scaled(params: Any, example: Any) -> Any:
                r = fn(params, example)
                return jax.tree.map(lambda x: factor.astype(x.dtype) * x, r)

            return fn if factor is None else scaled

        fns = tuple(map(times, self.residuals.fns))
        rows = batch_jacobian(fns, method=self.method, chunk_size=self.chunk_size)
        return rows(params, tuple(self.batches))

    def _order(self, params: Any) -> list[np.ndarray]:
        """Indices of the residuals, leaf by leaf, in the order of the examples."""
        found, start = [], 0
        for fn, batch in zip(self.residuals.fns, self.batches, strict=True):
            size = jax.tree.leaves(batch)[0].shape[0]
            leaves = jax.tree.leaves(jax.eval_shape(fn, params, _example(batch)))
            parts = [1 + jnp.issubdtype(leaf.dtype, jnp.complexfloating) for leaf in leaves]
            ends = np.cumsum(np.repeat([leaf.size for leaf in leaves], parts))
            places = start + np.arange(size * ends[-1]).reshape(size, ends[-1])
            found += [part.reshape(-1) for part in np.split(places, ends[:-1], axis=1)]
            start += places.size
        return found


def example_residuals(residual_fn: Any, batch: Any) -> ExampleResiduals:
    """Check functions of one example and their batches.

    Args:
        residual_fn: `residual_fn(params, example, *args)`, or a list, tuple or dict of functions.
        batch: The examples; for several functions, a container with one batch per function.
    """
    several = isinstance(residual_fn, (list, tuple, dict)) and len(residual_fn) > 0
    fns, structure = jax.tree.flatten(residual_fn if several else 0)
    fns = fns if several else [residual_fn]
    if not all(map(callable, fns)):
        raise TypeError(
            f"{where()}residual_fn is {type_text(residual_fn)}, expected fn(params, "
            "example) or a list of such functions, because batch is given."
        )
    residuals = ExampleResiduals(tuple(fns), structure)
    for each in residuals.batches(batch):
        pairs = [(leaf_text(path), leaf) for path, leaf in leaves_with_names(each)[0]]
        check_batch(pairs, "residual_fn", _SHARED)
    return residuals


def by_example(
    flat: FlatResidual,
    x: jax.Array,
    examples: Examples,
    solver: str,
    method: str = "auto",
    chunk_size: int | None = None,
) -> FlatResidual:
    """Add the Gram matrix, or the Jacobian in chunks of examples, to the flat residuals.

    Args:
        flat: The residuals of the batch, as a function of the free variables.
        x: A point.
        examples: The examples, as functions of the free variables.
        solver: The name of the linear solver.
        method: Method for the rows of the Gram matrix; see :func:`fnopt.curvature.batch_jacobian`.
        chunk_size: Number of examples that are processed at once; `None` for all.

    Returns:
        The residuals with the Gram matrix of the rows, if steps need only this matrix and a tape of
        the functions takes less memory than the rows. Otherwise the residuals with the rows, or the
        residuals alone if products are sufficient.
    """
    examples = examples._replace(method=method, chunk_size=chunk_size)
    name, wide = linear_solver(solver, flat.rows, flat.n), flat.rows < flat.n
    if row_axes() and wide and solver != "cholesky":
        name = "cg"  # J J^T of sharded rows isn't a sum over devices
    if name == "cg":
        return flat
    by_rows = name == "cholesky" and wide and not row_axes()
    if by_rows and (method == "formed" or _has_short_tape(flat, x, examples)):
        from fnopt.curvature import check_rows  # imported only for Gram matrices

        check_rows(flat.m, "residuals", x.dtype, where(), "linear_solver='cg'")

        def gram(x: jax.Array, factor: Any = None) -> jax.Array:
            return examples.gram(flat.unravel(x), factor).astype(x.dtype)

        return flat._replace(gram=gram)
    shapes = jax.eval_shape(flat.unflatten, jax.ShapeDtypeStruct((flat.m,), x.dtype))
    return flat._replace(
        derivative=given_derivative(examples, shapes, flat.unravel(x), (), x.dtype)
    )


def _has_short_tape(flat: FlatResidual, x: jax.Array, examples: Examples) -> bool:
    """Whether a tape of the functions takes less memory than the rows of their Jacobian."""
    auto = examples._replace(method="auto", chunk_size=None)
    forms_rows: list[bool] = []

    def look(x: jax.Array) -> None:
        forms_rows.append(auto.jacobian(flat.unravel(x)).forms_rows)

    jax.eval_shape(look, x)
    return not forms_rows[0]

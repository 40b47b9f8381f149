"""Residual functions of one example, applied to a batch, with per-example Jacobians."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fnopt.core import Value, static
from fnopt.errors import (
    check_batch,
    count_text,
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
    "Pass arrays that all examples share in args. If residual_fn takes the whole batch at once, "
    "pass the batch in args instead of batch."
)


class ExampleResiduals(Value):
    """Function of a batch, `(params, batch, *args)`, that maps functions over the examples.

    Args:
        fns: Functions `fn(params, example, *args)` that return the residuals of one example.
        structure: The tree structure of the user's container of functions; a leaf if the user
            passed a single function.
    """

    fns: tuple[Function, ...]
    structure: Any = static()

    def __call__(self, params: Any, batch: Any, *args: Any) -> Any:
        """Residuals of all examples, in the container of the functions."""
        axes = (None, 0, *(None for _ in args))
        pairs = zip(self.fns, self.batches(batch), strict=True)
        residuals = []
        for fn, fn_batch in pairs:
            with explain_example_errors("residual_fn", _example(fn_batch)):
                common = replicate_for_batch((params, args), fn_batch)
                residuals.append(jax.vmap(fn, axes)(common[0], fn_batch, *common[1]))
        return jax.tree.unflatten(self.structure, residuals)

    def batches(self, batch: Any) -> list[Any]:
        """Split the user's batch into one batch for each function."""
        if jax.tree_util.treedef_is_leaf(self.structure):
            return [batch]
        if isinstance(batch, dict):
            same_keys = jax.tree.structure(dict.fromkeys(batch, 0)) == self.structure
            # JAX sorts the keys of a dict, so `fns` are in this order.
            batches = [batch[key] for key in sorted(batch)] if same_keys else []
        else:
            fns_in_dict = isinstance(jax.tree.unflatten(self.structure, self.fns), dict)
            batches = list(batch) if isinstance(batch, (list, tuple)) and not fns_in_dict else []
        if len(batches) != len(self.fns):
            raise TypeError(
                f"{where()}batch is {type_text(batch)}, expected a list of "
                f"{count_text(len(self.fns), 'batch', 'batches')}, one for each residual "
                "function, or a dict of batches with the keys of a dict of residual functions."
            )
        return batches

    def mapped(self, fn: Callable[[Function, Any], Any], batch: Any) -> ExampleResiduals:
        """Replace every function `f` by `fn(f, example)`, with the shapes of its example."""
        pairs = zip(self.fns, self.batches(batch), strict=True)
        return ExampleResiduals(tuple(fn(f, _example(b)) for f, b in pairs), self.structure)

    def of_free(
        self, assemble: Callable[[Any], Any], batch: Any, args: tuple[Any, ...]
    ) -> Examples:
        """Convert the functions to functions of the free variables and an example.

        Args:
            assemble: Function from the free variables to the params.
            batch: The examples.
            args: Further arguments of the functions.
        """

        def fn_of_free(fn: Function) -> Function:
            return lambda free, example: fn(assemble(free), example, *args)

        residuals = ExampleResiduals(tuple(map(fn_of_free, self.fns)), self.structure)
        return Examples(residuals, self.batches(batch))


def _example(batch: Any) -> Any:
    """Shapes and dtypes of one example."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), batch)


class Examples(NamedTuple):
    """Residual functions of one example with their batches, for per-example Jacobians."""

    residuals: ExampleResiduals
    batches: list[Any]
    method: str = "auto"  # as in :func:`fnopt.curvature.batch_jacobian`
    chunk_size: int | None = None  # number of examples that are processed at once

    def __call__(self, params: Any) -> Any:
        """Jacobian of all examples, with a tree like the params for every residual leaf."""
        return jax.tree.unflatten(
            self.residuals.structure, [J(params, batch) for J, batch in self._rows()]
        )

    def fold(self, step: Any, carry: Any, params: Any, args: tuple[()], along: Any) -> Any:
        """Fold over chunks of Jacobian rows, one function after the other.

        Args:
            step: `step(carry, rows, parts)` returns the next carry.
            carry: The initial carry.
            params: The params.
            args: No further arguments, because the functions close over them.
            along: Trees like the residuals, whose chunks are passed to `step` with the rows.
        """
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
        r"""Gram matrix :math:`J J^\top` of the rows, in the order of the concatenated residuals.

        Args:
            params: The params.
            factor: A scalar by which the residuals are multiplied, to prevent overflow.
        """
        params = replicate_for_batch(params, self.batches)
        K = self.jacobian(params, factor).gram()
        order = np.concatenate(self._order(params))
        # If every function returns one array, the orders agree, and indexing would only copy the
        # matrix.
        return K if np.array_equal(order, np.arange(order.size)) else K[order[:, None], order]

    def jacobian(self, params: Any, factor: Any = None) -> Any:
        """Jacobian of all examples, stored as its rows or as a tape of the functions."""
        from fnopt.curvature import batch_jacobian  # imported here, because few solvers need it

        def scale(fn: Function) -> Function:
            def scaled_fn(params: Any, example: Any) -> Any:
                r = fn(params, example)
                return jax.tree.map(lambda x: factor.astype(x.dtype) * x, r)

            return fn if factor is None else scaled_fn

        fns = tuple(map(scale, self.residuals.fns))
        rows = batch_jacobian(fns, method=self.method, chunk_size=self.chunk_size)
        return rows(params, tuple(self.batches))

    def _order(self, params: Any) -> list[np.ndarray]:
        """Row indices of every residual leaf in the Jacobian, whose rows are sorted by example."""
        indices, start = [], 0
        for fn, batch in zip(self.residuals.fns, self.batches, strict=True):
            size = jax.tree.leaves(batch)[0].shape[0]
            leaves = jax.tree.leaves(jax.eval_shape(fn, params, _example(batch)))
            parts = [1 + jnp.issubdtype(leaf.dtype, jnp.complexfloating) for leaf in leaves]
            ends = np.cumsum(np.repeat([leaf.size for leaf in leaves], parts))
            rows = start + np.arange(size * ends[-1]).reshape(size, ends[-1])
            indices += [part.reshape(-1) for part in np.split(rows, ends[:-1], axis=1)]
            start += rows.size
        return indices


def example_residuals(residual_fn: Any, batch: Any) -> ExampleResiduals:
    """Check functions of one example and their batches, and combine them.

    Args:
        residual_fn: `residual_fn(params, example, *args)`, or a list, tuple or dict of functions.
        batch: The examples; for several functions, a container with one batch per function.

    Raises:
        TypeError: If `residual_fn` isn't a function or a container of functions, or `batch` isn't a
            container like `residual_fn`.
    """
    is_container = isinstance(residual_fn, (list, tuple, dict)) and len(residual_fn) > 0
    fns, structure = jax.tree.flatten(residual_fn if is_container else 0)
    fns = fns if is_container else [residual_fn]
    if not all(map(callable, fns)):
        raise TypeError(
            f"{where()}residual_fn is {type_text(residual_fn)}, expected fn(params, "
            "example) or a list of such functions, because batch is given."
        )
    residuals = ExampleResiduals(tuple(fns), structure)
    for fn_batch in residuals.batches(batch):
        pairs = [(leaf_text(path), leaf) for path, leaf in leaves_with_names(fn_batch)[0]]
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
    """Add a per-example Jacobian or Gram matrix to the flat residuals, for the linear solver.

    Args:
        flat: The residuals of the batch, as a function of the free variables.
        x: A vector of free variables, for shapes and dtypes.
        examples: The residual functions of the free variables and one example.
        solver: The name of the linear solver.
        method: Method for the rows of the Gram matrix; see :func:`fnopt.curvature.batch_jacobian`.
        chunk_size: Number of examples that are processed at once; `None` for all.

    Returns:
        `flat` unchanged if the linear solver uses only products with the Jacobian. `flat` with
        `gram` if the linear solver uses only :math:`J J^T` and a tape of the functions takes less
        memory than the Jacobian. Otherwise, `flat` with `derivative`.
    """
    examples = examples._replace(method=method, chunk_size=chunk_size)
    solver_name = linear_solver(solver, flat.rows, flat.n)
    is_wide = flat.rows < flat.n
    if row_axes() and is_wide and solver != "cholesky":
        # Unlike J^T J, J J^T of sharded rows isn't a sum over devices.
        solver_name = "cg"
    if solver_name == "cg":
        return flat
    uses_row_gram = solver_name == "cholesky" and is_wide and not row_axes()
    if uses_row_gram and (method == "formed" or _has_short_tape(flat, x, examples)):
        from fnopt.curvature import check_rows  # imported here, because few solvers need it

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
    forms_rows: list[bool] = []  # a list, because `eval_shape` returns no Python value

    def append_choice(x: jax.Array) -> None:
        forms_rows.append(auto.jacobian(flat.unravel(x)).forms_rows)

    jax.eval_shape(append_choice, x)
    return not forms_rows[0]

"""Residuals of a batch, given by a function of one example."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fnopt.core import check_batch, described, leaves_with_names, shown, where
from fnopt.jacobians import per_example_jacobian
from fnopt.residuals._flat import FlatResidual


class ExampleResiduals(NamedTuple):
    """Functions of one example with the batches that they are for.

    Attributes:
        fns: `fn(params, example)` each.
        batches: For each the examples: leaves have a leading axis.
        single: Whether the user gave one function, not a sequence.
    """

    fns: tuple[Callable[[Any, Any], Any], ...]
    batches: tuple[Any, ...]
    single: bool

    def residuals(self, params: Any) -> Any:
        """The residuals of all examples."""
        pairs = zip(self.fns, self.batches, strict=True)
        return self._trees([jax.vmap(fn, (None, 0))(params, batch) for fn, batch in pairs])

    def jacobian(self, params: Any, chunk_size: int | None) -> Any:
        """Their Jacobian as blocks, by one pass for each residual of an example."""
        rows = functools.partial(per_example_jacobian, mode="auto", chunk_size=chunk_size)
        pairs = zip(self.fns, self.batches, strict=True)
        return self._trees([rows(fn)(params, batch) for fn, batch in pairs])

    def gram(self, params: Any, method: str) -> jax.Array:
        r""":math:`J J^\top`, in the order in which the residuals are laid end to end."""
        from fnopt.curvature import batch_jacobian  # only who steps by it waits for the import

        fns = self._trees(list(self.fns))
        K = batch_jacobian(fns, method=method)(params, self._trees(list(self.batches))).gram()
        order = np.concatenate(self._order(params))
        return K if np.array_equal(order, np.arange(order.size)) else K[order[:, None], order]

    def _trees(self, parts: list[Any]) -> Any:
        return parts[0] if self.single else tuple(parts)

    def _order(self, params: Any) -> list[np.ndarray]:
        """Where the residuals, leaf by leaf, are among those of example after example."""
        found, start = [], 0
        for fn, batch in zip(self.fns, self.batches, strict=True):
            example = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), batch)
            size = jax.tree.leaves(batch)[0].shape[0]
            widths = []
            for leaf in jax.tree.leaves(jax.eval_shape(fn, params, example)):
                parts = 2 if jnp.issubdtype(leaf.dtype, jnp.complexfloating) else 1
                widths += [leaf.size] * parts
            places = start + np.arange(size * sum(widths)).reshape(size, sum(widths))
            cuts = np.cumsum(widths)[:-1]
            found += [part.reshape(-1) for part in np.split(places, cuts, axis=1)]
            start += places.size
        return found


def example_residuals(residual_fn: Any, batch: Any) -> ExampleResiduals:
    """Checks a function of one example, or a sequence of such, and the batches that belong to it.

    Args:
        residual_fn: `residual_fn(params, example)`, or a list or tuple of functions.
        batch: The examples, or for several functions a list or tuple of as many batches.
    """
    single = callable(residual_fn)
    several = (
        isinstance(residual_fn, (list, tuple)) and residual_fn and all(map(callable, residual_fn))
    )
    if not single and not several:
        raise TypeError(
            f"{where()}residual_fn is {described(residual_fn)}, expected fn(params, example) or a "
            "list of such functions, for there is a batch."
        )
    fns = (residual_fn,) if single else tuple(residual_fn)
    if not single and (not isinstance(batch, (list, tuple)) or len(batch) != len(fns)):
        raise TypeError(
            f"{where()}batch is {described(batch)}, expected a list of {len(fns)} batches: one for "
            "each residual function."
        )
    batches = (batch,) if single else tuple(batch)
    for each in batches:
        pairs = [(f"{shown(path)} of the batch", x) for path, x in leaves_with_names(each)[0]]
        check_batch(pairs, "residual_fn")
    return ExampleResiduals(fns, batches, single)


def with_rows(flat: FlatResidual, examples: ExampleResiduals, method: str) -> FlatResidual:
    """The flat residuals of examples, with the Gram matrix of their rows.

    Args:
        flat: That of `examples.residuals`.
        examples: The examples.
        method: As in :func:`fnopt.curvature.batch_jacobian`.
    """
    return flat._replace(gram=lambda x: examples.gram(flat.unravel(x), method).astype(x.dtype))

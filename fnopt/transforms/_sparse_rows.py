"""Row-sparse updates of embedding tables."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import Rows, Transformation, is_rows, is_wide, map_slots
from fnopt.errors import type_text, where
from fnopt.numerics import dtype_of, is_inexact
from fnopt.transforms._accumulate import accumulate, apply_every
from fnopt.transforms._chain import Wrapper


class SparseRowsState(NamedTuple):
    """The inner state, whose slots contain all rows of the tables."""

    inner_state: Any


class sparse_rows(Wrapper):
    r"""Update only the rows of embedding tables that a batch has looked up.

    .. math:: (u_i, s_i') &= \mathrm{inner}(g_i, s_i, \theta_i) \quad \text{for the rows } i
              \text{ of the batch}, \\
              (u_i, s_i') &= (0, s_i) \text{ for all others}

    The gradient has `fnopt.core.Rows` in place of a table, like the result of
    `fnopt.sparse_value_and_grad`; repeated rows are summed. The inner optimizer updates only these
    rows of params and slots. With donated params and state, the update is in place. The cost of a
    step then depends on the number of rows, not on the size of the table.

    For SGD and AdaGrad the step equals the step for the dense gradient. Methods with averages
    become their *lazy* forms (lazy Adam, lazy momentum): in steps without a row, the averages and
    the params of the row don't change (no weight decay), but the step count does. The inner
    optimizer should be elementwise. Clipping by the global norm inside is also correct, because the
    gradient of all other rows is zero. Leaves without `Rows` are updated as usual.

    Put `sparse_rows` around the whole optimizer, because other transforms don't accept `Rows`.

    Args:
        inner: The optimizer, a `Transformation` or any (init, update) pair.

    Raises:
        ValueError: If `inner` accumulates gradients over steps, or has a slot without a row for
            every row of the table.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, params = fnopt.sparse_rows(fnopt.adam(0.1)), {"table": jnp.ones((1000, 2))}
        >>> rows = fnopt.core.Rows(jnp.asarray([7, 3, 7]), jnp.ones((3, 2)), size=1000)
        >>> updates, state = tx.update({"table": rows}, tx.init(params), params)
        >>> params = fnopt.apply_updates(params, updates)
        >>> print(params["table"][2:4, 0], (params["table"] != 1).sum())
        [1.  0.9] 4
    """

    State = SparseRowsState
    other_gradients = True

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_members(self.inner)

    def update(
        self, updates: Any, state: SparseRowsState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, SparseRowsState]:
        """Take the inner step for the rows, and for all other leaves."""
        nodes, treedef = jax.tree.flatten(updates, is_leaf=is_rows)
        reference = params if params is not None else updates
        if not any(map(is_rows, nodes)):
            new_updates, inner_state = self.inner.update(
                updates, state.inner_state, params, **extra_args
            )
            new_updates = _restore_rows(
                nodes, treedef, new_updates, None if is_wide(self) else reference
            )
            return new_updates, SparseRowsState(inner_state)
        # A row that was looked up twice gets one step for the sum of its gradients, because the
        # steps of adaptive methods aren't additive.
        nodes = [node.summed() if is_rows(node) else node for node in nodes]
        if params is not None:
            for node, p in zip(nodes, treedef.flatten_up_to(params), strict=True):
                if is_rows(node) and jnp.shape(p) != (node.size, *node.values.shape[1:]):
                    raise ValueError(
                        f"{where()}the row-sparse gradient belongs to a table of shape "
                        f"{(node.size, *node.values.shape[1:])}, but the parameter has shape "
                        f"{jnp.shape(p)}; expected equal shapes. Differentiate with respect to "
                        "these params."
                    )

        def take_rows(what: str, tree: Any) -> Any:
            try:
                parts = treedef.flatten_up_to(tree)
            except ValueError:
                raise ValueError(
                    f"{where()}{what!r} differs in structure from the params, expected "
                    "one array per leaf, so that sparse_rows can select rows. Use an elementwise "
                    "optimizer."
                ) from None
            pairs = zip(nodes, parts, strict=True)
            return treedef.unflatten([_take_rows(what, *pair) for pair in pairs])

        row_grads = treedef.unflatten([n.values if is_rows(n) else n for n in nodes])
        row_params = None if params is None else take_rows("params", params)
        inner_state = map_slots(take_rows, state.inner_state)
        new_updates, inner_state = self.inner.update(
            row_grads, inner_state, row_params, **extra_args
        )
        old_slots: dict[str, Any] = {}
        map_slots(old_slots.setdefault, state.inner_state)

        def write_rows(path: str, slot: Any) -> Any:
            columns = treedef.flatten_up_to(slot), treedef.flatten_up_to(old_slots[path])
            return treedef.unflatten(
                node.into(table, rows) if is_rows(node) and rows is not None else rows
                for node, rows, table in zip(nodes, *columns, strict=True)
            )

        inner_state = map_slots(write_rows, inner_state)
        new_updates = _restore_rows(
            nodes, treedef, new_updates, None if is_wide(self) else reference
        )
        return new_updates, SparseRowsState(inner_state)


def _check_members(tx: Transformation) -> None:
    if isinstance(tx, (accumulate, apply_every)):
        raise ValueError(
            f"{where()}sparse_rows: the inner transform {type(tx).__name__} sums the gradients of "
            "several steps, but each gradient has different rows; expected a transform that takes "
            "a step for every gradient. Sum the losses of the batches instead."
        )
    for member in tx.members():
        _check_members(member.tx)


def _take_rows(what: str, node: Any, part: Any) -> Any:
    if not is_rows(node) or part is None:
        return part
    if getattr(part, "shape", ())[:1] != (node.size,):
        raise ValueError(
            f"{where()}{what!r} is {type_text(part)}, expected a first axis of length "
            f"{node.size}, one entry per row of the table. Use an elementwise optimizer, without "
            "quantized_state."
        )
    return node.of(part)


def _restore_rows(nodes: list[Any], treedef: Any, new_updates: Any, reference: Any) -> Any:
    """Wrap the updates of rows in `Rows`, and cast other updates to the dtypes of `reference`."""
    # The base class casts only updates with the structure of the params, so not a tree with `Rows`.
    new_leaves = treedef.flatten_up_to(new_updates)
    like_leaves = new_leaves if reference is None else treedef.flatten_up_to(reference)

    def wrap_leaf(node: Any, u: Any, p: Any) -> Any:
        if is_rows(node):
            return Rows(node.indices, u, node.size, True)
        return u.astype(dtype_of(p)) if is_inexact(u) and is_inexact(p) else u

    triples = zip(nodes, new_leaves, like_leaves, strict=True)
    return treedef.unflatten([wrap_leaf(*triple) for triple in triples])

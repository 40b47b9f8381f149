"""Values and cotangents of the nodes inside a function, and the list of nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fnopt.errors import type_text
from fnopt.programs import Node, NodeFn, NodeValues, copy_function
from fnopt.taps._program import (
    TracedCall,
    checked_names,
    has_scopes,
    lacks_cotangent,
    lacks_value,
    trace_program,
)
from fnopt.taps._reductions import Reduction, as_reduction
from fnopt.taps._tap import add_probe, add_reduced_probe, probe_dtype


class Captured(NamedTuple):
    """The values and cotangents captured at the nodes of a function.

    Attributes:
        values: The value at each node, or its reduction, keyed by the node's name.
        cotangents: The derivative of the loss with respect to each node, or its reduction.
        grads: The gradient with respect to the arguments in `argnums`; `None` without them.
    """

    values: dict[str, Any]
    cotangents: dict[str, Any]
    grads: Any = None


def capture(
    fn: Callable[..., Any],
    names: str | Iterable[str] | None = None,
    *,
    values: bool = True,
    cotangents: bool = False,
    argnums: int | Sequence[int] | None = None,
    has_aux: bool = False,
    reduce: Any = None,
) -> Callable[..., tuple[Any, Captured]]:
    r"""Return values, cotangents and gradients at named nodes inside a function.

    .. math:: h, \qquad \bar h = \frac{\partial\, \text{loss}}{\partial h}, \qquad
              \frac{\partial\, \text{loss}}{\partial\theta}

    The model needs no change except the taps. `capture` takes one forward pass, and one backward
    pass if cotangents or gradients are requested. Wrap the result in `jax.jit`, as with `jax.grad`.

    A node inside a scan has a leading axis of iterations (entry `t` belongs to `xs[t]`). In a
    branch of `cond` that doesn't run, values and cotangents are zero. If several branches tap one
    name with equal shapes, the result is the value in the branch that runs. Inside a `while_loop`,
    `capture` returns the value of the last iteration and no cotangent. Inside a function with a
    custom derivative rule, nodes have values but no cotangents.

    Args:
        fn: Any JAX function; a scalar loss for cotangents or gradients.
        names: One or several names, or `None` for all taps. `'attention#2'` selects one of several
            taps with equal names, `'state'` and `'state/h'` a tapped tree and a leaf of the tree,
            and `'layer_*'` all matching taps (`*` also matches slashes). `'scope:Model/Dense_0'`
            is the last floating-point value that is computed in a `jax.named_scope` and used
            outside of the scope. flax and Equinox modules open such scopes.
        values: Whether to return the nodes' values.
        cotangents: Whether to return the nodes' cotangents. If a name matches several nodes, or
            `names` is `None`, nodes without a cotangent are omitted.
        argnums: Positional arguments to differentiate for `grads`, as in `jax.grad`.
        has_aux: Whether `fn` returns `(loss, aux)`; used only for cotangents and gradients.
        reduce: The reduction of each value and cotangent, or a sequence or dict of reductions. A
            reduction is a function of one array that returns a tree of arrays, or one of the
            following names. `'rms'` and `'mean'` are the root mean square and the mean. `'max'` is
            the largest magnitude. `'zeros'` and `'nonfinite'` are the fractions of such elements.
            `'dead'` is the fraction of features (on the last axis) that are zero for all examples.
            `'histogram'` counts magnitudes in 32 bins, as in `fnopt.monitor`. Bin `k` ranges from
            :math:`2^{-42+2k}` to :math:`2^{-40+2k}`; the first and last bin also count smaller and
            larger magnitudes. Reductions run inside scans, so that large arrays aren't stacked.

    Returns:
        A function of the arguments of `fn` that returns `(output of fn, Captured)`. A cotangent has
        the shape and dtype of its value.

    Raises:
        ValueError: If a name matches no node, or only nodes without a cotangent; the message lists
            the available nodes.
        TypeError: If cotangents are requested and `fn` doesn't return a real scalar.

    Example:
        >>> from fnopt.taps import capture, tap
        >>> def loss(w, x):
        ...     h = tap("hidden", jax.nn.relu(x * w))
        ...     return jnp.sum(h**2)
        >>> run = jax.jit(capture(loss, "hidden", cotangents=True, argnums=0))
        >>> out, nodes = run(jnp.array([1.0, -1.0]), jnp.array([3.0, 2.0]))
        >>> nodes.values["hidden"].tolist(), nodes.cotangents["hidden"].tolist()
        ([3.0, 0.0], [6.0, 0.0])
        >>> float(out), nodes.grads.tolist()
        (9.0, [18.0, 0.0])
    """
    selection = checked_names("capture", names)
    reduction = as_reduction("capture", reduce)

    def run(*args: Any, **kwargs: Any) -> tuple[Any, Captured]:
        program = trace_program("capture", fn, args, kwargs, argnums, scopes=has_scopes(selection))
        value_nodes = set(program.select(selection, lacks_value)) if values else set()
        cotangent_nodes = program.select(selection, lacks_cotangent) if cotangents else []
        # Only requested nodes are visited, so that the compiler can fuse across other nodes.
        program = program.restrict({*value_nodes, *cotangent_nodes})
        visit = _visitor(value_nodes, reduction)
        if not cotangents and argnums is None:
            out, records = program.run(visit, {})
            return out, Captured(program.by_name(records), {})
        out, records, node_cotangents, grads = _backward(
            program, visit, cotangent_nodes, reduction, has_aux
        )
        grads = None if argnums is None else jax.tree.unflatten(program.diff_tree, grads)
        return out, Captured(program.by_name(records), program.by_name(node_cotangents), grads)

    return run


def _visitor(value_nodes: set[int], reduction: Reduction | None) -> NodeFn:
    def visit(node: int, value: Any, probe: Any) -> tuple[Any, Any]:
        if probe is not None and reduction:
            value = add_reduced_probe(reduction, value, probe)
        elif probe is not None:
            value = add_probe(value, probe)
        if node not in value_nodes:
            return value, None
        return value, reduction(value) if reduction else value

    return visit


def _backward(
    program: TracedCall,
    visit: NodeFn,
    cotangent_nodes: list[int],
    reduction: Reduction | None,
    has_aux: bool,
) -> tuple[Any, NodeValues, NodeValues, list[Any]]:
    """Run a forward and a backward pass.

    Returns:
        The output, the records per node, the cotangents per node, and the gradient's leaves.
    """
    shapes = {i: cotangent_shape(program.nodes[i], reduction) for i in cotangent_nodes}
    probes = jax.tree.map(lambda s: jnp.zeros(s.shape, probe_dtype(s.dtype)), shapes)

    def loss(probes: NodeValues, diff: list[Any]) -> tuple[jax.Array, tuple[Any, NodeValues]]:
        out, records = program.run(visit, probes, diff)
        return _scalar(out, has_aux), (out, records)

    backward = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)
    (_, (out, records)), (node_cotangents, grads) = backward(probes, program.diff_inputs)
    node_cotangents = jax.tree.map(lambda c, s: c.astype(s.dtype), node_cotangents, shapes)
    return out, records, node_cotangents, grads


def cotangent_shape(node: Node, reduction: Reduction | None) -> Any:
    """Shapes and dtypes of the cotangent that `capture` stores for a node."""
    cotangent = jax.ShapeDtypeStruct(node.shape, node.dtype)
    if reduction is None:
        return cotangent
    # The reduction runs in every iteration of the scans around the node.
    iteration = jax.ShapeDtypeStruct(node.shape[len(node.axes) :], node.dtype)
    # A copy, because JAX caches the trace of a function, although its globals may change.
    reduced = jax.eval_shape(copy_function(reduction), iteration)
    return jax.tree.map(lambda s: jax.ShapeDtypeStruct((*node.axes, *s.shape), s.dtype), reduced)


def _scalar(out: Any, has_aux: bool) -> Any:
    pair = isinstance(out, tuple) and len(out) == 2
    if has_aux and not pair:
        raise TypeError(
            f"capture: the function returned {type_text(out)}, expected a pair (loss, aux), "
            "because has_aux=True."
        )
    loss: Any = out[0] if has_aux else out
    if getattr(loss, "shape", None) != () or not jnp.issubdtype(loss.dtype, jnp.floating):
        hint = "Pass has_aux=True if it returns (loss, aux). " if pair else ""
        raise TypeError(
            f"capture: the function returned {type_text(loss)}, expected a real scalar "
            f"for cotangents and gradients. {hint}For other derivatives use grad_between or "
            "jacobian_between."
        )
    return loss


_ARRAYS = (jax.Array, np.ndarray, np.generic, jax.ShapeDtypeStruct)


def nodes(fn: Callable[..., Any], *, scopes: bool = False) -> Callable[..., tuple[Node, ...]]:
    """List the nodes inside a function without running it.

    Args:
        fn: Any JAX function.
        scopes: Whether to include the named scopes of `fn`.

    Returns:
        A function of the arguments of `fn` (arrays or `jax.ShapeDtypeStruct`s). The function
        returns a tuple of `Node`s in the order of the program. Each `Node` has a name, a shape, a
        dtype, and a note if it has no cotangent.

    Example:
        >>> from fnopt.taps import nodes, tap
        >>> def model(w, x):
        ...     with jax.named_scope("layer"):
        ...         return jnp.tanh(tap("linear", w * x))
        >>> for node in nodes(model, scopes=True)(jnp.ones(3), jnp.ones(3)):
        ...     print(node.name, node.shape)
        linear (3,)
        scope:layer (3,)
    """

    def list_nodes(*args: Any, **kwargs: Any) -> tuple[Node, ...]:
        leaves, treedef = jax.tree.flatten((args, kwargs))
        abstract = {i: leaf for i, leaf in enumerate(leaves) if isinstance(leaf, _ARRAYS)}
        traced_nodes: list[Node] = []

        def trace(arrays: dict[int, Any]) -> None:
            concrete_and_traced = [arrays.get(i, x) for i, x in enumerate(leaves)]
            args, kwargs = jax.tree.unflatten(treedef, concrete_and_traced)
            traced_nodes.extend(trace_program("nodes", fn, args, kwargs, scopes=scopes).nodes)

        # `eval_shape` also accepts `jax.ShapeDtypeStruct`s as arguments.
        jax.eval_shape(trace, abstract)
        return tuple(traced_nodes)

    return list_nodes

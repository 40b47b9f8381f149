"""Traced call of a user's function, with its nodes."""

from __future__ import annotations

import difflib
import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fnopt.errors import (
    check_params,
    count_text,
    explain_jax_errors,
    explain_missing_keys,
    leaf_text,
    leaves_with_names,
    matches,
    names_text,
)
from fnopt.programs import (
    SCOPE_PREFIX,
    JaxprNodes,
    Node,
    NodeFn,
    NodeValues,
    find_nodes,
    intercept_nodes,
)

_ARRAYS = (jax.Array, np.ndarray, np.generic)

Argnums = int | Sequence[int] | None
"""Positional arguments that are differentiated, as in `jax.grad`; `None` for no argument."""

Names = tuple[str, ...] | None
"""Names and patterns of nodes, or `None` for all taps."""

Reason = Callable[[Node], str]
"""Function that returns why a node lacks the requested value or cotangent, or `''`."""

_DIFFERENTIATED = (
    "jax.grad and jax.vjp remove the taps inside: pass the loss itself instead of a function that "
    "differentiates the loss. capture(loss, cotangents=True, argnums=0) also returns the gradient."
)


class TracedCall(NamedTuple):
    """A call of the user's function as a jaxpr with its nodes and inputs.

    Attributes:
        name: The public function that the user called, for messages.
        level: The jaxpr with its nodes.
        nodes: All nodes; their indices are the keys of `NodeValues`.
        inputs: The array arguments of the call.
        diff: The positions of the differentiated arrays among `inputs`.
        diff_tree: The tree structure of the differentiated arguments (a tuple for a sequence
            `argnums`).
        out_tree: The structure of the output.
    """

    name: str
    level: JaxprNodes
    nodes: tuple[Node, ...]
    inputs: list[Any]
    diff: list[int]
    diff_tree: Any
    out_tree: Any

    def run(
        self, visit: NodeFn, probes: NodeValues, diff: Sequence[Any] | None = None
    ) -> tuple[Any, NodeValues]:
        """Evaluate the program; return its output and the records per node.

        Args:
            visit: Function that is called at each node that `restrict` selected.
            probes: Extra inputs of `visit`, keyed by node.
            diff: New values of the differentiated inputs.
        """
        inputs = list(self.inputs)
        for i, value in zip(self.diff, self.diff_inputs if diff is None else diff, strict=True):
            inputs[i] = value
        outs, records = intercept_nodes(self.level, inputs, visit, probes)
        return jax.tree.unflatten(self.out_tree, outs), records

    @property
    def diff_inputs(self) -> list[Any]:
        """The differentiated inputs."""
        return [self.inputs[i] for i in self.diff]

    def restrict(self, indices: Iterable[int]) -> TracedCall:
        """Copy the program such that it visits only the nodes with these indices."""
        return self._replace(level=self.level.restrict(set(indices)))

    def by_name(self, records: NodeValues) -> dict[str, Any]:
        """Records keyed by the names of their nodes, in program order.

        Nodes with equal names in different branches of a `cond` are treated as one node, because
        only one of these nodes can run. Branches that don't run record zeros.
        """
        named: dict[str, Any] = {}
        for i in sorted(records):
            # Branches are merged only if the nodes of all branches were recorded.
            base = _base(self.nodes[i].name)
            group = [k for k, node in enumerate(self.nodes) if _base(node.name) == base]
            if records.keys() >= {*group} and _are_alternatives([self.nodes[k] for k in group]):
                named[base] = jax.tree.map(_merge_records, *(records[k] for k in group))
            else:
                named[self.nodes[i].name] = records[i]
        return named

    def select(self, names: Names, reason: Reason) -> list[int]:
        """Indices of the nodes with these names that have a value (or a cotangent).

        Patterns and `None` skip nodes without a value (or cotangent). Each pattern must match at
        least one node.

        Raises:
            ValueError: If a name matches no node, or no node with a value (or cotangent). The
                message lists the available nodes or the reason.
        """
        groups = [self._all_taps()] if names is None else [self.matches(n) for n in names]
        selection: set[int] = set()
        for group in groups:
            capturable = [i for i in group if not reason(self.nodes[i])]
            if not capturable:
                node = self.nodes[group[0]]
                raise ValueError(f"{self.name}: {node.name!r} has {reason(node)}.")
            selection.update(capturable)
        return sorted(selection)

    def _all_taps(self) -> list[int]:
        taps = [i for i, node in enumerate(self.nodes) if not node.name.startswith(SCOPE_PREFIX)]
        if not taps:
            raise ValueError(f"{self.name}: {self._no_taps()}")
        return taps

    def matches(self, pattern: str) -> list[int]:
        """Indices of the nodes with an exact name, else in a tapped tree, else matching a glob."""
        # A node matches by its full name `name#0` or by `name`, which nodes may share.
        aliases = [(i, (node.name, _base(node.name))) for i, node in enumerate(self.nodes)]
        indices = [i for i, names in aliases if pattern in names]
        if not indices and not pattern.startswith(SCOPE_PREFIX):
            indices = [i for i, (_, base) in aliases if base.startswith(f"{pattern}/")]
        if not indices:
            # A pattern matches scopes only if it has their prefix: `*` stands for all taps.
            is_scope = pattern.startswith(SCOPE_PREFIX)
            indices = [
                i
                for i, names in aliases
                if names[0].startswith(SCOPE_PREFIX) == is_scope
                and any(matches(name, pattern) for name in names)
            ]
        if not indices:
            raise ValueError(
                f"{self.name}: no node is called {pattern!r}{self._available(pattern)}"
            )
        return indices

    def only_node(self, name: str, reason: Reason) -> int:
        """Index of the only node with a name.

        Raises:
            ValueError: If the name matches no node, several nodes, or a node without the requested
                value or cotangent.
        """
        indices = self.select((name,), reason)
        if len(indices) > 1:
            names = [self.nodes[i].name for i in indices]
            raise ValueError(
                f"{self.name}: {name!r} is the name of {len(indices)} nodes, expected one: choose "
                f"from {names_text(names)}."
            )
        return indices[0]

    def _available(self, pattern: str) -> str:
        scope = pattern.startswith(SCOPE_PREFIX)
        names = [node.name for node in self.nodes if node.name.startswith(SCOPE_PREFIX) == scope]
        if not names:
            return f". {'The function has no named scopes.' if scope else self._no_taps()}"
        close = difflib.get_close_matches(pattern, names, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        hint = hint or f" {_DIFFERENTIATED}"
        return f", expected one of {names_text(names, 20)}.{hint}"

    def _no_taps(self) -> str:
        return (
            "The function has no taps: name a value where it is computed, h = fnopt.tap('h', h), "
            f"or choose a named scope by its path, such as '{SCOPE_PREFIX}*/Dense_0' "
            f"(fnopt.nodes(fn, scopes=True)(...) lists the scopes). {_DIFFERENTIATED}"
        )


def _base(name: str) -> str:
    """Node name without the `#` suffix that distinguishes nodes with equal names."""
    return name.rpartition("#")[0] or name


def _are_alternatives(nodes: list[Node]) -> bool:
    """Whether several nodes have equal shapes and only one of the nodes can run."""
    shapes = {(node.shape, node.dtype) for node in nodes}
    pairs = itertools.combinations(nodes, 2)
    return len(nodes) > 1 == len(shapes) and all(a.excludes(b) for a, b in pairs)


def _merge_records(*records: jax.Array) -> jax.Array:
    """Merge the records of alternative nodes; the records of nodes that didn't run are zero."""
    join = jnp.logical_or if records[0].dtype == bool else jnp.add
    return functools.reduce(join, records)


def trace_program(
    name: str,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    argnums: Argnums = None,
    *,
    scopes: bool = False,
) -> TracedCall:
    """Trace a call of `fn` and find the nodes.

    Args:
        name: The public function, for messages.
        fn: The user's function.
        args: The positional arguments of the call.
        kwargs: The keyword arguments of the call.
        argnums: The positional arguments to differentiate.
        scopes: Whether named scopes are also nodes.
    """
    leaves, treedef = jax.tree.flatten((args, kwargs))
    diff, diff_tree = _diff_leaves(name, args, argnums)
    # Like `jax.grad`, the trace keeps flags, names and functions among the arguments concrete.
    array_leaves = {i for i, leaf in enumerate(leaves) if isinstance(leaf, _ARRAYS)}.union(diff)
    traced = {i: position for position, i in enumerate(sorted(array_leaves))}

    def call_function(inputs: list[Any]) -> Any:
        full = list(leaves)
        for i, value in zip(traced, inputs, strict=True):
            full[i] = value
        args, kwargs = jax.tree.unflatten(treedef, full)
        with (
            explain_jax_errors(name, "the function"),
            explain_missing_keys(args[0] if args else None),
        ):
            return fn(*args, **kwargs)

    # One trace per call suffices for values, cotangents and gradients.
    inputs = [jnp.asarray(leaves[i]) for i in traced]
    closed, shapes = jax.make_jaxpr(call_function, return_shape=True)(inputs)
    level, nodes = find_nodes(closed, scopes)
    # The traced inputs are only the array leaves, so leaf indices become input indices.
    positions, out_tree = [traced[i] for i in diff], jax.tree.structure(shapes)
    return TracedCall(name, level, nodes, inputs, positions, diff_tree, out_tree)


def _diff_leaves(name: str, args: tuple[Any, ...], argnums: Argnums) -> tuple[list[int], Any]:
    """Positions of the differentiated leaves among all leaves, and their tree structure."""
    if isinstance(argnums, int):
        return [*_leaves_of(name, args, argnums)], jax.tree.structure(args[argnums])
    numbers = argnums or ()
    positions = [i for n in numbers for i in _leaves_of(name, args, n)]
    return positions, jax.tree.structure(tuple(args[n] for n in numbers))


def _leaves_of(name: str, args: tuple[Any, ...], n: int) -> range:
    if not -len(args) <= n < len(args):
        raise ValueError(
            f"{name}: argnums contains {n}, expected indices of the "
            f"{count_text(len(args), 'positional argument')}."
        )
    n %= len(args)
    pairs, _ = leaves_with_names(args[n])
    check_params([(f"argument {n}, {leaf_text(path)}", leaf) for path, leaf in pairs], name)
    # The leaves of all arguments are numbered consecutively, in the order of `jax.tree.flatten`.
    start = len(jax.tree.leaves(args[:n]))
    return range(start, start + len(pairs))


def has_scopes(names: Names) -> bool:
    """Whether any of the names refers to a scope."""
    return any(name.startswith(SCOPE_PREFIX) for name in names or ())


def checked_names(name: str, names: Any) -> Names:
    """Convert one or several names to a tuple and check their types; `None` stays `None`."""
    if names is None:
        return None
    if callable(names):
        raise TypeError(
            f"{name}: the argument `names` is a function, expected names of nodes. Pass the "
            "names after the function."
        )
    node_names = (names,) if isinstance(names, str) else tuple(names)
    for n in node_names:
        if not isinstance(n, str):
            raise TypeError(f"{name}: {n!r} is a {type(n).__name__}, expected the name of a node.")
    if not node_names:
        raise ValueError(f"{name}: got no names, expected the name of at least one node.")
    return node_names


def lacks_value(node: Node) -> str:
    """Reason why a node's value can't be captured, or `''`."""
    return "" if node.visible else f"no value to show: it is {node.note}"


def lacks_cotangent(node: Node) -> str:
    """Reason why a node has no cotangent, or `''`."""
    return f"no cotangent: it is {node.note}" if node.note else ""

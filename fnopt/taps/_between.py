"""Derivatives of a node with respect to another node or the arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.errors import check_choice, type_text
from fnopt.jacobians import tree_or_matrix
from fnopt.taps._program import has_scopes, lacks_cotangent, trace_program
from fnopt.taps._tap import add_probe

Source = str | int | Sequence[int]
MODES = ("auto", "forward", "reverse")


class _NodeFunction(NamedTuple):
    """Function from the value at `src` to the value at `dst`, and its point of linearization."""

    destination: Callable[[Any], Any]
    source: Any


def grad_between(
    fn: Callable[..., Any],
    src: Source,
    dst: str | None = None,
    *,
    select: Callable[[Any], Any] | None = None,
) -> Callable[..., Any]:
    r"""Gradient of a node, or of a scalar function of a node, with respect to another node.

    .. math:: \frac{\partial\, s(\text{dst})}{\partial\, \text{src}}

    Examples are the gradient of a class score for a saliency map, and the gradient of a unit's
    activation with respect to the params. The cost is one backward pass from `dst` to `src`.

    Args:
        fn: Any JAX function.
        src: The name of one node (as in `capture`), or positional arguments, as an int or a
            sequence of ints.
        dst: The name of one node, or `None` for the function's output.
        select: Function from the value at `dst` to a real scalar, such as `lambda scores: scores[0,
            3]`. Without `select`, the value at `dst` must be a scalar.

    Returns:
        A function of the arguments of `fn` that returns the gradient. The gradient has the
        structure of the value at `src`, with leading axes for scan iterations. The gradient is zero
        if `dst` doesn't depend on `src`.

    Raises:
        ValueError: If a name matches no node, several nodes, or a node without a derivative.
        TypeError: If the value at `dst`, or the result of `select`, isn't a real scalar.

    Example:
        >>> from fnopt.taps import grad_between, tap
        >>> def model(w, x):
        ...     return tap("scores", jnp.tanh(tap("hidden", w * x)) * jnp.array([1.0, 3.0]))
        >>> score = grad_between(model, "hidden", "scores", select=lambda s: s[1])
        >>> score(jnp.zeros(2), jnp.ones(2)).tolist()
        [0.0, 3.0]
    """

    def gradient(*args: Any, **kwargs: Any) -> Any:
        destination, source = _trace_between("grad_between", fn, src, dst, args, kwargs)

        def scalar(source: Any) -> jax.Array:
            value = destination(source)
            return _check_scalar(select(value) if select else value)

        return jax.grad(scalar)(source)

    return gradient


def jacobian_between(
    fn: Callable[..., Any], src: Source, dst: str | None = None, *, mode: str = "auto"
) -> Callable[..., Any]:
    r"""Jacobian of a node with respect to another node or the arguments.

    .. math:: J = \frac{\partial\, \text{dst}}{\partial\, \text{src}}

    Args:
        fn: Any JAX function.
        src: The name of one node (as in `capture`), or positional arguments.
        dst: The name of one node, or `None` for the function's output.
        mode: `'forward'` takes one pass per element of `src`, and `'reverse'` takes one pass per
            element of `dst`. All passes are batched by `vmap`. `'auto'` chooses the mode with fewer
            passes, or `'reverse'` for a function with a `custom_vjp`.

    Returns:
        A function of the arguments of `fn` that returns `J`, of shape `[*dst.shape, *src.shape]`.
        Both shapes have leading axes for scan iterations. For trees, the result has the same
        structure as `jax.jacobian`.

    Raises:
        ValueError: If a name matches no node, several nodes, or a node without a derivative.

    Example:
        >>> from fnopt.taps import jacobian_between, tap
        >>> def model(w, x):
        ...     return jnp.sum(tap("out", w @ tap("in", x)))
        >>> J = jacobian_between(model, "in", "out")
        >>> J(jnp.array([[1.0, 2.0], [3.0, 4.0]]), jnp.ones(2)).tolist()
        [[1.0, 2.0], [3.0, 4.0]]
    """
    check_choice(mode, MODES, "mode", "jacobian_between")

    def jacobian(*args: Any, **kwargs: Any) -> Any:
        link = _trace_between("jacobian_between", fn, src, dst, args, kwargs)
        return tree_or_matrix(link.destination, link.source, mode, None, "tree", "jacobian_between")

    return jacobian


def _trace_between(
    name: str, fn: Callable[..., Any], src: Source, dst: str | None, args: Any, kwargs: Any
) -> _NodeFunction:
    """Trace a call and return the value at `dst` as a function of the value at `src`."""
    names = tuple(n for n in (src, dst) if isinstance(n, str))
    argnums = None if isinstance(src, str) else src
    program = trace_program(name, fn, args, kwargs, argnums, scopes=has_scopes(names))
    start = program.only_node(src, lacks_cotangent) if isinstance(src, str) else None
    end = None if dst is None else program.only_node(dst, lacks_cotangent)
    # Other nodes aren't visited, so that the compiler can fuse across them.
    program = program.restrict({i for i in (start, end) if i is not None})

    def visit(node: int, value: Any, probe: Any) -> tuple[Any, Any]:
        value = value if probe is None else add_probe(value, probe)
        return value, value if node == end else None

    def destination(source: Any) -> Any:
        if start is None:
            out, records = program.run(visit, {}, jax.tree.leaves(source))
        else:
            out, records = program.run(visit, {start: source})
        return out if end is None else records[end]

    if start is not None:
        # The derivative is with respect to a zero probe added to the node, because the value of
        # the node is only known inside the program.
        node = program.nodes[start]
        return _NodeFunction(destination, jnp.zeros(node.shape, node.dtype))
    return _NodeFunction(destination, jax.tree.unflatten(program.diff_tree, program.diff_inputs))


def _check_scalar(value: Any) -> jax.Array:
    if getattr(value, "shape", None) != () or not jnp.issubdtype(value.dtype, jnp.floating):
        raise TypeError(
            f"grad_between: the value is {type_text(value)}, expected a real scalar. Select one, "
            "as in select=lambda scores: scores[0, 3], or use jacobian_between."
        )
    return value

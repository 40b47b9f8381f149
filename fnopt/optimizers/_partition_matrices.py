"""Partition of parameters into matrices and other leaves."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any

from fnopt.core import ScalarOrSchedule, Transformation, static
from fnopt.optimizers._adam import adamw
from fnopt.optimizers._matrix_rule import (
    as_rule,
    as_unsharded,
    check_rule,
    inference_scope,
    numbers_of,
)
from fnopt.transforms import (
    Selector,
    add_decayed_weights,
    chain,
    partition,
    scale_by_learning_rate,
)


class matrix_labels(Selector):
    """Selector with one label for matrices, and another label for all other leaves.

    Args:
        matrix: The label of the matrices.
        rule: The leaves that are matrices. None finds kernels by their names and shapes (see
            `muon`). One `MatrixDimensionNumbers` applies to every leaf with two axes or more. The
            values of a tree or a selector (`by_pattern`, `by_path`) are dimension numbers, True for
            a matrix with two axes, and None or False for other leaves.
        other: The label of all other leaves.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> from fnopt.optimizers import matrix_labels
        >>> params = {"embed": jnp.ones((9, 2)), "w": jnp.ones((2, 2)), "b": jnp.ones(2)}
        >>> rule = fnopt.by_pattern({"embed": False}, default=True)
        >>> fnopt.select(matrix_labels("muon", rule), params)
        {'b': 'adam', 'embed': 'adam', 'w': 'muon'}
    """

    matrix: str = static(default="matrix")
    rule: Any = static(default=None, convert=as_rule)
    other: str = static(default="adam")

    def choose(self, leaves: list[tuple[str, Any]]) -> list[Any]:
        """Return the label of every leaf."""
        all_numbers = numbers_of(self.rule, as_unsharded(leaves))
        return [self.other if numbers is None else self.matrix for numbers in all_numbers]

    def check(self, positions: list[str]) -> None:
        """Raise an error if the rule's paths don't match the paths of the leaves."""
        check_rule(self.rule, positions)

    def scope(self, tree: Any) -> contextlib.AbstractContextManager[None]:
        """Context in which transforms of the partition use the axes inferred from all leaves."""
        return inference_scope(tree) if self.rule is None else contextlib.nullcontext()


def partition_matrices(
    matrices: Any, others: Any, weight_dimension_numbers: Any = None, label: str = "matrix"
) -> partition:
    """Apply one optimizer to all matrices, and another optimizer to all other leaves.

    Transforms in `matrices` whose `weight_dimension_numbers` are None use the dimension numbers of
    the partition, also inside chains and wrappers.

    Args:
        matrices: The optimizer of the matrices, such as a chain of transforms that ends with
            `scale_by_learning_rate`.
        others: The optimizer of the other leaves.
        weight_dimension_numbers: The leaves that are matrices, and their axes; see `muon`.
        label: The label of the matrices. The other leaves have the label `'adam'`.

    Returns:
        A partition.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> parts = [fnopt.ema(0.9, nesterov=True), fnopt.orthogonalize("polar_express", 8)]
        >>> matrices = fnopt.chain(*parts, fnopt.scale_by_learning_rate(0.1))
        >>> tx = fnopt.partition_matrices(matrices, fnopt.adamw(0.01))
        >>> params = {"w": 3 * jnp.eye(2), "b": jnp.ones(2)}
        >>> updates, _ = tx.update(params, tx.init(params), params)
        >>> print(updates["w"].round(3) + 0.0)
        [[-0.1  0. ]
         [ 0.  -0.1]]
    """
    rule = as_rule(weight_dimension_numbers)
    transforms = {label: _set_dimension_numbers(matrices, rule), "adam": others}
    return partition(transforms, matrix_labels(label, rule))


def _set_dimension_numbers(part: Any, rule: Any) -> Any:
    """Set the dimension numbers of all transforms inside `part` that have none."""
    if type(part) is tuple:
        return tuple(_set_dimension_numbers(x, rule) for x in part)
    if not isinstance(part, Transformation):
        return part
    old = {f.name: getattr(part, f.name) for f in dataclasses.fields(part)}
    new = {name: _set_dimension_numbers(x, rule) for name, x in old.items()}
    if "weight_dimension_numbers" in old and old["weight_dimension_numbers"] is None:
        new["weight_dimension_numbers"] = rule
    changes = {name: x for name, x in new.items() if x is not old[name]}
    return dataclasses.replace(part, **changes)


def matrix_recipe(
    label: str,
    direction: Sequence[Transformation],
    learning_rate: ScalarOrSchedule,
    weight_decay: Any,
    rule: Any,
    others: Any,
    **adam: Any,
) -> partition:
    """Chain direction, decay and learning rate for matrices; by default, Adam for other leaves."""
    is_transform = isinstance(weight_decay, Transformation)
    decay = weight_decay if is_transform else add_decayed_weights(weight_decay)
    matrices = chain(*direction, decay, scale_by_learning_rate(learning_rate))
    if others is None:
        others = adamw(learning_rate, weight_decay=0.0, **adam)
    return partition_matrices(matrices, others, rule, label)

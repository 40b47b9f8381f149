"""A matrix method for matrices, and Adam for what is none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fnopt.core import ScalarOrSchedule, Transformation, static
from fnopt.optimizers._adam import adamw
from fnopt.optimizers._matrix_rule import as_rule, as_whole, check_rule, numbers_of
from fnopt.transforms import (
    Selector,
    add_decayed_weights,
    chain,
    partition,
    scale_by_learning_rate,
)


class matrix_labels(Selector):
    """Label matrices and other leaves, for a partition.

    Args:
        matrix: The label of the matrices.
        rule: Which leaves are: None for those with two axes, `MatrixDimensionNumbers` for those
            with two or more, a tree of them (None for no matrix), or a pattern, `by_pattern` or
            `by_path` that gives them, True (a matrix if it has two axes) or False.
        other: The label of all others.

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
        """The label of every leaf."""
        found = numbers_of(self.rule, as_whole(leaves))
        return [self.other if numbers is None else self.matrix for numbers in found]

    def check(self, positions: list[str]) -> None:
        """Refuses a rule by path that can't have been meant for these paths."""
        check_rule(self.rule, positions)


def with_adam(
    label: str,
    direction: Sequence[Transformation],
    rule: Any,
    *,
    learning_rate: ScalarOrSchedule,
    weight_decay: ScalarOrSchedule,
    weight_decay_mask: Any,
    adam_learning_rate: ScalarOrSchedule | None,
    adam_weight_decay: ScalarOrSchedule,
    **adam: Any,
) -> partition:
    """A partition: a direction, its decay and rate for matrices, and AdamW for the other leaves."""
    decay = add_decayed_weights(weight_decay, weight_decay_mask)
    rate = learning_rate if adam_learning_rate is None else adam_learning_rate
    transforms = {
        label: chain(*direction, decay, scale_by_learning_rate(learning_rate)),
        "adam": adamw(rate, weight_decay=adam_weight_decay, **adam),
    }
    return partition(transforms, matrix_labels(label, rule))

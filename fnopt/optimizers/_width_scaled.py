"""Learning rates that transfer from a narrow to a wide model (muP)."""

from __future__ import annotations

from typing import Any

import jax

from fnopt.errors import leaf_text, leaves_with_names, where
from fnopt.optimizers._matrix_rule import OUTPUTS_TOO, as_rule, layouts_of
from fnopt.transforms import Chain, chain, partition, scale


def width_scaled(
    tx: Any, params: Any, base_params: Any, weight_dimension_numbers: Any = None
) -> Chain:
    r"""Scale the updates of every matrix by the ratio of its numbers of inputs in two models (muP).

    .. math:: u' = \frac{n_{\text{base}}}{n}\, u

    with the number :math:`n` of rows (inputs) of a kernel in the wide model, and
    :math:`n_{\text{base}}` in the narrow model. This is the muP rule for Adam: the learning rate of
    hidden kernels and heads is inversely proportional to the width. The learning rate of embeddings
    (whose rows are a vocabulary) and vectors doesn't change. A learning rate tuned for the narrow
    model then transfers to the wide model, if the parameters are also initialized by muP.

    Muon doesn't need `width_scaled`, because it scales its updates by the shapes of matrices.
    Weight decay inside `tx` is scaled like the learning rate.

    Args:
        tx: The optimizer.
        params: The params of the wide model, or their shapes (`jax.eval_shape`).
        base_params: The params of the narrow model, the same tree with smaller leaves.
        weight_dimension_numbers: The leaves that are matrices, and their axes; see `muon`.

    Returns:
        A chain of `tx` and a `partition` with one factor per leaf.

    Raises:
        ValueError: If the trees differ, or if several axes differ in a leaf that isn't a matrix.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> narrow = {"embed": jnp.ones((9, 4)), "w": jnp.ones((4, 4)), "b": jnp.ones(4)}
        >>> wide = {"embed": jnp.ones((9, 8)), "w": jnp.ones((8, 8)), "b": jnp.ones(8)}
        >>> tx = fnopt.width_scaled(fnopt.sgd(1.0), wide, narrow)
        >>> updates, _ = tx.update(wide, tx.init(wide), wide)
        >>> {name: float(u.ravel()[0]) for name, u in updates.items()}
        {'b': -1.0, 'embed': -1.0, 'w': -0.5}

    Reference:
        Yang et al., 2022, arXiv:2203.03466, table 8.
    """
    leaves, treedef = leaves_with_names(params)
    base_leaves, base_treedef = jax.tree.flatten(base_params)
    if base_treedef != treedef:
        raise ValueError(
            f"width_scaled: base_params has the structure {base_treedef}, expected the "
            f"structure of params, {treedef}."
        )
    is_inferred = weight_dimension_numbers is None
    rule = OUTPUTS_TOO if is_inferred else as_rule(weight_dimension_numbers)
    layouts = zip(
        *(layouts_of(rule, tree, required=False) for tree in (params, base_params)), strict=True
    )
    factors = []
    for (name, p), base, (wide, narrow) in zip(leaves, base_leaves, layouts, strict=True):
        differences = sum(a != b for a, b in zip(p.shape, base.shape, strict=False))
        if len(p.shape) != len(base.shape) or (wide is None and differences > 1):
            raise ValueError(
                f"{where()}width_scaled: {leaf_text(name)} has shape {p.shape} in params and "
                f"{base.shape} in base_params, expected a matrix, or shapes that differ in one "
                "axis. Pass the axes of the matrix as weight_dimension_numbers."
            )
        factors.append(sum(narrow.heights) / sum(wide.heights) if wide and narrow else 1.0)
    # Leaves with the same factor share a transform, so the program doesn't grow with the leaves.
    labels = [f"{factor:.6g}" for factor in factors]
    scales = {label: scale(factor) for label, factor in zip(labels, factors, strict=True)}
    return chain(tx, partition(scales, treedef.unflatten(labels)))

r"""Square roots of the Hessian of a loss with respect to the outputs of the model.

Let `H` be the Hessian of an example's loss with respect to the outputs `f`. If :math:`E[V^\top V] =
H` for rows `V`, then the Gauss-Newton matrix is the second moment of the gradients of `V f`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fnopt.errors import explain_example_errors, type_text
from fnopt.jacobians import sparsity_pattern
from fnopt.numerics import HIGHEST
from fnopt.sharding import explicit_spec, is_sharded, local_rows, psum, replicate, reshard_to

# Maximum number of outputs that the loss mixes. Each example needs an eigendecomposition of this
# size, which takes 40 ms on a CPU core, and 8 times as long for twice as many outputs.
_LARGEST_BLOCK = 512

OutputLoss = Callable[[jax.Array, Any], jax.Array]
"""A function of one example's outputs (a vector) and the example that returns a number."""
SAMPLED = (
    "Pass sample_fn(key, outputs, example), which returns the example with a label drawn from the "
    "model."
)


class OutputHessian(NamedTuple):
    r"""The block Hessian :math:`Q h Q^\top` of a loss with respect to the outputs of `n` examples.

    Attributes:
        values: `h`, `[n, C / size, size]`; negative eigenvalues are set to zero.
        vectors: `Q`, `[n, C / size, size, size]`.
    """

    values: jax.Array
    vectors: jax.Array

    def rotate(self, x: jax.Array) -> jax.Array:
        r"""Transform `x`, `[n C, ...]`, to the coordinates :math:`Q^\top x`."""
        return self._rotate("nbij,nbim->nbjm", x)

    def rotate_back(self, x: jax.Array) -> jax.Array:
        """Transform coordinates `x` back to `Q x`."""
        return self._rotate("nbij,nbjm->nbim", x)

    def _rotate(self, form: str, x: jax.Array) -> jax.Array:
        if self.values.shape[-1] == 1:
            return x
        blocks = x.reshape(*self.values.shape, -1)
        return jnp.einsum(form, self.vectors, blocks, precision=HIGHEST).reshape(x.shape)


def output_hessian(
    loss: OutputLoss, outputs: jax.Array, batch: Any, name: str, remedy: str
) -> OutputHessian:
    """Compute the eigendecomposition of every example's Hessian with respect to the outputs.

    Args:
        loss: The loss.
        outputs: `[n, C]`.
        batch: The examples.
        name: The public function that the user called, for messages.
        remedy: Advice for a loss that mixes too many outputs, for messages.
    """
    size = block_size(loss, outputs, batch, name, remedy)
    eigen = jax.vmap(lambda f, example: _eigen(loss, f, example, size))(outputs, batch)
    return OutputHessian(*eigen)


def check_loss(loss: OutputLoss, count: int, dtype: Any, batch: Any, name: str) -> None:
    """Check that a loss of the outputs of one example is a real scalar."""
    example = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), batch)
    with explain_example_errors(name, example):
        result = jax.eval_shape(loss, jax.ShapeDtypeStruct((count,), dtype), example)
    leaves = jax.tree.leaves(result)
    if len(leaves) != 1 or leaves[0].shape or not jnp.issubdtype(leaves[0].dtype, jnp.floating):
        types = ", ".join(type_text(x) for x in leaves)
        raise TypeError(
            f"{name}: loss_fn(outputs, example) returned {types or repr(result)}, "
            "expected a real scalar."
        )


def output_rows(
    loss: OutputLoss,
    outputs: jax.Array,
    batch: Any,
    key: jax.Array,
    samples: int | None,
    name: str,
    axis_name: Any = None,
) -> jax.Array:
    """Rows `V` of every example, `[n, k, C]`.

    Args:
        loss: The loss.
        outputs: `[n, C]`.
        batch: The examples.
        key: A key for the random signs.
        samples: Number of random rows per example; `None` for an exact root with `C` rows.
        name: The public function that the user called, for messages.
        axis_name: The named axis along which a larger batch is sharded, if any.
    """
    size = block_size(loss, outputs, batch, name)
    values, vectors = jax.vmap(lambda f, example: _eigen(loss, f, example, size))(outputs, batch)
    # The root S satisfies S S^T = H, the Hessian.
    root = replicate(vectors * jnp.sqrt(values)[..., None, :], 0)  # replicated like the signs
    n, blocks = root.shape[:2]  # [n, C / size, outputs, columns]
    if samples is None:
        rows = jnp.einsum(
            "nbij,bc->nbjci", root, jnp.eye(blocks, dtype=root.dtype), precision=HIGHEST
        )
        return rows.reshape(n, blocks * size, blocks * size)
    count = n * psum(1, axis_name)
    # Among all random vectors with E[s s^T] = I, signs have the smallest variance (Hutchinson,
    # 1990).
    signs = jax.random.rademacher(key, (count, samples, blocks, size), root.dtype)
    signs = local_rows(signs, axis_name)
    rows = jnp.einsum("nbij,nsbj->nsbi", root, signs, precision=HIGHEST)
    return rows.reshape(n, samples, blocks * size) * samples**-0.5


def output_curvature(
    loss: OutputLoss, outputs: jax.Array, batch: Any, name: str
) -> Callable[[jax.Array], jax.Array] | None:
    """Return the product of `[n, C]` with the Hessian if it is diagonal; else return `None`.

    The Hessian is diagonal if the loss is a sum over outputs. Negative curvature is set to zero, as
    in `output_rows`.
    """
    if block_size(loss, outputs, batch, name) > 1:
        return None

    def diagonal(f: jax.Array, example: Any) -> jax.Array:
        slope = lambda f: jax.grad(loss)(f, example)  # noqa: E731
        # The product of a diagonal Hessian with ones is the diagonal. `1 + 0 * f` has the sharding
        # and the varying axes of `f`.
        return jax.jvp(slope, (f,), (1 + 0 * f,))[1]

    curvature = jnp.maximum(jax.vmap(diagonal)(outputs, batch), 0)
    return lambda v: curvature * v


def drawn_rows(
    loss: OutputLoss,
    draw: Callable[[jax.Array, jax.Array, Any], Any],
    outputs: jax.Array,
    batch: Any,
    key: jax.Array,
    samples: int,
    axis_name: Any = None,
) -> jax.Array:
    """Gradients of the loss at labels sampled from the model, `[n, samples, C]`.

    Args:
        loss: A negative log-likelihood.
        draw: `draw(key, outputs, example)` returns the example with a sampled label.
        outputs: `[n, C]`.
        batch: The examples.
        key: The key.
        samples: Number of labels per example.
        axis_name: The named axis along which a larger batch is sharded, if any.
    """

    def draw_rows(f: jax.Array, example: Any, key: jax.Array) -> jax.Array:
        def slope(key: jax.Array) -> jax.Array:
            return jax.grad(loss)(f, draw(key, f, example))

        return jax.vmap(slope)(jax.random.split(key, samples)) * samples**-0.5

    return jax.vmap(draw_rows)(outputs, batch, keys_of(outputs, key, axis_name))


def keys_of(outputs: jax.Array, key: jax.Array, axis_name: Any = None) -> jax.Array:
    """One key per example, sharded like the outputs `[n, C]`.

    Examples that are sharded along a named axis get the same keys as on a single device.
    """
    keys = jax.random.split(key, outputs.shape[0] * psum(1, axis_name))
    keys = local_rows(keys, axis_name)
    return reshard_to(keys, explicit_spec(outputs)[:1]) if is_sharded(outputs) else keys


def block_size(
    loss: OutputLoss, outputs: jax.Array, batch: Any, name: str, remedy: str = SAMPLED
) -> int:
    """Block size of the Hessian with respect to the outputs: 1, or a larger divisor of `C`.

    The loss of a sequence is a sum over positions, so the Hessian has a block for each position.
    """
    count = outputs.shape[1]
    example = jax.tree.map(lambda x: replicate(x, 0)[0], batch)
    f = jnp.zeros(count, outputs.dtype)
    try:
        rows, cols = sparsity_pattern(lambda f: jax.grad(loss)(f, example))(f)
    except ValueError:  # too many entries to be sparse
        rows, cols = np.asarray([0]), np.asarray([count - 1])
    if not rows.size:
        raise ValueError(
            f"{name}: the Hessian of the loss with respect to the outputs of the model is zero (a "
            "linear function, an absolute value, a hinge), expected a loss with curvature. Use a "
            "smooth loss, such as fnopt.losses.huber_loss or log_cosh."
        )
    # Rows and columns of the same block have equal index // size.
    divisors = (b for b in range(1, count + 1) if count % b == 0)
    size = next(b for b in divisors if np.array_equal(rows // b, cols // b))
    if size > _LARGEST_BLOCK:
        raise ValueError(
            f"{name}: the Hessian of the loss couples {size} outputs of an example and would have "
            f"{size} x {size} entries; expected {_LARGEST_BLOCK} at most. {remedy}"
        )
    return size


def _eigen(loss: OutputLoss, f: jax.Array, example: Any, size: int) -> tuple[jax.Array, jax.Array]:
    """Eigenvalues `[C / size, size]` and eigenvectors of the Hessian."""
    slope = lambda f: jax.grad(loss)(f, example)  # noqa: E731
    seeds = jnp.tile(jnp.eye(size, dtype=f.dtype), (1, f.size // size))
    # One seed vector yields the same column of all blocks: `size` products instead of `C`. Adding
    # `0 * f` gives the seeds the sharding and the varying axes of `f`.
    seeds = seeds + 0 * f
    columns = jax.vmap(lambda v: jax.jvp(slope, (f,), (v,))[1])(seeds)
    hessian = columns.reshape(size, -1, size).transpose(1, 2, 0)
    # If the loss isn't convex, negative curvature is set to zero.
    if size == 1:
        return jnp.maximum(hessian[:, :, 0], 0), jnp.ones_like(hessian)
    # The two triangles of the Hessian have different rounding errors, so it is symmetrized.
    values, vectors = jnp.linalg.eigh((hessian + hessian.transpose(0, 2, 1)) / 2)
    return jnp.maximum(values, 0), vectors

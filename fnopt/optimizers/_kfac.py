"""K-FAC: natural gradient descent with Kronecker factors, for any model."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from fnopt.core import (
    Scalar,
    Status,
    Transformation,
    cast_like,
    hyper,
    select_tree,
    slot_zeros,
    static,
)
from fnopt.numerics import safe_increment, zero_count
from fnopt.optimizers._batch_step import REJECTION_FACTOR, step_dtype
from fnopt.optimizers._kfac_objective import Objective, example_shapes
from fnopt.optimizers._kfac_state import (
    Averages,
    KfacState,
    When,
    are_all_finite,
    averages_of,
    find_finite_blocks,
    in_range,
    replace_nonfinite,
    status_after,
    update_averages,
    zero_averages,
)
from fnopt.sharding import replicate, reshard_like, unsharded_leaves, use_mesh_of
from fnopt.transforms import all_finite

if TYPE_CHECKING:
    from fnopt.curvature import Combination, KroneckerModel, KroneckerSpec


class kfac(Transformation):
    r"""K-FAC: gradients preconditioned by the second moments of layer inputs and output cotangents.

    .. math::
        G &= \frac1n \sum_i J_i^\top H_i J_i \approx \operatorname{diag}_l(A_l \otimes G_l),
        \qquad A_l = E[a a^\top], \quad G_l = E[c c^\top] \\
        d &= -\operatorname{diag}_l\!\Big(\big(A_l + \pi_l \sqrt{\lambda + \eta} I\big) \otimes
        \big(G_l + \tfrac1{\pi_l} \sqrt{\lambda + \eta} I\big)\Big)^{-1} \nabla f \\
        u_t &= \alpha d + \mu u_{t-1} = \arg\min_{\alpha, \mu} \; \nabla f^\top u
        + \tfrac12 u^\top (G + (\lambda + \eta) I)\, u

    where `a` and `c` are the inputs and the output cotangents of every product with a weight of
    layer `l`. The model is any JAX function of ONE example. fnopt traces the model to find its
    layers, so layers needn't be registered. Layers may be dense, convolutions, embeddings or
    attention, also tied, scanned or applied at many positions. A bias is a row of its weight.
    Parameters outside of matrix products (scales of normalizations) have dense blocks, or diagonal
    blocks if they are large. :func:`fnopt.curvature.kfac_report` lists the block of each parameter.
    On a mesh over which the batch is sharded, each device inverts some of the factors.

    K-FAC needs no learning rate, because :math:`\alpha` and :math:`\mu` minimize the exact
    quadratic model of the batch. The damping adapts to the accuracy of this model. A step is
    rejected if a value is non-finite, or if the loss of the batch increases (tested every
    `damping_every` steps). Then parameters, factors and momentum stay unchanged.

    As in :func:`fnopt.gauss_newton_descent`, `update` ignores the gradients (they may be `None`):
    call `update(None, state, params, batch=batch)`. Derivatives through the updates treat the
    cotangents `c` as constants, so they aren't exact with respect to the initial parameters.

    Args:
        model_fn: `f(params, example) -> outputs` of ONE example, an array or a tree.
        loss_fn: `loss(outputs, example) -> scalar`. The objective is the mean loss of the batch.
        batch: A batch or its shapes: a tree of arrays with a leading axis of examples. Only the
            shapes and dtypes of one example are used, so later batches may have other sizes.
        damping: The initial damping :math:`\lambda`.
        l2: :math:`\eta`, the coefficient of the penalty :math:`\tfrac\eta2 \|\theta\|^2`.
        decay: The largest decay rate of the moving averages of :math:`A_l` and :math:`G_l`.
        damping_decay: The factor of the damping per step if the loss decreases by more than 75 % of
            the predicted decrease. Below 25 %, the damping is divided by the factor.
        curvature: `'exact'` uses all rows of a square root of the loss's output Hessian, with one
            backward pass per output, all in memory at once. `'sampled'` uses random combinations of
            these rows, which are as accurate as labels sampled from the model.
        samples: The number of random combinations per example.
        sample_fn: `sample_fn(key, outputs, example)` returns the example with a label sampled from
            the model; needed only if the loss couples very many outputs. The distribution must
            match the loss: `jax.random.categorical(key, outputs)` for a cross-entropy.
        sharing: The treatment of a weight that is applied at many positions of an example:
            `'expand'` treats each position as an example; `'reduce'` sums over positions.
        statistics_every: The number of steps between two updates of the factors.
        inverse_every: The number of steps between two updates of the inverse factors.
        model_every: The number of steps between two updates of :math:`\alpha` and :math:`\mu`.
        damping_every: The number of steps between two updates of the damping; a multiple of
            `model_every`.
        max_side: The largest side of a dense factor; larger factors are split into blocks.
        eigenbasis: Whether to use EKFAC. It replaces the eigenvalues of :math:`A_l \otimes G_l` by
            the gradients' second moments in the eigenbasis, which are optimal for this basis.
            :math:`\lambda + \eta` is added to these moments. The eigendecompositions cost about as
            much as nine Cholesky factorizations every `inverse_every` steps. For weights that are
            applied at many positions, updates of the averages form per-example gradients.
        seed: The random seed of the samples.
        axis_name: Inside `jax.shard_map`, the named axis over which the batch is sharded. A step
            uses the examples of all devices, sums factors and gradients over the devices, and
            inverts some factors on each device.

    Raises:
        TypeError: If a param isn't a real floating array, or the loss isn't a real scalar.
        ValueError: If an option is invalid, the loss couples too many outputs, or exact curvature
            would need too much memory.

    Example:
        >>> import jax, jax.numpy as jnp, fnopt
        >>> def model(params, example):
        ...     return example["x"] @ params["w"] + params["b"]
        >>> def loss(outputs, example):
        ...     return jnp.sum((outputs - example["y"]) ** 2)
        >>> x = jax.random.normal(jax.random.key(0), (32, 3))
        >>> batch = {"x": x, "y": x @ jnp.ones((3, 2)) + 1}
        >>> params = {"w": jnp.zeros((3, 2)), "b": jnp.zeros(2)}
        >>> tx = fnopt.kfac(model, loss, batch, damping=1e-6, curvature="exact")
        >>> updates, state = jax.jit(tx.update)(None, tx.init(params), params, batch=batch)
        >>> print(fnopt.apply_updates(params, updates)["w"].round(2))
        [[1. 1.]
         [1. 1.]
         [1. 1.]]

    Reference:
        Martens and Grosse, 2015, arXiv:1503.05671; Grosse and Martens, 2016, arXiv:1602.01407, for
        convolutions; Eschenhagen, Immer, Turner, Schneider and Hennig, 2023, arXiv:2311.00636, for
        `sharing`; George, Laurent, Bouthillier, Ballas and Vincent, 2018, arXiv:1806.03884, for
        `eigenbasis`.
    """

    needs_params = True

    model_fn: Callable[[Any, Any], Any] = static()
    loss_fn: Callable[[Any, Any], Any] = static()
    batch: Any = static(convert=example_shapes)
    damping: Scalar = hyper(default=1.0, gt=0)
    l2: Scalar = hyper(default=0.0, ge=0)
    decay: Scalar = hyper(default=0.95, ge=0, lt=1)
    damping_decay: Scalar = hyper(default=0.9, gt=0, lt=1)
    curvature: str = static(default="sampled", choices=("sampled", "exact"))
    samples: int = static(default=1, least=1)
    sample_fn: Callable[..., Any] | None = static(default=None)
    sharing: str = static(default="expand", choices=("expand", "reduce"))
    statistics_every: int = static(default=1, least=1)
    inverse_every: int = static(default=5, least=1)
    model_every: int = static(default=1, least=1)
    damping_every: int = static(default=5, least=1)
    max_side: int = static(default=512, least=1)
    eigenbasis: bool = static(default=False)
    seed: int = static(default=0)
    axis_name: Any = static(default=None)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.damping_every % self.model_every:
            raise ValueError(
                f"kfac: damping_every = {self.damping_every}, expected a multiple of model_every = "
                f"{self.model_every}, because the damping is adapted by the quadratic model."
            )
        if self.eigenbasis and self.inverse_every % self.statistics_every:
            raise ValueError(
                f"kfac: inverse_every = {self.inverse_every}, expected a multiple of "
                f"statistics_every = {self.statistics_every}, because with eigenbasis=True bases "
                "are computed from the factors of the same step."
            )
        if self.sample_fn is not None and self.curvature == "exact":
            raise ValueError(
                "kfac: got curvature = 'exact' with sample_fn, expected curvature='sampled', "
                "because exact curvature needs no sampled labels."
            )

    @property
    def _spec(self) -> KroneckerSpec:
        from fnopt.curvature import KroneckerSpec  # `import fnopt` doesn't import curvature

        samples = self.samples if self.curvature == "sampled" else None
        return KroneckerSpec(
            self.model_fn,
            self.loss_fn,
            samples,
            self.sample_fn,
            self.sharing,
            self.max_side,
            self.eigenbasis,
            axis_name=self.axis_name,
        )

    def init(self, params: Any) -> KfacState:
        """Return the initial state, with zero factors and zero momentum."""
        from fnopt.curvature import planned_blocks, stacked_blocks

        if unsharded_leaves() is not None:
            raise ValueError(
                "kfac: inside fnopt.distributed.sharded, the params are shards, expected whole "
                "params. Use kfac without sharded, and pass axis_name. Its factors then cover "
                "the examples of all devices, and each device inverts some of the factors."
            )
        dtype = step_dtype(params)
        with use_mesh_of(params):
            stacks = stacked_blocks(planned_blocks(self._spec, params, self.batch.batch))
        averages = zero_averages(stacks, self.eigenbasis, dtype)
        return KfacState(
            zero_count(),
            averages.averaged,
            jnp.array(self.damping, dtype),
            jnp.zeros(2, dtype),
            *averages[1:],
            slot_zeros(params),
            jnp.zeros((), dtype),
            Status.RUNNING.array,
        )

    def update(
        self, updates: Any, state: KfacState, params: Any = None, *, batch: Any, **extra_args: Any
    ) -> tuple[Any, KfacState]:
        """Step along a combination of preconditioned gradient and last step, or reject the step."""
        with use_mesh_of(batch, params):
            # The inverse factors multiply complete rows and columns of a weight.
            unsharded = jax.tree.map(replicate, params)
            momentum = jax.tree.map(replicate, state.momentum)
            updates, new = self._step(state._replace(momentum=momentum), unsharded, batch)
            momentum = jax.tree.map(reshard_like, new.momentum, state.momentum)
            return jax.tree.map(reshard_like, updates, params), new._replace(momentum=momentum)

    def _step(self, state: KfacState, params: Any, batch: Any) -> tuple[Any, KfacState]:
        from fnopt.curvature import KroneckerModel, direction

        # 1. Update the averages, and the inverses if due. 2. Precondition the gradient. 3. Minimize
        # the quadratic model over combinations of this direction and the last step. 4. Accept the
        # step, or keep the old averages and increase the damping.
        model = KroneckerModel(self._spec, params, batch)
        count, is_first = state.count, state.averaged == 0
        was_rejected = state.status != Status.RUNNING.value
        finite_blocks = find_finite_blocks(averages_of(state))
        is_intact = all_finite((state.damping, state.weights)) & are_all_finite(finite_blocks)
        state = replace_nonfinite(state, self.damping)
        objective = Objective(model, params, self.l2)
        damping = state.damping + objective.l2
        now = is_first | was_rejected
        averages = self._averages(model, objective.outputs, state, damping, now, finite_blocks)
        value, slope, noise = objective.value_and_gradient()
        gradient = model.matrices(slope)
        divided = model.multiply_inverse(gradient, averages.inverses, damping, averages.moments)
        descent = tuple(map(jnp.negative, divided))
        last = jax.tree.map(lambda m: m.astype(value.dtype), state.momentum)
        directions = direction(model.tree(descent), descent), direction(last, model.matrices(last))
        now = was_rejected
        if self.model_every > 1:  # weights that are reused for too long make the loss diverge
            now = now | (value - state.value > jnp.abs(state.value))
        best = self._combination(objective, state, gradient, directions, now)
        step, bound = _combine(best.weights, directions)
        is_defined = all_finite((value, gradient))
        is_finite = is_defined & directions[0].finite & all_finite((bound, best, averages))
        update = cast_like(step, params)
        now = now | (count % self.damping_every == 0)
        adapted, decreases, after = self._adapt(objective, state, update, value, best, noise, now)
        is_finite = is_finite & jnp.isfinite(after)
        accepted = is_finite & decreases
        larger = in_range(REJECTION_FACTOR * state.damping)
        larger = jnp.where(is_defined, larger, state.damping)
        momentum = cast_like(step, state.momentum)
        new = (averages.averaged, adapted, best.weights, *averages[1:], momentum)
        old = (state.averaged, larger, state.weights, *averages_of(state)[1:], state.momentum)
        fields = select_tree(accepted, new, old)
        status = status_after(accepted, is_intact & directions[1].finite, is_defined, is_finite)
        update = jax.tree.map(lambda u: jnp.where(accepted, u, jnp.zeros_like(u)), update)
        return update, KfacState._make((safe_increment(count), *fields, value, status))

    def _averages(
        self,
        model: KroneckerModel,
        outputs: jax.Array,
        state: KfacState,
        damping: jax.Array,
        now: jax.Array,
        finite_blocks: list[jax.Array],
    ) -> Averages:
        """Include this batch in the averages, and update the inverses, if these updates are due."""
        count, decay = state.count, jnp.asarray(self.decay).astype(model.dtype)
        statistics = (count % self.statistics_every == 0) | (state.averaged == 0)
        due = When(statistics, (count % self.inverse_every == 0) | now)
        if self.eigenbasis:
            due = When(statistics | now, due.inverses)
        # The key depends only on the seed and the count, so a restored run samples the same labels.
        key = jax.random.fold_in(jax.random.key(self.seed), count)
        tape = lambda: model.tape(outputs, key)  # noqa: E731
        return update_averages(model, tape, averages_of(state), due, damping, decay, finite_blocks)

    def _combination(
        self,
        objective: Objective,
        state: KfacState,
        gradient: Any,
        directions: tuple[Any, Any],
        now: jax.Array,
    ) -> Combination:
        """Minimize the quadratic model if an update is due; otherwise reuse the last weights."""
        from fnopt.curvature import Combination

        best = lambda: objective.best(gradient, directions, state.damping)  # noqa: E731
        if self.model_every == 1:
            return best()
        zero = jnp.zeros_like(state.value)
        now = now | (state.count % self.model_every == 0) | (state.weights[0] == 0)
        # With reused weights, the damping isn't adapted, and change and share aren't read.
        return jax.lax.cond(now, best, lambda: Combination(state.weights, zero, zero))

    def _adapt(
        self,
        objective: Objective,
        state: KfacState,
        update: Any,
        value: jax.Array,
        best: Combination,
        noise: jax.Array,
        now: jax.Array,
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return the next damping, whether the objective didn't increase, and the new objective.

        If `now` is False, the objective isn't evaluated, and the step is treated as a decrease.
        """

        def compare() -> tuple[jax.Array, jax.Array, jax.Array]:
            after = objective.value_at(jax.tree.map(jnp.add, objective.params, update))
            is_significant = -best.change > noise
            gain = (after - value) / jnp.where(is_significant, best.change, -jnp.ones_like(value))
            factor = jnp.asarray(self.damping_decay).astype(value.dtype) ** self.damping_every
            one = jnp.ones_like(factor)
            # The Levenberg-Marquardt rule of Martens and Grosse (2015), section 6.5.
            by_gain = jnp.where(gain > 0.75, factor, jnp.where(gain < 0.25, 1 / factor, one))
            # A gain below rounding error is inconclusive, unless the damping caused the small step,
            # as 99 % of the second derivative.
            by_share = jnp.where(best.share < 0.01, factor, one)
            damping = state.damping * jnp.where(is_significant, by_gain, by_share)
            return in_range(damping), after <= value + noise, after

        return jax.lax.cond(now, compare, lambda: (state.damping, jnp.ones((), bool), value))


def _combine(weights: jax.Array, directions: tuple[Any, Any]) -> tuple[Any, jax.Array]:
    """Combine unit directions by weights; also return an upper bound of the step's entries."""
    a, b = (w * d.norm for w, d in zip(weights, directions, strict=True))
    step = jax.tree.map(lambda d, m: a * d + b * m, *(d.unit for d in directions))
    return step, jnp.abs(a) + jnp.abs(b)

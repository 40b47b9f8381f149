"""Objects of optax that have another name in fnopt or are omitted, with the reasons."""

from __future__ import annotations

# optax's path -> fnopt's path
RENAMED = {
    "monitor": "monitor.snapshot",
    "safe_softmax_cross_entropy": "losses.softmax_cross_entropy",
    "convex_kl_divergence": "losses.generalized_kl_divergence",
    "assignment.base_hungarian_algorithm": "discrete.hungarian_algorithm",
    "assignment.hungarian_algorithm": "discrete.hungarian_algorithm",
    "perturbations.make_perturbed_fun": "discrete.make_perturbed_fun",
    "perturbations.Gumbel": "discrete.Gumbel",
    "perturbations.Normal": "discrete.Normal",
    "global_norm": "global_norm",
    "safe_increment": "numerics.safe_increment",
    "safe_int32_increment": "numerics.safe_increment",
    "GradientTransformation": "Transformation",
    "GradientTransformationExtraArgs": "Transformation",
    "multi_transform": "partition",
    "named_chain": "chain",
    "MultiSteps": "accumulate",
    "add_noise": "add_gradient_noise",
    "contrib.MuonDimensionNumbers": "MatrixDimensionNumbers",
    "contrib.GaLoreDimensionNumbers": "MatrixDimensionNumbers",
    "contrib.normalize": "normalize_by_update_norm",
    "selective_transform": "freeze",
    "contrib.differentially_private_aggregate": "clipped_grad",
    "per_example_global_norm_clip": "clipped_grad",
}

# Names of optax that mean another object in fnopt.
ANOTHER: set[str] = set()

# optax's path -> reason for the omission
_TYPES = "one of optax's type annotations"
_TREES = "params are any tree of arrays, without a class"
_VALUE = "an optimizer is a pytree, so its numbers can be changed, traced and swept"
_AGGREGATE = "`fnopt.gradient_statistics` computes the statistics of per-example gradients"
_MICRO = "the rules are the strings `'sum'`, `'mean'` and `'concat'` of `fnopt.microbatch`"
DEVIATIONS = {
    "contrib.scale_by_muon": "`fnopt.chain(fnopt.ema(0.95, nesterov=True), fnopt.orthogonalize())`",
    "multi_normal": "use a library of distributions",
    "measure_with_ema": "`fnopt.monitor.snapshot` with a `decay`",
    "MaskOrFn": _TYPES,
    "ScalarOrSchedule": _TYPES,
    "Params": _TREES,
    "TransformInitFn": _TYPES,
    "TransformUpdateExtraArgsFn": _TYPES,
    "TransformUpdateFn": _TYPES,
    "stateless_with_tree_map": "`fnopt.stateless`, with a `jax.tree.map` inside",
    "skip_not_finite": "`fnopt.apply_if_finite(fnopt.accumulate(...))` skips such a batch",
    "safe_norm": "`fnopt.global_norm` has a derivative at zero",
    "safe_root_mean_squares": "`fnopt.global_norm` has a derivative at zero",
    "transforms.unitwise_clip": "part of `fnopt.adaptive_grad_clip`",
    "transforms.unitwise_norm": "part of `fnopt.adaptive_grad_clip`",
    "contrib.dpsgd": "`fnopt.clipped_grad` and `fnopt.add_noise` before any optimizer",
    "nnls": "`fnopt.least_squares` with bounds",
    "MaskedNode": "leaves that a mask excludes are `None`",
    "ShouldSkipUpdateFunction": _TYPES,
    "transforms.ConditionFn": _TYPES,
    "init_empty_state": "the default `init` of a `fnopt.Transformation`",
    "with_extra_args_support": "every transform accepts extra arguments",
    "inject_hyperparams": _VALUE,
    "inject_stateful_hyperparams": _VALUE,
    "WrappedSchedule": _VALUE,
    "schedules.StatefulSchedule": _VALUE,
    "schedules.WrappedSchedule": _VALUE,
    "per_example_layer_norm_clip": "`fnopt.clipped_grad` clips without forming the gradients",
    "microbatching.AccumulationType": _MICRO,
    "microbatching.Accumulator": _MICRO,
    "microbatching.reshape_batch_axis": _MICRO,
    "microbatching.micro_grad": "`fnopt.weighted_grad`, `fnopt.clipped_grad` and "
    "`fnopt.per_example_grads` have a `chunk_size`",
    "experimental.aggregating.accumulate_avg_updates": "`fnopt.accumulate`",
    "experimental.aggregating.add_mean_variance_to_opt": _AGGREGATE,
    "experimental.aggregating.Aggregator": _AGGREGATE,
    "experimental.aggregating.AggregatorUpdateFn": _TYPES,
    "experimental.aggregating.average_incrementally_updates": _AGGREGATE,
    "experimental.aggregating.average_per_element_updates": _AGGREGATE,
    "experimental.aggregating.get_batch_size_from_per_elt_updates": _AGGREGATE,
    "experimental.aggregating.get_per_element_mean_and_sum_sq_diff_grads": _AGGREGATE,
    "experimental.aggregating.get_unbiased_mean_and_variance_ema": _AGGREGATE,
    "experimental.aggregating.process": _AGGREGATE,
    "experimental.aggregating.track_per_element_mean_and_variance_with_ema": _AGGREGATE,
}

# optax's path -> remark on an object that fnopt lacks
NOT_YET = {
    "second_order.fisher_diag": (
        "optax squares the batch gradient, which is the Fisher diagonal only for one example; see "
        "`fnopt.curvature.ggn_diagonal`"
    ),
    "second_order.hessian_diag": (
        "`fnopt.curvature.hessian_diagonal` estimates it by probes, with the variance"
    ),
}

"""Replacements in fnopt for names of other libraries."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

# Names of other libraries whose counterpart in fnopt has a different spelling.
_ELSEWHERE = {
    "MultiSteps": "fnopt.accumulate",
    "GradientTransformation": "fnopt.Transformation",
    "GradientTransformationExtraArgs": "fnopt.Transformation",
    "multi_transform": "fnopt.partition",
    "named_chain": "fnopt.chain, which takes (name, transform) pairs",
    "inject_hyperparams": "the optimizer itself: it is a pytree, so pass it to the jitted step and "
    "change its numbers with dataclasses.replace or jax.tree.map",
    "tree_utils": "fnopt.tree",
    "contrib": "fnopt itself, as in fnopt.prodigy",
    "perturbations": "fnopt.discrete",
    "assignment": "fnopt.discrete",
    "second_order": "fnopt.curvature",
    "nnls": "fnopt.least_squares with bounds=(0, jnp.inf)",
    "lr_scheduler": "a schedule as learning_rate, such as fnopt.cosine_decay_schedule",
    "StepLR": "fnopt.exponential_decay(..., staircase=True)",
    "CosineAnnealingLR": "fnopt.cosine_decay_schedule",
    "OneCycleLR": "fnopt.cosine_onecycle_schedule",
    **dict.fromkeys(
        ("clip_grad_norm_", "clip_grad_norm", "clip_by_norm", "clip_norm", "clipnorm"),
        "fnopt.clip_by_global_norm in a fnopt.chain",
    ),
    **dict.fromkeys(
        ("clip_grad_value_", "clip_grad_value", "clip_by_value", "clipvalue"),
        "fnopt.clip in a fnopt.chain",
    ),
    **dict.fromkeys(
        ("multi_steps", "GradientAccumulation", "gradient_accumulation", "accumulate_gradients"),
        "fnopt.accumulate",
    ),
    "freeze_params": "fnopt.freeze",
    "scale_by_muon": "fnopt.chain(fnopt.ema(0.95, nesterov=True), fnopt.orthogonalize())",
    **dict.fromkeys(("dion", "Dion"), "fnopt.scale_by_dion in fnopt.partition_matrices"),
    **dict.fromkeys(("muonh", "adamh", "MuonH", "AdamH"), "fnopt.hyperball as the learning rate"),
    **dict.fromkeys(("no_grad", "stop_gradient"), "jax.lax.stop_gradient"),
    **dict.fromkeys(
        ("dpsgd", "DPSGD", "DPOptimizer", "PrivacyEngine", "make_private"),
        "fnopt.clipped_grad and fnopt.add_noise",
    ),
    **dict.fromkeys(("swa", "AveragedModel", "ema_params"), "fnopt.params_mean or params_ema"),
    "GradScaler": "fnopt.dynamic_loss_scale",
    **dict.fromkeys(("PolynomialLR", "polynomial_decay"), "fnopt.polynomial_schedule"),
    **dict.fromkeys(("LinearLR", "linear_warmup"), "fnopt.linear_schedule"),
    "MultiStepLR": "fnopt.piecewise_constant_schedule",
    "weight_decay": "fnopt.add_decayed_weights",
    **dict.fromkeys(("trf", "dogbox", "odr"), "fnopt.least_squares"),
    "tree_map": "jax.tree.map",
    **dict.fromkeys(("jac", "jacfwd", "jacrev"), "fnopt.jacobian, or jax.jacfwd"),
    "GradientTape": "jax.grad; for gradients of values inside a function, fnopt.capture",
    "LevenbergMarquardt": "fnopt.least_squares, or fnopt.levenberg_marquardt in a loop of your own",
    "LM": "fnopt.least_squares, or fnopt.levenberg_marquardt in a loop of your own",
    **dict.fromkeys(("leastsq", "lsq_linear", "Minimizer"), "fnopt.least_squares"),
    **dict.fromkeys(
        ("fsolve", "newton", "newton_raphson", "newton_krylov", "broyden"), "fnopt.root"
    ),
    "anderson": "fnopt.fixed_point",
    **dict.fromkeys(
        ("root_scalar", "brentq", "bisect", "bisection"),
        "fnopt.root, with an initial guess instead of a bracket",
    ),
    **dict.fromkeys(
        ("fmin", "fmin_bfgs", "fmin_cg", "fmin_l_bfgs_b", "minimize_scalar"), "fnopt.minimize"
    ),
    "Bounds": "a pair bounds=(lower, upper), or a Bounds object of SciPy",
    **dict.fromkeys(
        ("LinearConstraint", "NonlinearConstraint"),
        "bounds=, projection= or constraints= of fnopt.minimize",
    ),
    "Model": "fnopt.curve_fit(f, x, y, p0), with a dict of params as p0",
    "Parameters": "a dict, with bounds= and constraints= of fnopt.least_squares",
    "linear_sum_assignment": "fnopt.discrete.hungarian_algorithm",
    "Momentum": "fnopt.sgd(learning_rate, momentum=0.9)",
    "Ranger": "fnopt.lookahead(fnopt.radam(1e-3), 6, 0.5)",
    "SWA": "fnopt.params_mean behind the optimizer, in a fnopt.chain",
    "optim": "fnopt itself, as in fnopt.adam",
    "Optimizer": "fnopt.Transformation",
    "LambdaLR": "fnopt.schedule(fn)",
    "apply_gradients": "tx.update(grads, state, params), then fnopt.apply_updates",
    "grad": "jax.grad",
    "value_and_grad": "jax.value_and_grad",
    "hessian": "jax.hessian; products with it are fnopt.curvature.hvp",
    **dict.fromkeys(("mse", "mse_loss", "MSELoss"), "fnopt.losses.squared_error(...).mean()"),
    **dict.fromkeys(
        ("cross_entropy", "CrossEntropyLoss"),
        "fnopt.losses.softmax_cross_entropy_with_integer_labels(...).mean()",
    ),
    **dict.fromkeys(("hook", "register_hook", "intercept"), "fnopt.tap and fnopt.capture"),
    **dict.fromkeys(("flops", "count_flops"), "fnopt.costs.step_cost"),
}


def suggest_name(name: str, homes: Mapping[str, Sequence[str]]) -> str:
    """Suggest a name of fnopt for an unknown name: a similar name, or a library's counterpart.

    Args:
        name: The requested name.
        homes: The public names of `fnopt` (`""`) and of each of its packages.

    Returns:
        A sentence with a leading space, or an empty string.
    """
    if name in _ELSEWHERE:
        return f" Use {_ELSEWHERE[name]}."
    model = name.removesuffix("Model") or name  # lmfit's GaussianModel is Gaussian
    paths = [f"fnopt.{p}.{n}" for p, ns in homes.items() if p for n in ns if n in (name, model)]
    if paths:
        return f" It is {' or '.join(paths)}."
    spellings = {n.lower().replace("_", ""): n for n in homes[""]}
    spelling = name.lower().replace("_", "")
    close = difflib.get_close_matches(spelling, spellings, n=2, cutoff=0.75)
    longer = [n for n in spellings if n.startswith(spelling)][:2] if len(spelling) > 3 else []
    similar = [spelling] if spelling in spellings else close or longer
    names = [f"fnopt.{spellings[n]}" for n in similar]
    return f" Did you mean {' or '.join(names)}?" if names else ""

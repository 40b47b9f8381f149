"""All optimizers with all of their options, and optax's optimizers with the same options."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

import fnopt
from fnopt.interop import optax_api

SHAPES = {"blocks": [{"kernel": (4, 3)}, ()], "empty": (0, 3)}
KERNELS = {"blocks": [{"kernel": True}, False], "empty": False}


def rate(m: Any) -> Any:
    return _of_float(m, m.warmup_cosine_decay_schedule(0.01, 0.1, 5, 25, end_value=0.001))


def decay(m: Any) -> Any:
    return _of_float(m, m.linear_schedule(0.1, 0.01, 10))


def _of_float(m: Any, schedule: Any) -> Any:
    """Cast the count of a schedule, because optax computes in float32 even if x64 is on."""
    if m is fnopt:
        return schedule
    return lambda count: schedule(count.astype(jax.dtypes.canonicalize_dtype(float)))


def _multi_steps(m: Any, inner: Any, k: int) -> Any:
    if m is fnopt:
        return fnopt.accumulated_sgd(0.1, k, momentum=0.9)
    return m.MultiSteps(inner, every_k_schedule=k).gradient_transformation()


def function_of(m: Any, name: str) -> Any:
    """Return the function of this name in fnopt, or in `optax.contrib`."""
    if m is fnopt:
        return getattr(optax_api if name == "muon" else m, name)
    return getattr(m.contrib, name)


def axes(m: Any, rows: int = 0, columns: int = 1) -> Any:
    """Declare only the kernel a matrix, because optax divides by the sides of empty leaves."""
    matrix = fnopt.MatrixDimensionNumbers if m is fnopt else m.contrib.MuonDimensionNumbers
    return {"blocks": [{"kernel": matrix(rows, columns)}, None], "empty": None}


def _even(step: Any, **extra_args: Any) -> Any:
    return step % 2 == 0


def _small_parts(m: Any) -> Any:
    """Chain small transforms, which don't need a separate program each."""
    return m.chain(
        m.adaptive_grad_clip(0.3),
        m.clip_by_block_rms(0.4),
        m.normalize_by_update_norm(2.0),
        m.scale_by_param_block_norm(),
        m.scale_by_param_block_rms(0.5),
        m.conditionally_transform(m.clip(0.1), _even),
        m.sgd(0.1),
        m.apply_every(3),
    )


def _plateau(m: Any) -> Any:
    of_loss = function_of(m, "reduce_on_plateau")(0.5, 2, cooldown=1, accumulation_size=2)
    return m.chain(m.conditionally_mask(m.flatten(m.adam(0.3)), _even), of_loss)


def _sam(m: Any) -> Any:
    adversary = m.chain(m.normalize_by_update_norm(), m.sgd(0.05))
    tx = function_of(m, "sam")(m.adam(rate(m)), adversary, sync_period=3)
    # optax's `sam` raises an error for extra arguments of other transforms.
    return m.chain(m.clip(2.0), tx if m is fnopt else m.GradientTransformation(*tx))


# name -> function of the library (fnopt or optax)
OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda m: m.sgd(0.1),
    "sgd_schedule": lambda m: m.sgd(rate(m)),
    "sgd_momentum": lambda m: m.sgd(0.1, momentum=0.9),
    "sgd_momentum_zero": lambda m: m.sgd(0.1, momentum=0.0),
    "sgd_nesterov": lambda m: m.sgd(rate(m), momentum=0.9, nesterov=True),
    "adam": lambda m: m.adam(0.1),
    "adam_eps_root": lambda m: m.adam(rate(m), 0.8, 0.9, 1e-4, 1e-6),
    "nadam": lambda m: m.nadam(0.1),
    "adamw": lambda m: m.adamw(0.1, weight_decay=0.1),
    "adamw_schedules": lambda m: m.adamw(
        rate(m), weight_decay=decay(m), mask=KERNELS, nesterov=True
    ),
    "nadamw": lambda m: m.nadamw(rate(m), weight_decay=decay(m), mask=KERNELS),
    "amsgrad": lambda m: m.amsgrad(rate(m), b2=0.9, eps_root=1e-6),
    "amsgrad_plain": lambda m: m.amsgrad(0.1, bias_correction_mu=False, bias_correction_nu=False),
    "adamax": lambda m: m.adamax(rate(m)),
    "adamaxw": lambda m: m.adamaxw(0.1, weight_decay=decay(m), mask=KERNELS),
    "radam": lambda m: m.radam(rate(m), eps_root=1e-6),
    "radam_nesterov": lambda m: m.radam(0.1, b2=0.9, threshold=4.5, nesterov=True),
    "adabelief": lambda m: m.adabelief(rate(m), eps=1e-8),
    "adabelief_nesterov": lambda m: m.adabelief(0.1, eps_root=1e-8, nesterov=True),
    "yogi": lambda m: m.yogi(rate(m)),
    "lamb": lambda m: m.lamb(rate(m), weight_decay=decay(m), mask=KERNELS),
    "lars": lambda m: m.lars(rate(m), weight_decay=0.1, trust_coefficient=0.5),
    "adadelta": lambda m: m.adadelta(1.0, eps=1e-3, weight_decay=0.1),
    "sign_sgd": lambda m: m.sign_sgd(rate(m)),
    "signum": lambda m: m.signum(rate(m)),
    "optimistic_gradient_descent": lambda m: m.optimistic_gradient_descent(rate(m), 0.9, 0.8),
    "optimistic_adam_v2": lambda m: m.optimistic_adam_v2(rate(m), alpha=0.9, beta=0.3),
    "ademamix": lambda m: function_of(m, "ademamix")(rate(m), alpha=decay(m), weight_decay=0.1),
    "simplified_ademamix": lambda m: function_of(m, "simplified_ademamix")(0.01, alpha=decay(m)),
    "fromage": lambda m: m.fromage(rate(m)),
    "adopt": lambda m: function_of(m, "adopt")(rate(m), nesterov=True),
    "rmsprop": lambda m: m.rmsprop(0.1),
    "rmsprop_outside": lambda m: m.rmsprop(0.1, initial_scale=1.0, eps_in_sqrt=False),
    "rmsprop_corrected": lambda m: m.rmsprop(0.1, 0.8, bias_correction=True),
    "rmsprop_momentum": lambda m: m.rmsprop(rate(m), momentum=0.9),
    "rmsprop_nesterov": lambda m: m.rmsprop(rate(m), momentum=0.9, nesterov=True),
    "rmsprop_centred": lambda m: m.rmsprop(0.01, centered=True, eps=1e-3, momentum=0.9),
    "rmsprop_centred_corrected": lambda m: m.rmsprop(
        0.01, centered=True, eps=1e-2, bias_correction=True
    ),
    "adagrad": lambda m: m.adagrad(0.1),
    "lion": lambda m: m.lion(0.01),
    "lion_masked": lambda m: m.lion(rate(m), 0.95, 0.98, weight_decay=decay(m), mask=KERNELS),
    "novograd": lambda m: m.novograd(rate(m), weight_decay=0.1),
    "adafactor": lambda m: m.adafactor(rate(m), 2, momentum=0.9, weight_decay_rate=decay(m)),
    "adafactor_plain": lambda m: m.adafactor(0.1, 9, clipping_threshold=None, decay_offset=-3),
    "optimistic_adam": lambda m: m.optimistic_adam(0.05, 0.3),
    "madgrad": lambda m: function_of(m, "madgrad")(rate(m), weight_decay=0.1),
    "acprop": lambda m: function_of(m, "acprop")(rate(m), eps=1e-4, weight_decay=0.1, mask=KERNELS),
    "cocob": lambda m: function_of(m, "cocob")(rate(m), alpha=2.0, weight_decay=0.1, mask=KERNELS),
    "prodigy": lambda m: function_of(m, "prodigy")(rate(m), estim_lr0=0.1, weight_decay=0.1),
    "prodigy_safeguarded": lambda m: function_of(m, "prodigy")(beta3=0.9, safeguard_warmup=True),
    "dadapt_adamw": lambda m: function_of(m, "dadapt_adamw")(
        rate(m), estim_lr0=0.1, weight_decay=0.1
    ),
    "dog": lambda m: function_of(m, "dog")(rate(m), weight_decay=0.1, mask=KERNELS),
    "dog_first_rate": lambda m: function_of(m, "dog")(0.5, ("learning_rate", 0.01)),
    "dowg": lambda m: function_of(m, "dowg")(rate(m), weight_decay=0.1, mask=KERNELS),
    "momo": lambda m: function_of(m, "momo")(0.5, 0.9, 0.0, 0.1, adapt_lower_bound=True),
    "momo_adam": lambda m: function_of(m, "momo_adam")(rate(m), lower_bound=0.0, weight_decay=0.1),
    "schedule_free_adamw": lambda m: function_of(m, "schedule_free_adamw")(
        0.1, 5, weight_decay=0.1
    ),
    "schedule_free_sgd": lambda m: function_of(m, "schedule_free_sgd")(0.1, weight_decay=0.1),
    "mechanize": lambda m: function_of(m, "mechanize")(m.sgd(rate(m), 0.9), s_init=0.1),
    "muon": lambda m: function_of(m, "muon")(
        rate(m), weight_decay=0.1, muon_weight_dimension_numbers=axes(m)
    ),
    "muon_options": lambda m: function_of(m, "muon")(
        0.1,
        "dion",
        5,
        0.9,
        nesterov=False,
        adaptive=True,
        preconditioning="schatten",
        adam_learning_rate=rate(m),
        adam_weight_decay=0.1,
        consistent_rms=0.2,
    ),
    "muon_aol": lambda m: function_of(m, "muon")(
        0.1, ns_steps=4, preconditioning="aol", muon_weight_dimension_numbers=axes(m, 1, 0)
    ),
    "muon_spectral": lambda m: function_of(m, "muon")(
        0.1, preconditioning="spectral", muon_weight_dimension_numbers=axes(m)
    ),
    "sam": _sam,
    "small_parts": _small_parts,
    "reduce_on_plateau": _plateau,
    "accumulated_sgd": lambda m: _multi_steps(m, None if m is fnopt else m.sgd(0.1, 0.9), 3),
}

OURS_ONLY: dict[str, Any] = {
    # optax weights the change of the gradient by one minus the paper's number.
    "adan": lambda m: m.adan(rate(m), weight_decay=0.1, mask=KERNELS),
    "diffgrad": lambda m: m.diffgrad(0.1),
    # optax returns every step one call late.
    "rprop": lambda m: m.rprop(0.1),
    "sgdr": lambda m: m.sgdr(0.1, decay_steps=4, momentum=0.9),
}

ALL = OPTIMIZERS | OURS_ONLY


def ours(name: str) -> Any:
    return ALL[name](fnopt)


def tree(seed: int, *leading: int) -> Any:
    """Draw a tree of float64 NumPy arrays with additional leading axes."""
    rng = np.random.default_rng(seed)
    is_shape = lambda x: isinstance(x, tuple)  # noqa: E731
    return jax.tree.map(
        lambda shape: rng.standard_normal((*leading, *shape)), SHAPES, is_leaf=is_shape
    )


def cast(tree: Any, dtype: Any) -> Any:
    return jax.tree.map(lambda x: jax.numpy.asarray(x, dtype), tree)

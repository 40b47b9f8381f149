"""Transforms and optimizers of the contract tests; most optimizers are found automatically."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import fnopt
from fnopt.manifolds import riemannian

# With a default, a tree without kernels isn't an error.
KERNELS = fnopt.by_pattern("*kernel", default=False)


def kernels_only(params: Any) -> Any:
    """Return the mask `'*kernel'` in optax's form."""
    return jax.tree.map(lambda path: path.endswith("kernel"), fnopt.leaf_paths(params))


@dataclasses.dataclass(frozen=True)
class Case:
    """A transform under test.

    Attributes:
        name: Name in test ids.
        make: Function that creates the transform.
        peer: The same algorithm in optax, as a function of the optax module.
        minimize: Function of a learning rate that creates an optimizer for a quadratic and for
            Rosenbrock's function; None for transforms that don't descend.
        steps: Maximum number of steps of these minimizations.
        extras: Extra arguments that `update` requires.
        real_only: Whether the transform raises an error for complex numbers.
        wide: Whether updates of 16-bit params are float32, because they determine exact params.
    """

    name: str
    make: Callable[[], Any]
    peer: Callable[[Any], Any] | None = None
    minimize: Callable[[Any], Any] | None = None
    steps: int = 2000
    extras: dict[str, Any] = dataclasses.field(default_factory=dict, hash=False)
    real_only: bool = False
    wide: bool = False

    def __repr__(self) -> str:
        return self.name


def direction(make: Callable[[], Any], name: str, **kwargs: Any) -> Case:
    """Case for a part of an optimizer, which descends with a learning rate after it."""

    def minimize(rate: Any) -> Any:
        schedule = fnopt.cosine_decay_schedule(rate, decay_steps=kwargs.get("steps", 2000))
        return fnopt.chain(make(), fnopt.scale_by_learning_rate(schedule))

    return Case(name, make, minimize=minimize, **kwargs)


def optimizer(make: Callable[[Any], Any], name: str, **kwargs: Any) -> Case:
    """Case for an optimizer, given as a function of its learning rate."""

    def minimize(rate: Any) -> Any:
        return make(fnopt.cosine_decay_schedule(rate, decay_steps=kwargs.get("steps", 2000)))

    return Case(name, lambda: make(1e-2), minimize=minimize, **kwargs)


def _mean_of_signs(updates: Any, params: Any) -> Any:
    del params
    return jax.tree.map(jnp.sign, updates)


def _ignored(record: dict[str, Any]) -> None:
    del record


def _is_matrix(path: str, leaf: Any) -> bool:
    return leaf.ndim > 1


_MIXED = {"a": lambda: fnopt.adam(1e-2), "b": lambda: fnopt.sgd(1e-2, momentum=0.9)}


def _partition() -> Any:
    parts = {label: make() for label, make in _MIXED.items()}
    return fnopt.partition(parts, fnopt.by_pattern({"*kernel": "a"}, default="b"))


def _decayed(rate: Any) -> Any:
    decay = fnopt.linear_schedule(1e-3, 0.0, transition_steps=10)
    return fnopt.adamw(rate, weight_decay=decay, mask=fnopt.by_path(_is_matrix))


def _even(step: Any) -> Any:
    return step % 2 == 0


def _bowl(params: Any) -> Any:
    squares = [jnp.sum(jnp.abs(x).astype(jnp.float32) ** 2) for x in jax.tree.leaves(params)]
    return sum(squares, jnp.zeros((), jnp.float32))


def _small_parts() -> Any:
    """Chain fourteen small transforms, so that one case compiles them together."""
    return fnopt.chain(
        fnopt.adaptive_grad_clip(0.3),
        fnopt.clip_by_block_rms(0.4),
        fnopt.normalize_by_update_norm(2.0),
        fnopt.scale_by_param_block_norm(),
        fnopt.scale_by_param_block_rms(),
        fnopt.scale_by_schedule(fnopt.linear_schedule(1.0, 0.5, 3)),
        fnopt.conditionally_transform(fnopt.scale(0.5), _even),
        fnopt.scale_by_group({"*": 0.5}),
        fnopt.add_gradient_noise(0.01, 0.5, key=3),
        fnopt.apply_every(2),
        fnopt.grokfast(),
        fnopt.decay_to_anchor(0.1),
        fnopt.independent_weight_decay(1e-3, mask=KERNELS),
        fnopt.params_mean(start=1),
    )


def _matrix_parts(rate: Any) -> Any:
    """Chain parts of matrix methods; `hyperball` has a separate test."""
    matrices = fnopt.chain(
        fnopt.scale_by_dion(0.5),
        fnopt.subtract_direction(fnopt.scale(1.0), 0.1),
        fnopt.cautious_weight_decay(0.0),
        fnopt.scale_by_learning_rate(rate),
        fnopt.floor_update_ratio(fnopt.linear_schedule(0.1, 0.0, 3)),
        fnopt.cap_spectral_norm(100.0),
    )
    return fnopt.partition_matrices(matrices, fnopt.adam(rate))


def _hypergradient(rate: Any) -> Any:
    return fnopt.hypergradient(fnopt.scale_by_adam(), rate, 1e-3, normalized=True)


def _scores(params: Any) -> Any:
    """Return logits of one example and two classes."""
    height = _bowl(params)
    return jnp.stack([height, -height])[None]


def _bartlett() -> Any:
    return fnopt.gauss_newton_bartlett_estimator_diag_hessian()


def _wrapped(rate: Any) -> Any:
    inner = fnopt.flatten(fnopt.split_real_and_imaginary(fnopt.adam(rate)))
    inner = fnopt.skip_large_updates(fnopt.conditionally_mask(inner, _even), 1e6)
    return fnopt.chain(fnopt.lookahead(inner, 4, 0.5), fnopt.params_ema(0.9, warmup=True))


def _sam(rate: Any) -> Any:
    adversary = fnopt.chain(fnopt.normalize_by_update_norm(eps=0.0), fnopt.sgd(1e-3))
    return fnopt.sam(fnopt.adam(rate), adversary)


def _narrow_params() -> Any:
    """Apply three wrappers for bfloat16 params, each to some leaves."""
    parts = {
        "a": fnopt.kahan(fnopt.adamw(1e-2)),
        "b": fnopt.master_copy(fnopt.adam(1e-2)),
        "c": fnopt.stochastic_rounding(fnopt.sgd(1e-2), key=3),
    }
    labels = fnopt.by_pattern({"*kernel": "a", "*bias": "b"}, default="c")
    return fnopt.partition(parts, labels)


def _stored_in_less() -> Any:
    """Store slots in 16, 8 and 4 bits, each for some leaves."""
    policy = {"mu": "bfloat16", "nu": "float16"}
    parts = {
        "a": fnopt.quantized_state(fnopt.adamw(1e-2), block_size=4, min_size=1),
        "b": fnopt.precision_policy(fnopt.adam(1e-2), policy, key=1),
        "c": fnopt.quantized_state(fnopt.adam(1e-2), block_size=4, min_size=1, bits=4),
    }
    return fnopt.partition(parts, fnopt.by_pattern({"*kernel": "a", "*bias": "b"}, default="c"))


CASES = [
    # parts
    Case("small_parts", _small_parts),
    Case("layerwise_dog", fnopt.scale_by_distance_over_gradients),
    Case("reduce_on_plateau", fnopt.reduce_on_plateau, extras={"value": 0.5}),
    Case("momo", fnopt.momo, extras={"value": 0.5}),
    Case("momo_adam", fnopt.momo_adam, extras={"value": 0.5}),
    optimizer(_wrapped, "wrapped", steps=4000),
    optimizer(_sam, "sam", steps=4000),
    optimizer(lambda rate: fnopt.mechanize(fnopt.adam(rate), s_init=1e-2), "mechanize"),
    Case(
        "sophia_bartlett",
        lambda: fnopt.sophia(1e-2, hessian_diagonal_fn=_bartlett()),
        extras={"logits_fn": _scores},
    ),
    Case("sophia", lambda: fnopt.sophia(1e-2), extras={"obj_fn": _bowl}),
    # cocob determines its scale, so a higher rate doesn't make it faster
    optimizer(fnopt.cocob, "cocob", peer=lambda optax: optax.contrib.cocob(1e-2), steps=4000),
    # optax's optimistic_adam is deprecated, so it can't be the peer
    optimizer(fnopt.optimistic_adam, "optimistic_adam"),
    # A gradient with fewer rows than columns has a singular factor. With a small ridge, its inverse
    # root is inaccurate in float32; tests/optimizers/test_shampoo.py tests small ridges in float64.
    optimizer(lambda rate: fnopt.shampoo(rate, eps=0.5), "shampoo"),
    # optax weights the change of the gradient differently from the paper
    optimizer(fnopt.adan, "adan"),
    # optax divides by the sides of an empty matrix
    optimizer(fnopt.muon, "muon"),
    optimizer(_matrix_parts, "matrix_parts"),
    # optax doesn't support None
    optimizer(fnopt.galore, "galore"),
    # optax doesn't support scalars and empty arrays
    optimizer(fnopt.sm3, "sm3"),
    Case("identity", fnopt.identity),
    Case("set_to_zero", fnopt.set_to_zero),
    Case("stateless", lambda: fnopt.stateless(_mean_of_signs)),
    Case("scale", lambda: fnopt.scale(0.5), lambda optax: optax.scale(0.5)),
    Case(
        "scale_by_learning_rate",
        lambda: fnopt.scale_by_learning_rate(fnopt.exponential_decay(0.1, 3, 0.5)),
        lambda optax: optax.scale_by_learning_rate(optax.exponential_decay(0.1, 3, 0.5)),
    ),
    Case(
        "add_decayed_weights",
        lambda: fnopt.add_decayed_weights(0.1, mask=KERNELS),
        lambda optax: optax.add_decayed_weights(0.1, mask=kernels_only),
    ),
    direction(lambda: fnopt.clip(0.5), "clip", peer=lambda optax: optax.clip(0.5), real_only=True),
    direction(
        lambda: fnopt.clip_by_global_norm(0.5),
        "clip_by_global_norm",
        peer=lambda optax: optax.clip_by_global_norm(0.5),
    ),
    direction(lambda: fnopt.trace(0.9), "trace", peer=lambda optax: optax.trace(0.9)),
    Case("ema", lambda: fnopt.ema(0.9), lambda optax: optax.ema(0.9)),
    Case("centralize", fnopt.centralize),
    Case("zero_nans", fnopt.zero_nans),
    Case(
        "keep_params_nonnegative",
        fnopt.keep_params_nonnegative,
        lambda optax: optax.keep_params_nonnegative(),
        real_only=True,
    ),
    Case("polyak_sgd", fnopt.polyak_sgd, extras={"value": 0.5}),
    # wrappers
    Case("masked", lambda: fnopt.masked(fnopt.scale_by_adam(), KERNELS)),
    Case("partition", _partition),
    Case("freeze", lambda: fnopt.freeze(fnopt.adam(1e-2), fnopt.by_pattern("*bias", False))),
    Case(
        "named_chain",
        lambda: fnopt.chain(("clip", fnopt.clip(0.5)), ("adam", fnopt.adam(1e-2))),
        lambda optax: optax.named_chain(("clip", optax.clip(0.5)), ("adam", optax.adam(1e-2))),
        real_only=True,
    ),
    optimizer(
        lambda rate: fnopt.accumulate(fnopt.adam(rate), k=2),
        "accumulate",
        peer=lambda optax: optax.MultiSteps(optax.adam(1e-2), 2),
    ),
    optimizer(lambda rate: fnopt.accumulate(fnopt.sgd(rate), k=1), "accumulate_one"),
    optimizer(
        lambda rate: fnopt.apply_if_finite(fnopt.adam(rate)),
        "apply_if_finite",
        peer=lambda optax: optax.apply_if_finite(optax.adam(1e-2), 3),
    ),
    optimizer(lambda rate: riemannian(fnopt.adam(rate)), "riemannian", wide=True),
    Case("narrow_params", lambda: fnopt.sparse_rows(_narrow_params()), wide=True),
    Case("stored_in_less", lambda: fnopt.dynamic_loss_scale(_stored_in_less(), 4.0, 2)),
    # L-BFGS needs gradients of one function; the gradients of the contract tests are arbitrary
    Case("scale_by_lbfgs", fnopt.scale_by_lbfgs),
    optimizer(lambda rate: fnopt.lbfgs(rate, linesearch=None), "lbfgs"),
    # monitors
    Case("record_health", lambda: fnopt.monitor.record_health(4)),
    optimizer(lambda rate: fnopt.cautious(fnopt.adam(rate)), "cautious"),
    # hypergradient learns its rate, so the rate isn't a schedule
    Case("hypergradient", lambda: _hypergradient(1e-2), minimize=_hypergradient),
    Case("snapshot", lambda: fnopt.monitor.snapshot("norm", fnopt.global_norm, decay=0.9)),
    Case("emit_health", lambda: fnopt.monitor.emit_health(_ignored, every=2)),
    # optimizers with options that change the algorithm; `_recipe_cases` adds all other optimizers
    optimizer(
        lambda rate: fnopt.sgd(rate, momentum=0.9, nesterov=True),
        "sgd_nesterov",
        peer=lambda optax: optax.sgd(1e-2, momentum=0.9, nesterov=True),
    ),
    optimizer(_decayed, "adamw_scheduled_decay"),
    optimizer(
        lambda rate: fnopt.rmsprop(rate, centered=True, momentum=0.9),
        "rmsprop_centered",
        peer=lambda optax: optax.rmsprop(1e-2, centered=True, momentum=0.9),
    ),
    Case("sgdr", lambda: fnopt.sgdr(0.01, 3), minimize=lambda rate: fnopt.sgdr(rate, 1000, 1.0)),
    optimizer(lambda rate: fnopt.accumulated_sgd(rate, 2), "accumulated_sgd"),
    # rprop determines its step sizes, so the rate isn't a schedule; optax is one call late.
    Case("rprop", lambda: fnopt.rprop(0.01), minimize=fnopt.rprop),
]


def _peer_of(name: str) -> Callable[[Any], Any] | None:
    """Return optax's recipe of the same name if it has the same arguments and defaults."""
    optax = pytest.importorskip("optax")
    theirs = getattr(optax, name, None) or getattr(optax.contrib, name, None)
    if theirs is None or _defaults(theirs) != _defaults(getattr(fnopt, name)):
        return None
    return lambda optax: theirs(1e-2)


def _defaults(recipe: Callable[..., Any]) -> dict[str, Any]:
    """Return positional parameters with their defaults, without keyword-only parameters."""
    parameters = inspect.signature(recipe).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is not p.KEYWORD_ONLY}


def _recipe_cases() -> list[Case]:
    """Return a case for every recipe whose only required argument is a learning rate."""
    names, cases = {case.name for case in CASES}, []
    for name in fnopt.optimizers.__all__:
        recipe = getattr(fnopt, name)
        if inspect.isclass(recipe) or name in names | NOT_MINIMIZERS:
            continue
        parameters = inspect.signature(recipe).parameters
        required = {p.name for p in parameters.values() if p.default is p.empty}
        if required <= {"learning_rate"} and next(iter(parameters)) == "learning_rate":
            cases.append(optimizer(recipe, name, peer=_peer_of(name)))
    return cases


# Recipes that need more than gradients, which have separate tests.
NOT_MINIMIZERS = {"lbfgs"}
# Public functions of `fnopt.optimizers` that aren't recipes.
FUNCTIONS = {"matrix_axes", "matrix_report", "partition_matrices", "width_scaled"}

CASES += _recipe_cases()

# Base classes, solvers (which have other contract tests) and line searches (which need a function,
# see tests/transforms).
NOT_IN_REGISTRY = {
    *("Transformation", "foreign", "levenberg_marquardt", "gauss_newton", "dogleg"),
    "gauss_newton_descent",  # needs residuals: tests/optimizers/test_gauss_newton_descent.py
    "kfac",  # needs a model and its batches: tests/optimizers/test_kfac.py
    "natural_gradient",  # needs a model: tests/optimizers/test_natural_gradient.py
    "stochastic_reconfiguration",  # tests/optimizers/test_stochastic_reconfiguration.py
    *("scale_by_zoom_linesearch", "scale_by_backtracking_linesearch"),
    "offloaded",  # stores its state in host memory: tests/transforms/test_offloaded.py
    "packed",  # is created for one tree: tests/transforms/test_packed.py
    # need matrices of fixed norm or extra arguments: tests/optimizers/test_matrix_parts.py
    *("hyperball", "precondition_by_inputs", "qk_clip"),
    "strict",  # rejects the extra arguments of the tests: tests/transforms/test_strict.py
}

"""Muon: the momentum of a matrix, made orthogonal."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import (
    Leafwise,
    Scalar,
    ScalarOrSchedule,
    Slot,
    as_dtype,
    check_choice,
    ema,
    hyper,
    in_turn,
    mean_weights,
    real_dtype,
    static,
)
from fnopt.optimizers._matrix_fallback import with_adam
from fnopt.optimizers._matrix_parts import cut, together, whole
from fnopt.optimizers._matrix_rule import as_rule, layouts_of
from fnopt.optimizers._matrix_scale import normalize_neurons, scale_by_matrix_shape
from fnopt.optimizers._newton_schulz import (
    PRECONDITIONINGS,
    STANDARD,
    as_coefficients,
    orthogonalized,
    polynomials,
)
from fnopt.optimizers._recipe import recipe
from fnopt.transforms import partition


class ScaleByMuonState(NamedTuple):
    """Step count, and the average of the gradient."""

    count: jax.Array
    mu: Slot


def _preconditioning(name: Any) -> str:
    check_choice(name, PRECONDITIONINGS, "preconditioning", "scale_by_muon")
    return name


class scale_by_muon(Leafwise):
    r"""The mean gradient of every matrix with all its singular values brought near 1.

    .. math:: \mu_t = \beta\, \mu_{t-1} + (1-\beta)\, g_t, \qquad
              u_t \approx U V^\top \text{ of } \hat\mu_t = U S V^\top

    It is steepest descent in the spectral norm. The factor is found by odd polynomials of the
    matrix, products only; those of one shape are worked on together.

    All leaves must be matrices: hand others to another optimizer, as `muon` does. It stores one
    array like the params. What comes out of a matrix with NaN is NaN; other matrices don't see it.

    Args:
        ns_coeffs: :math:`(a, b, c)` of the polynomial :math:`a x + b x^3 + c x^5` of every step, a
            sequence of such triples, or a preset: `'standard'` for the default, fast and within
            0.7 and 1.2; `'dion'`; `'polar_express'`, the best ones for a given number of steps.
        ns_steps: How many steps; not used for a sequence of triples.
        beta: :math:`\beta`, decay of the mean.
        eps: Added to the norms that matrices are divided by.
        mu_dtype: Storage dtype of `mu`; by default the params' own, but at least float32.
        nesterov: Whether to look ahead.
        adaptive: Whether an update is scaled by its product with the mean gradient, the dual norm.
        preconditioning: How singular values are brought below 1: `'frobenius'` by that norm,
            `'schatten'` by the 4-norm, `'aol'` row by row, or `'spectral'` by the largest one.
        weight_dimension_numbers: The axes of the matrices: `MatrixDimensionNumbers` for all
            leaves, a tree of them, or `fnopt.by_path(fn)`. None for leaves of two axes.
        ns_dtype: The dtype of the products; bfloat16 is what Muon's author uses on accelerators.

    Raises:
        ValueError: In use, if a leaf is no matrix.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, g = fnopt.scale_by_muon("polar_express", 8), jnp.diag(jnp.asarray([9.0, -0.1]))
        >>> print(tx.update(g, tx.init(g))[0].round(2) + 0.0)
        [[ 1.  0.]
         [ 0. -1.]]

    Reference:
        Jordan et al., 2024, Muon; Bernstein and Newhouse, 2024, arXiv:2409.20325; Amsel et al.,
        2025, arXiv:2505.16932 (Polar Express); Ahn et al., 2025, arXiv:2504.05295 (Dion); Boissin
        et al., 2025, arXiv:2512.04632 (AOL); Grishina et al., 2025, arXiv:2506.10935 (Schatten).
    """

    State = ScaleByMuonState

    ns_coeffs: Any = static(default=STANDARD, convert=as_coefficients)
    ns_steps: int = static(default=5, least=1)
    beta: Scalar = hyper(default=0.95, ge=0, lt=1)
    eps: Scalar = hyper(default=1e-8, ge=0)
    mu_dtype: Any = static(default=None, convert=as_dtype)
    nesterov: bool = static(default=True)
    adaptive: bool = static(default=False)
    preconditioning: str = static(default="frobenius", convert=_preconditioning)
    weight_dimension_numbers: Any = static(default=None, convert=as_rule)
    ns_dtype: Any = static(default=None, convert=as_dtype)

    def init(self, params: Any) -> ScaleByMuonState:
        """A zero count and a zero mean."""
        layouts_of(self.weight_dimension_numbers, params)  # what is no matrix is found here
        return super().init(params)

    def scalars(self, h: Any, t: Any) -> dict[str, Any]:
        """The weights of the mean and of the gradient."""
        mean, gradient = mean_weights(h.beta, t, self.nesterov)
        return {"gain": 1 - h.beta, "mean": mean, "gradient": gradient}

    def leaf(self, h: Any, g: Any, mu: Any) -> Any:
        mu = ema(mu, g, h.beta, h.gain)
        return (h.mean * mu + h.gradient * g if self.nesterov else h.mean * mu), mu

    def update(
        self, updates: Any, state: ScaleByMuonState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, ScaleByMuonState]:
        """The orthogonal factors of the mean gradients."""
        layouts = layouts_of(self.weight_dimension_numbers, updates)
        directions, state = self._step(updates, state)
        leaves, treedef = jax.tree.flatten(directions)
        rows = [
            [{"u": part} for part in cut(layout, x)]
            for x, layout in zip(leaves, layouts, strict=True)
        ]
        is_spectral = self.preconditioning == "spectral"  # by eigenvalues
        orthogonal = in_turn(self._orthogonal) if is_spectral else self._orthogonal
        out = together(lambda part: {"u": orthogonal(part["u"])}, rows)
        new = [[part["u"] for part in row] for row in out]
        return treedef.unflatten(map(whole, layouts, new, leaves)), state

    def _orthogonal(self, x: jax.Array) -> jax.Array:
        narrow = x if self.ns_dtype is None else x.astype(self.ns_dtype)
        eps = jnp.asarray(self.eps, real_dtype(narrow.dtype))
        steps = polynomials(self.ns_coeffs, self.ns_steps)
        u = orthogonalized(narrow, steps, eps, self.preconditioning).astype(x.dtype)
        if not self.adaptive:
            return u
        dual = jnp.sum(jnp.real(jnp.conj(x) * u), axis=(1, 2), keepdims=True)
        return dual.astype(u.dtype) * u


@recipe
def muon(
    learning_rate: ScalarOrSchedule,
    ns_coeffs: Any = STANDARD,
    ns_steps: int = 5,
    beta: Scalar = 0.95,
    eps: Scalar = 1e-8,
    weight_decay: ScalarOrSchedule = 0.0,
    weight_decay_mask: Any = None,
    mu_dtype: Any = None,
    *,
    nesterov: bool = True,
    adaptive: bool = False,
    preconditioning: str = "frobenius",
    adam_b1: Scalar = 0.9,
    adam_b2: Scalar = 0.999,
    adam_eps_root: Scalar = 0.0,
    adam_weight_decay: ScalarOrSchedule = 0.0,
    adam_learning_rate: ScalarOrSchedule | None = None,
    muon_weight_dimension_numbers: Any = None,
    consistent_rms: Scalar | None = None,
    ns_dtype: Any = None,
) -> partition:
    r"""Muon for matrices, AdamW for all other leaves.

    .. math:: u_t = -\eta_t \left(s\, U V^\top + \lambda_t\, \theta_t\right), \qquad
              \hat\mu_t = U S V^\top, \qquad
              s = \sqrt{\max(1,\ \text{outputs} / \text{inputs})}

    Embeddings and heads are better off with Adam, though they are matrices: say so with
    `muon_weight_dimension_numbers=fnopt.by_pattern({"*embed*": False, "head/*": False}, True)`.

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        ns_coeffs: The polynomials; see `scale_by_muon`.
        ns_steps: How many.
        beta: Decay of the mean gradient.
        eps: Added to norms, and Adam's epsilon.
        weight_decay: :math:`\lambda` of the matrices, a number or a `Schedule` of its own.
        weight_decay_mask: Which of them decay; see `add_decayed_weights`. None for all.
        mu_dtype: Storage dtype of the mean gradients.
        nesterov: Whether to look ahead.
        adaptive: Whether updates are scaled by the dual norm.
        preconditioning: How singular values are brought below 1; see `scale_by_muon`.
        adam_b1: Adam's decay of the mean gradient.
        adam_b2: Adam's decay of the mean square.
        adam_eps_root: Added under Adam's root.
        adam_weight_decay: The weight decay of Adam's leaves.
        adam_learning_rate: Adam's rate; None for the same.
        muon_weight_dimension_numbers: Which leaves are matrices, and along which axes: None for
            those with two axes; `MatrixDimensionNumbers` for those with two or more; a tree of
            them, with None for Adam's leaves; a pattern, `by_pattern` or `by_path` that gives
            True (a matrix, if it has two axes), False or `MatrixDimensionNumbers`.
        consistent_rms: Scales updates to this root mean square in place of :math:`s`; 0.2 takes
            the rates of AdamW.
        ns_dtype: The dtype of the products; see `scale_by_muon`.

    Returns:
        A partition with the labels `'muon'` and `'adam'`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, params = fnopt.muon(0.1), {"w": 3 * jnp.eye(2), "b": jnp.ones(2)}
        >>> updates, _ = tx.update(params, tx.init(params), params)
        >>> print(updates["w"].round(2) + 0.0)
        [[-0.11  0.  ]
         [ 0.   -0.11]]

    Reference:
        Jordan et al., 2024, Muon; Liu et al., 2025, arXiv:2502.16982.
    """
    rule = muon_weight_dimension_numbers
    direction = [
        scale_by_muon(
            ns_coeffs,
            ns_steps,
            beta,
            eps,
            mu_dtype,
            nesterov,
            adaptive,
            preconditioning,
            rule,
            ns_dtype,
        ),
        scale_by_matrix_shape(consistent_rms, rule),
    ]
    return with_adam(
        "muon",
        direction,
        rule,
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        weight_decay_mask=weight_decay_mask,
        adam_learning_rate=adam_learning_rate,
        adam_weight_decay=adam_weight_decay,
        b1=adam_b1,
        b2=adam_b2,
        eps=eps,
        eps_root=adam_eps_root,
        mu_dtype=mu_dtype,
        nesterov=nesterov,
    )


@recipe
def normuon(
    learning_rate: ScalarOrSchedule,
    ns_coeffs: Any = STANDARD,
    ns_steps: int = 5,
    beta: Scalar = 0.95,
    b2: Scalar = 0.95,
    eps: Scalar = 1e-8,
    weight_decay: ScalarOrSchedule = 0.0,
    weight_decay_mask: Any = None,
    mu_dtype: Any = None,
    *,
    nesterov: bool = True,
    adam_b1: Scalar = 0.9,
    adam_b2: Scalar = 0.999,
    adam_weight_decay: ScalarOrSchedule = 0.0,
    adam_learning_rate: ScalarOrSchedule | None = None,
    muon_weight_dimension_numbers: Any = None,
    consistent_rms: Scalar | None = 0.2,
    ns_dtype: Any = None,
) -> partition:
    r"""NorMuon: Muon with updates that are normalised neuron by neuron.

    .. math:: u_t = -\eta_t \left(s\, \frac{\lVert O \rVert}{\lVert V \rVert}\, V + \lambda_t\,
              \theta_t\right), \qquad V_{ij} = \frac{O_{ij}}{\sqrt{\nu_j}}, \qquad O = U V^\top

    with :math:`\nu_j` the mean square of what goes to output `j`; see `normalize_neurons`. It
    stores one number for every output more than Muon.

    Args:
        learning_rate: :math:`\eta`, a number or a `Schedule`.
        ns_coeffs: The polynomials; see `scale_by_muon`.
        ns_steps: How many.
        beta: Decay of the mean gradient.
        b2: Decay of the mean squares.
        eps: Added to norms, and Adam's epsilon.
        weight_decay: :math:`\lambda` of the matrices, a number or a `Schedule` of its own.
        weight_decay_mask: Which of them decay; see `add_decayed_weights`. None for all.
        mu_dtype: Storage dtype of the mean gradients.
        nesterov: Whether to look ahead.
        adam_b1: Adam's decay of the mean gradient.
        adam_b2: Adam's decay of the mean square.
        adam_weight_decay: The weight decay of Adam's leaves.
        adam_learning_rate: Adam's rate; None for the same.
        muon_weight_dimension_numbers: Which leaves are matrices, and along which axes; see `muon`.
        consistent_rms: The root mean square of an update, as in the paper; None for Muon's factor.
        ns_dtype: The dtype of the products; see `scale_by_muon`.

    Returns:
        A partition with the labels `'normuon'` and `'adam'`.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> tx, params = fnopt.normuon(0.1), {"w": jnp.ones((4, 2))}
        >>> updates, _ = tx.update(params, tx.init(params), params)
        >>> fnopt.apply_updates(params, updates)["w"].shape
        (4, 2)

    Reference:
        Li et al., 2025, arXiv:2510.05491.
    """
    rule = muon_weight_dimension_numbers
    direction = [
        scale_by_muon(
            ns_coeffs,
            ns_steps,
            beta,
            eps,
            mu_dtype,
            nesterov,
            weight_dimension_numbers=rule,
            ns_dtype=ns_dtype,
        ),
        normalize_neurons(b2, weight_dimension_numbers=rule),
        scale_by_matrix_shape(consistent_rms, rule),
    ]
    return with_adam(
        "normuon",
        direction,
        rule,
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        weight_decay_mask=weight_decay_mask,
        adam_learning_rate=adam_learning_rate,
        adam_weight_decay=adam_weight_decay,
        b1=adam_b1,
        b2=adam_b2,
        eps=eps,
        mu_dtype=mu_dtype,
        nesterov=nesterov,
    )

"""The interface of the linear model at a point, whatever the algebra behind it."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import jax


class DampedStep(NamedTuple):
    r"""A step of the linear model :math:`\tfrac12 \|A p + r\|^2`, and what follows from it."""

    p: jax.Array  # [n]
    lam: jax.Array  # its damping; 0 for a full step
    model_norm: jax.Array  # ||A p||^2
    predicted: jax.Array  # the model's reduction, (||r||^2 - ||A p + r||^2) / 2
    factor: Any = None  # what it was solved with, where `pull_back` makes use of it
    full: jax.Array | None = None  # length of the solution before it was cut to the radius
    rise: jax.Array | None = None  # Hebden's: by what lam rises for a solution half as long


class System(Protocol):
    r"""A linear model :math:`A p + r` that is factorised, so that steps for it are cheap.

    :class:`TriangleSystem`, :class:`LiftedSystem`, :class:`TallGramSystem`,
    :class:`WideGramSystem`, :class:`BandedGramSystem` and :class:`KrylovSystem` are such.
    """

    def trust_region(self, radius: jax.Array) -> DampedStep:
        r"""The step that lowers the model most within :math:`\|p\| \le \Delta`."""
        ...

    def damped(self, lam: jax.Array) -> DampedStep:
        r"""The minimum of :math:`\tfrac12 \|A p + r\|^2 + \tfrac\lambda2 \|p\|^2`."""
        ...

    def gauss_newton(self) -> DampedStep:
        r"""The minimum of the model; the one of least norm if there are many."""
        ...

    def model_norm(self, v: jax.Array) -> jax.Array:
        r"""The square :math:`\|A v\|^2`."""
        ...

    def pull_back(self, w: jax.Array, step: DampedStep) -> jax.Array | None:
        r"""The vector :math:`(A^T A + \lambda I)^{-1} A^T w`, with the damping of a step.

        None if that is too dear.
        """
        ...

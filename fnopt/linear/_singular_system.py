"""Steps from singular values: the most accurate ones, for problems that aren't large."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from fnopt.linear._damped import damped_gram_solution, damped_solution, gauss_newton_solution
from fnopt.linear._singular import SingularFactors
from fnopt.linear._system import DampedStep
from fnopt.linear._trust_region import trust_region_solution


@dataclasses.dataclass(frozen=True)
class SingularSystem:
    r"""A linear model whose singular values are known.

    Args:
        factors: The factors of `A` and `r`.
        m: The number of rows of `A`.
        pull: :math:`w \mapsto A^T w`.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.linear import SingularSystem, singular_factors
        >>> A, r = 2 * jnp.eye(2), jnp.ones(2)
        >>> system = SingularSystem(singular_factors(A, r), 2, lambda w: w @ A)
        >>> print(system.damped(jnp.float32(1)).p)
        [-0.4 -0.4]
    """

    factors: SingularFactors
    m: int
    pull: Callable[[jax.Array], jax.Array]

    def trust_region(self, radius: jax.Array) -> DampedStep:
        """The step within the radius; see :func:`trust_region_solution`."""
        lam, z = trust_region_solution(self.factors, radius)
        return self._step(z, lam)

    def damped(self, lam: jax.Array) -> DampedStep:
        """The damped step; see :func:`damped_solution`."""
        return self._step(damped_solution(self.factors, lam), lam)

    def gauss_newton(self) -> DampedStep:
        """The full step; see :func:`gauss_newton_solution`."""
        return self._step(gauss_newton_solution(self.factors, self.m), self._zero)

    def pull_back(self, w: jax.Array, lam: jax.Array) -> jax.Array:
        """The damped solution for another right-hand side."""
        return damped_gram_solution(self.factors, self.pull(w), lam)

    def image(self, v: jax.Array) -> jax.Array:
        r"""The square :math:`\|A v\|^2`."""
        return jnp.sum(jnp.square(self.factors.s * (self.factors.Vt @ v)))

    @property
    def _zero(self) -> jax.Array:
        return jnp.zeros((), self.factors.s.dtype)

    def _step(self, z: jax.Array, lam: jax.Array) -> DampedStep:
        image = jnp.sum(jnp.square(self.factors.s * z))
        promise = _promise(image, lam, z)
        return DampedStep(-(self.factors.Vt.T @ z), lam, image, promise)


def _promise(image: jax.Array, lam: jax.Array, z: jax.Array) -> jax.Array:
    r"""What the model promises for the step :math:`p = -V z`.

    .. math:: \tfrac12 \|r\|^2 - \tfrac12 \|A p + r\|^2
        = \textstyle\sum_i \left( s_i b_i z_i - \tfrac12 s_i^2 z_i^2 \right)
        = \tfrac12 \|s z\|^2 + \lambda \|z\|^2,

    because :math:`s b = (s^2 + \lambda) z`. The last form has no cancellation.
    """
    return jnp.asarray(0.5, z.dtype) * image + lam * jnp.sum(jnp.square(z))

"""Geodesic acceleration: the second-order term of the path that a step starts."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fnopt.linear import DampedStep, System, norm


def geodesic_acceleration(
    system: System, second_derivative: jax.Array, step: DampedStep
) -> jax.Array | None:
    r"""The half acceleration of the path along which the linear model holds to second order.

    Along :math:`x(t) = x + v t + \tfrac12 a t^2` the residual is
    :math:`r + J v\, t + \tfrac12 (r''_{vv} + J a)\, t^2`. The `a` that removes the second-order
    term in the damped least-squares sense solves, in scaled variables,

    .. math:: (A^T A + \lambda I)\, D a = -A^T r''_{vv}, \qquad A = J D^{-1}.

    It reuses the factors of the step, and costs one second derivative along the step.

    Args:
        system: The linear model.
        second_derivative: :math:`r''_{vv}`, of shape `[m]`.
        step: The step, whose damping and factor it shares.

    Returns:
        :math:`\tfrac12 D a`, of shape `[n]`, in scaled variables; None if it would cost another
        iterative solution, or a derivative that isn't there.

    Reference:
        Transtrum and Sethna (2012), Improvements to the Levenberg-Marquardt algorithm for
        nonlinear least-squares minimization, arXiv:1201.5885.
    """
    solution = system.pull_back(second_derivative, step)
    return None if solution is None else -jnp.asarray(0.5, second_derivative.dtype) * solution


def accelerated(
    velocity: jax.Array, half: jax.Array | None, t: jax.Array, ratio: jax.Array
) -> jax.Array:
    r"""Follows the path for a time `t`, with the acceleration where it is a small correction.

    .. math:: p = t v + \tfrac12 t^2 a \quad\text{if}\quad 2 t\, \|\tfrac12 a\| \le \alpha \|v\|,
        \qquad \text{else } p = t v

    A large one means that the path bends too much for the model to hold over the step.

    Args:
        velocity: The damped step, of shape `[n]`, in scaled variables.
        half: Half the acceleration, of shape `[n]`, in scaled variables, if there is any.
        t: How far to go, a scalar.
        ratio: The largest ratio :math:`\alpha`.

    Returns:
        The step, of shape `[n]`, in scaled variables.
    """
    if half is None:
        return t * velocity
    small = 2 * t * norm(half) <= ratio * norm(velocity)  # false if any of it is NaN
    return t * velocity + jnp.where(small, t * t * half, jnp.zeros_like(half))

"""Privacy accounting by Google's library dp-accounting."""

from __future__ import annotations

import functools
import math
from typing import Any

from fnopt.errors import check_count


def privacy_epsilon(
    noise_multiplier: float, sampling_rate: float, steps: int, delta: float
) -> float:
    r"""Compute the privacy loss of DP-SGD: the :math:`\epsilon` of :math:`(\epsilon, \delta)`.

    The result is valid for Poisson-sampled batches (:func:`fnopt.poisson_batch`), clipped sums
    (:func:`fnopt.clipped_grad`) and Gaussian noise (:func:`fnopt.add_noise`). Neighboring data
    sets differ in the addition or removal of one example. The library dp-accounting computes the
    result from privacy loss distributions.

    Args:
        noise_multiplier: The standard deviation of the noise, divided by the sensitivity.
        sampling_rate: The probability that an example is in a batch.
        steps: Number of steps.
        delta: :math:`\delta`, which should be much smaller than the reciprocal of the number of
            examples.

    Returns:
        :math:`\epsilon`; infinite without noise.

    Raises:
        ValueError: If an argument is out of range.
        ImportError: If dp-accounting isn't installed.

    Example:
        >>> from fnopt.interop import privacy_epsilon
        >>> print(f"{privacy_epsilon(1.0, 0.01, 100, 1e-5):.1f}")
        0.7

    Reference:
        Doroshenko et al. (2022), Connect the dots: tighter discrete approximations of privacy loss
        distributions, arXiv:2207.04380.
    """
    _check(sampling_rate, steps, delta, "privacy_epsilon")
    if not noise_multiplier >= 0:
        raise ValueError(
            f"privacy_epsilon: noise_multiplier is {noise_multiplier!r}, expected a number >= 0."
        )
    if noise_multiplier == 0:
        return math.inf
    from dp_accounting import pld

    accountant = pld.PLDAccountant()
    accountant.compose(_event(noise_multiplier, sampling_rate, steps))
    return float(accountant.get_epsilon(delta))


def calibrated_noise(epsilon: float, sampling_rate: float, steps: int, delta: float) -> float:
    r"""Compute the smallest noise multiplier of DP-SGD for a budget :math:`(\epsilon, \delta)`.

    The function inverts :func:`privacy_epsilon` with an accuracy of 0.1 percent. The result never
    exceeds the budget.

    Args:
        epsilon: :math:`\epsilon`, the privacy budget.
        sampling_rate: The probability that an example is in a batch.
        steps: Number of steps.
        delta: :math:`\delta`, which should be much smaller than the reciprocal of the number of
            examples.

    Returns:
        The noise multiplier, for :func:`fnopt.add_noise`.

    Raises:
        ValueError: If an argument is out of range.
        ImportError: If dp-accounting isn't installed.

    Example:
        >>> from fnopt.interop import calibrated_noise, privacy_epsilon
        >>> sigma = calibrated_noise(2.0, 0.1, 10, 1e-5)
        >>> 1.98 < privacy_epsilon(sigma, 0.1, 10, 1e-5) <= 2.0
        True
    """
    _check(sampling_rate, steps, delta, "calibrated_noise")
    if not 0 < epsilon < math.inf:
        raise ValueError(
            f"calibrated_noise: epsilon is {epsilon!r}, expected a positive, finite number."
        )

    privacy_loss = functools.partial(
        privacy_epsilon, sampling_rate=sampling_rate, steps=steps, delta=delta
    )
    losses = {1.0: privacy_loss(1.0)}
    while min(losses.values()) > epsilon:
        losses[2 * max(losses)] = privacy_loss(2 * max(losses))
    while max(losses.values()) <= epsilon:
        losses[min(losses) / 2] = privacy_loss(min(losses) / 2)
    high = min(sigma for sigma, value in losses.items() if value <= epsilon)
    low = max(sigma for sigma, value in losses.items() if value > epsilon)
    iteration = 0
    while high - low > 1e-3 * high:  # more digits of the noise have no effect on training
        # Secant method in the logarithms, whose relation is nearly linear. Alternating offsets move
        # both ends of the bracket. Every third iteration bisects.
        fraction = 0.5
        if iteration % 3 < 2 and losses[high] > 0 and math.isfinite(losses[low]):
            fraction = math.log(losses[low] / epsilon) / math.log(losses[low] / losses[high])
        guess = low * (high / low) ** fraction * (1 + 3e-4 * (-1) ** iteration)
        sigma = min(max(guess, low * (1 + 1e-4)), high * (1 - 1e-4))
        losses[sigma] = privacy_loss(sigma)
        low, high = (low, sigma) if losses[sigma] <= epsilon else (sigma, high)
        iteration += 1
    return high


def _check(sampling_rate: float, steps: int, delta: float, name: str) -> None:
    if not 0 < sampling_rate <= 1:
        raise ValueError(f"{name}: sampling_rate is {sampling_rate!r}, expected 0 < rate <= 1.")
    check_count(steps, "steps", name)
    if not 0 < delta < 1:
        raise ValueError(f"{name}: delta is {delta!r}, expected 0 < delta < 1.")


def _event(noise_multiplier: float, sampling_rate: float, steps: int) -> Any:
    import dp_accounting

    # With a rate of 1, the Gaussian mechanism without sampling is cheaper to compose.
    step: Any = dp_accounting.GaussianDpEvent(float(noise_multiplier))
    if sampling_rate < 1:
        step = dp_accounting.PoissonSampledDpEvent(float(sampling_rate), step)
    return dp_accounting.SelfComposedDpEvent(step, steps)

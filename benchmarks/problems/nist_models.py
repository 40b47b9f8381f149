"""The models of the NIST StRD data sets, as functions of params and predictor."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp


def _bennett5(b: Any, x: Any) -> Any:
    return b[0] * (b[1] + x) ** (-1 / b[2])


def _boxbod(b: Any, x: Any) -> Any:
    return b[0] * (1 - jnp.exp(-b[1] * x))


def _chwirut(b: Any, x: Any) -> Any:
    return jnp.exp(-b[0] * x) / (b[1] + b[2] * x)


def _danwood(b: Any, x: Any) -> Any:
    return b[0] * x ** b[1]


def _enso(b: Any, x: Any) -> Any:
    t = 2 * jnp.pi * x
    return (
        b[0]
        + b[1] * jnp.cos(t / 12)
        + b[2] * jnp.sin(t / 12)
        + b[4] * jnp.cos(t / b[3])
        + b[5] * jnp.sin(t / b[3])
        + b[7] * jnp.cos(t / b[6])
        + b[8] * jnp.sin(t / b[6])
    )


def _eckerle4(b: Any, x: Any) -> Any:
    return b[0] / b[1] * jnp.exp(-0.5 * ((x - b[2]) / b[1]) ** 2)


def _gauss(b: Any, x: Any) -> Any:
    return (
        b[0] * jnp.exp(-b[1] * x)
        + b[2] * jnp.exp(-((x - b[3]) ** 2) / b[4] ** 2)
        + b[5] * jnp.exp(-((x - b[6]) ** 2) / b[7] ** 2)
    )


def _cubic_rational(b: Any, x: Any) -> Any:
    return (b[0] + b[1] * x + b[2] * x**2 + b[3] * x**3) / (
        1 + b[4] * x + b[5] * x**2 + b[6] * x**3
    )


def _kirby2(b: Any, x: Any) -> Any:
    return (b[0] + b[1] * x + b[2] * x**2) / (1 + b[3] * x + b[4] * x**2)


def _lanczos(b: Any, x: Any) -> Any:
    return b[0] * jnp.exp(-b[1] * x) + b[2] * jnp.exp(-b[3] * x) + b[4] * jnp.exp(-b[5] * x)


def _mgh09(b: Any, x: Any) -> Any:
    return b[0] * (x**2 + x * b[1]) / (x**2 + x * b[2] + b[3])


def _mgh10(b: Any, x: Any) -> Any:
    return b[0] * jnp.exp(b[1] / (x + b[2]))


def _mgh17(b: Any, x: Any) -> Any:
    return b[0] + b[1] * jnp.exp(-x * b[3]) + b[2] * jnp.exp(-x * b[4])


def _misra1b(b: Any, x: Any) -> Any:
    return b[0] * (1 - (1 + b[1] * x / 2) ** (-2))


def _misra1c(b: Any, x: Any) -> Any:
    return b[0] * (1 - (1 + 2 * b[1] * x) ** (-0.5))


def _misra1d(b: Any, x: Any) -> Any:
    return b[0] * b[1] * x * (1 + b[1] * x) ** (-1)


def _nelson(b: Any, x: Any) -> Any:
    return b[0] - b[1] * x[:, 0] * jnp.exp(-b[2] * x[:, 1])


def _rat42(b: Any, x: Any) -> Any:
    return b[0] / (1 + jnp.exp(b[1] - b[2] * x))


def _rat43(b: Any, x: Any) -> Any:
    return b[0] / (1 + jnp.exp(b[1] - b[2] * x)) ** (1 / b[3])


def _roszman1(b: Any, x: Any) -> Any:
    return b[0] - b[1] * x - jnp.arctan(b[2] / (x - b[3])) / jnp.pi


MODELS = {
    "Bennett5": _bennett5,
    "BoxBOD": _boxbod,
    "Chwirut1": _chwirut,
    "Chwirut2": _chwirut,
    "DanWood": _danwood,
    "ENSO": _enso,
    "Eckerle4": _eckerle4,
    "Gauss1": _gauss,
    "Gauss2": _gauss,
    "Gauss3": _gauss,
    "Hahn1": _cubic_rational,
    "Kirby2": _kirby2,
    "Lanczos1": _lanczos,
    "Lanczos2": _lanczos,
    "Lanczos3": _lanczos,
    "MGH09": _mgh09,
    "MGH10": _mgh10,
    "MGH17": _mgh17,
    "Misra1a": _boxbod,
    "Misra1b": _misra1b,
    "Misra1c": _misra1c,
    "Misra1d": _misra1d,
    "Nelson": _nelson,
    "Rat42": _rat42,
    "Rat43": _rat43,
    "Roszman1": _roszman1,
    "Thurber": _cubic_rational,
}

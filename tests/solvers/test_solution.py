import jax.numpy as jnp

import fnopt
from fnopt import Status


def exact(tangent):
    one, zero = jnp.ones((), jnp.int32), jnp.float32(0)
    return fnopt.solvers.Solution(
        params={"a": jnp.float32(2), "b": jnp.float32(3)},
        cost=zero,
        residuals=jnp.zeros(4),
        jacobian=jnp.eye(4)[:, : 2 if tangent is None else tangent.shape[1]],
        gradient_norm=zero,
        rank=one,
        steps=one,
        nfev=one,
        njev=one,
        status=Status.CONVERGED_GRADIENT.array,
        tangent=tangent,
        dof=2 * one,
    )


def test_what_fits_without_any_error_is_not_called_held():
    assert "held" not in str(exact(None))
    assert str(exact(None)).count("± 0") == 2


def test_what_does_not_move_is_called_held():
    lines = str(exact(jnp.asarray([[1.0], [0.0]]))).splitlines()
    assert lines[-2].endswith("± 0")
    assert lines[-1].endswith("3   (held)")

"""Every public function of `fnopt.distributed`, with and without a mesh in the context."""

from __future__ import annotations

import contextlib
import functools
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.core import Tracer
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import fnopt
from fnopt import distributed

pytestmark = pytest.mark.skipif(
    not hasattr(jax, "set_mesh"), reason="the caller has to set the mesh then"
)
KINDS = "Auto", "Explicit"
PLACES = {"whole": P(), "divided": P("d")}
ADAMW = fnopt.adamw(1e-2)
ZERO = distributed.sharded(ADAMW, "d")


@contextlib.contextmanager
def _deprecated(mesh: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        with mesh:
            yield


CONTEXTS: dict[str, Any] = {
    "none": lambda mesh: contextlib.nullcontext(),
    "with mesh": _deprecated,
    **{
        name: getattr(place, name)
        for place, name in ((jax, "set_mesh"), (jax.sharding, "use_mesh"))
        if hasattr(place, name)
    },
}


@functools.cache
def _mesh(kind: str) -> Any:
    return jax.make_mesh((2,), ("d",), axis_types=(getattr(AxisType, kind),))


def _params(kind: str, place: str) -> Any:
    arrays = {"w": jnp.arange(16.0).reshape(4, 4) / 10, "b": jnp.ones(4)}
    return jax.device_put(arrays, NamedSharding(_mesh(kind), PLACES[place]))


def _grads(params: Any) -> Any:
    return jax.tree.map(jnp.cos, params)


def _step(tx: Any, params: Any, state: Any = None) -> Any:
    return tx.update(_grads(params), tx.init(params) if state is None else state, params)[0]


def _on_workers(make: Any) -> Any:
    """A step of workers that begin alike."""

    def run(params: Any, mesh: Any) -> Any:
        specs = jax.tree.map(lambda p: P(), params)
        whole = jax.tree.map(lambda p: fnopt.sharding.replicate(p), params)
        given = {"in_specs": (specs,), "out_specs": specs, "check_vma": False}
        return jax.shard_map(lambda p: _step(make(), p), mesh=mesh, **given)(whole)

    return run


def _zero_step(params: Any, mesh: Any) -> Any:
    specs = jax.tree.map(lambda s: s.spec, distributed.state_sharding(ZERO, params, mesh=mesh))
    state = distributed.init_sharded(ZERO, params, mesh=mesh)
    whole = jax.tree.map(lambda p: fnopt.sharding.replicate(p), params)
    given = {"in_specs": (P(), specs), "out_specs": P(), "check_vma": False}
    step = jax.shard_map(lambda p, s: _step(ZERO, p, s), mesh=mesh, **given)
    return step(whole, state)


def _shapes(params: Any) -> Any:
    def one(p: Any) -> Any:
        known = None if isinstance(p, Tracer) else p.sharding
        return jax.ShapeDtypeStruct(p.shape, p.dtype, sharding=known)

    return jax.tree.map(one, params)


def _specs(params: Any, mesh: Any) -> Any:
    """How many of the state's leaves are divided over the axis."""
    places = distributed.state_sharding(ADAMW, params, mesh=mesh, axis="d")
    return jnp.asarray(sum("d" in str(s.spec) for s in jax.tree.leaves(places)))


def _round(params: Any, mesh: Any) -> Any:
    del mesh
    server = distributed.federated(fnopt.adam(0.1))
    return server.update(server.init(params), [_grads(params), params], [1, 2]).params


def _message(params: Any, mesh: Any) -> Any:
    del mesh
    codes = distributed.quantized_delta(4)
    message, _ = codes.encode(params, _grads(params), codes.init(params))
    return codes.decode(message, _grads(params))


def _gathered(params: Any, mesh: Any) -> Any:
    return distributed.gather_state(ZERO, distributed.init_sharded(ZERO, params, mesh=mesh), params)


def _pulled(params: Any, mesh: Any) -> Any:
    del mesh
    return _step(fnopt.chain(distributed.add_proximal_term(0.5), ADAMW), params)


CASES: dict[str, Any] = {
    "state_sharding": _specs,
    "init_sharded": lambda p, mesh: distributed.init_sharded(ADAMW, p, mesh=mesh, axis="d"),
    "init_sharded-shapes": lambda p, mesh: (
        distributed.init_sharded(ADAMW, _shapes(p), mesh=mesh, axis="d"),
        p,  # a program without arguments is compiled for one device
    ),
    "init_sharded-sharded": lambda p, mesh: distributed.init_sharded(ZERO, p, mesh=mesh),
    "sharded": _zero_step,
    "gather_state": _gathered,
    "scatter_state": lambda p, mesh: distributed.scatter_state(ZERO, ADAMW.init(p), p, mesh=mesh),
    "diloco": _on_workers(lambda: distributed.diloco(ADAMW, None, every=1, axis="d")),
    "diloco-codes": _on_workers(
        lambda: distributed.diloco(ADAMW, None, every=1, axis="d", block_size=4)
    ),
    "federated": _round,
    "quantized_delta": _message,
    "add_proximal_term": _pulled,
}
RESULTS = {"Codes", "DilocoState", "ProximalState", "QuantizedDeltaState", "ServerState"}


def test_everything_public_has_a_case():
    named = {name.partition("-")[0] for name in CASES}
    assert {*distributed.__all__} - RESULTS == named


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CASES)
def test_a_context_changes_nothing(name: str, kind: str, context: str):
    mesh = _mesh(kind)
    for place in PLACES:
        params = _params(kind, place)
        expected = _expected(name, kind, place)
        with CONTEXTS[context](mesh):
            eager = CASES[name](params, None if _knows_its_mesh(name) else mesh)
            found = [eager]
            if place == "divided" and context != "with mesh":
                found += [jax.jit(lambda p: CASES[name](p, mesh))(params)]
        for results in found:
            for a, b in zip(jax.tree.leaves(results), expected, strict=True):
                np.testing.assert_allclose(np.asarray(a), b, rtol=1e-5, atol=1e-6)


def _knows_its_mesh(name: str) -> bool:
    return "state" in name or "init" in name


@functools.cache
def _expected(name: str, kind: str, place: str) -> Any:
    """The results of eager calls without a context."""
    return [np.asarray(x) for x in jax.tree.leaves(CASES[name](_params(kind, place), _mesh(kind)))]


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_part_is_where_it_belongs(kind: str, context: str):
    mesh = _mesh(kind)
    for place in PLACES:
        params = _params(kind, place)
        with CONTEXTS[context](mesh):
            for tx, axis in ((ADAMW, "d"), (ZERO, None)):
                given = {"mesh": mesh, "axis": axis}
                places = distributed.state_sharding(tx, params, **given)
                init = functools.partial(distributed.init_sharded, tx, **given)
                for state in (init(params), jax.jit(init)(params)):
                    assert jax.tree.structure(state) == jax.tree.structure(places)
                    pairs = zip(jax.tree.leaves(state), jax.tree.leaves(places), strict=True)
                    assert all(x.sharding.is_equivalent_to(s, x.ndim) for x, s in pairs)


@pytest.mark.parametrize("kind", KINDS)
def test_init_of_sharded_is_init_sharded(kind: str):
    for place in PLACES:
        params = _params(kind, place)
        mine, theirs = distributed.init_sharded(ZERO, params), ZERO.init(params)
        assert jax.tree.structure(mine) == jax.tree.structure(theirs)
        for a, b in zip(jax.tree.leaves(mine), jax.tree.leaves(theirs), strict=True):
            assert a.sharding.is_equivalent_to(b.sharding, a.ndim)
            np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def test_the_context_may_have_a_mesh_of_another_size():
    one = jax.make_mesh((1,), ("d",), devices=jax.devices()[:1], axis_types=(AxisType.Auto,))
    for kind in KINDS:
        params = _params(kind, "divided")
        expected = distributed.state_sharding(ZERO, params)
        with jax.sharding.use_abstract_mesh(one.abstract_mesh):
            assert distributed.state_sharding(ZERO, params) == expected
        with jax.set_mesh(one):
            state = distributed.init_sharded(ZERO, params)
        assert fnopt.slots(state)["mu"]["w"].sharding.mesh == _mesh(kind)


def test_traced_params_of_an_automatic_mesh_need_the_mesh():
    with pytest.raises(ValueError, match=r"params are traced.*outside of jax.jit, or pass mesh="):
        jax.jit(lambda p: distributed.init_sharded(ADAMW, p))(_params("Auto", "whole"))
    state = jax.jit(lambda p: distributed.init_sharded(ADAMW, p))(_params("Explicit", "divided"))
    assert fnopt.slots(state)["mu"]["w"].sharding.spec[0] == "d"

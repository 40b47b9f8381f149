"""ZeRO: every device stores and updates its own shard of an optimizer's state."""

from __future__ import annotations

import math
from typing import Any

import jax
from jax.core import Tracer
from jax.sharding import NamedSharding, PartitionSpec

from fnopt.core import static
from fnopt.distributed._elementwise import check_elementwise
from fnopt.distributed._meshes import axis_names, put
from fnopt.distributed._packing import (
    all_gather_shards,
    concatenate_shards,
    local_shards,
    local_unsharded_leaves,
    reduce_scatter,
)
from fnopt.errors import check_inexact, count_text, leaf_text, leaves_with_names, where
from fnopt.sharding import UnshardedLeaves, place_state, replicate, shards_over, varying_axes
from fnopt.transforms import Wrapper


class sharded(Wrapper):
    r"""Shard an optimizer's state and work over the devices of a named axis (ZeRO-1).

    .. math:: g^{(k)} = \Bigl(\tfrac1N \sum_{j=1}^{N} g_j\Bigr)^{(k)}, \qquad
              u^{(k)}, s_k' = \mathrm{inner}(g^{(k)}, s_k, \theta^{(k)}), \qquad
              u = (u^{(1)}, \dots, u^{(N)})

    Use `sharded` inside `jax.shard_map`, with params that are replicated on every device and the
    gradient :math:`g_j` of each device's part of the batch. A step reduce-scatters the gradients,
    updates this device's shard (one :math:`N`-th of every leaf) by `inner`, and all-gathers the
    updates. Each step needs one collective of each kind per dtype. The traffic equals the traffic
    of an all-reduce; state and arithmetic are divided by N. Leaves have the same names as without
    sharding, so masks and labels work. Leaves whose size isn't a multiple of N are padded with
    zeros. Without norms, the result equals the result of `inner` bit for bit, provided that the
    compiler rounds long and short arrays in the same way. Norms and inner products over leaves, for
    example in `clip_by_global_norm`, are summed over the devices automatically.

    Matrix methods (`muon`, `soap`, `shampoo`, `kl_shampoo`, `psgd_kron`, `galore`) also store their
    slots and factors in shards. The matrices of each shape are distributed among the devices. Every
    device gathers its matrices, updates them and sends the results back, by two all-to-alls of one
    N-th of the matrices. The work is divided by N if N divides the number of matrices of each shape
    (each layer of a stack is one matrix).

    Quantized slots (`quantized_state`) have the same blocks as the whole leaf. If shards contain
    whole blocks, the result equals the result of `inner` bit for bit. A block that crosses a shard
    boundary is split into two blocks with separate scales. The numbers of such a block are rounded
    differently, with the same error bound.

    Outside of `shard_map` the arrays of the state have shape `[1, ..., N * ceil(size / N)]`,
    sharded over the axis. `state_sharding` returns the shardings of the state. `init_sharded`, or
    `init` with params on a mesh, makes the state. `gather_state` and `scatter_state` convert the
    state to and from the state of `inner` on one device, for example to continue on another number
    of devices.

    Place transforms that need the averaged gradient (clipping, skipping, EMA, accumulation) inside
    `sharded`. With `accumulate` outside, `sharded` communicates only in every k-th step.

    Args:
        inner: An optimizer that is elementwise except for norms and inner products, or a matrix
            method.
        axis: The name of the mesh axis (or several names) over which gradients are averaged.
        mean: Whether to average the devices' gradients; if False, sum them. With
            `check_vma=True`, `jax.grad` has already summed gradients whose type doesn't vary over
            the devices. `sharded` doesn't sum these again, so the loss must be a mean over devices
            (`jax.lax.pmean`). `check_vma=False` needs less communication.

    Raises:
        ValueError: In `update`, if the axis isn't bound, the state was made for a different number
            of devices, or `inner` needs whole leaves. An optimizer with random numbers or means of
            leaves (`adafactor`) needs whole leaves; use `state_sharding` with `axis` instead.

    Example:
        >>> from functools import partial
        >>> from jax.sharding import NamedSharding, PartitionSpec as P
        >>> from fnopt import distributed
        >>> tx = distributed.sharded(fnopt.adam(0.1), axis="data")
        >>> mesh = jax.make_mesh((1,), ("data",))
        >>> params = jax.device_put({"w": jnp.ones(3)}, NamedSharding(mesh, P()))
        >>> batch = jax.device_put(jnp.ones((2, 3)), NamedSharding(mesh, P("data")))
        >>> state = tx.init(params)
        >>> specs = jax.tree.map(lambda s: s.spec, distributed.state_sharding(tx, params))
        >>> @jax.jit
        ... @partial(jax.shard_map, mesh=mesh, check_vma=False,
        ...          in_specs=(P(), specs, P("data")), out_specs=(P(), specs))
        ... def step(params, state, batch):
        ...     grads = jax.grad(lambda p: jnp.mean((batch @ p["w"]) ** 2))(params)
        ...     updates, state = tx.update(grads, state, params)
        ...     return fnopt.apply_updates(params, updates), state
        >>> step(params, state, batch)[0]
        {'w': Array([0.9, 0.9, 0.9], dtype=float32)}

    Reference:
        Rajbhandari et al., 2020, arXiv:1910.02054.
    """

    State = None

    axis: Any = static(convert=axis_names)
    mean: bool = static(default=True)

    def init(self, params: Any) -> Any:
        """Make the inner state of this device's shards; on a mesh, of the shards of all devices."""
        check_inexact(params, "params")
        n = _size_if_bound(self.axis)
        if n is None:
            named_params, treedef = leaves_with_names(params)
            parts = treedef.unflatten([self._shards_of(name, p) for name, p in named_params])
            return place_state(self._init_of_rows(params, parts), parts)
        with shards_over(self.axis, local_unsharded_leaves(shapes_by_name(params), self.axis)):
            return self.inner.init(local_shards(params, self.axis, n))

    def _init_of_rows(self, params: Any, parts: Any) -> Any:
        try:
            with shards_over((), self._unsharded_leaves(params)):
                return self.inner.init(parts)
        except Exception as error:
            if "Sharding" not in type(error).__name__:  # JAX doesn't export the class
                raise
            raise ValueError(
                f"{where()}{self.inner._place} has a state of blocks or factors that JAX can't "
                "compute from shards, expected slots with the shapes of the params. Use "
                "fnopt.distributed.state_sharding(tx, params, axis=...) with the plain optimizer."
            ) from error

    def update(
        self, updates: Any, state: Any, params: Any = None, **extra_args: Any
    ) -> tuple[Any, Any]:
        """Average the gradients, update this device's shards, and gather the updates."""
        check_inexact(updates, "gradients")
        n = self._size()
        _check_wrappers()
        # The check runs at trace time, before any device computes with shards.
        check_elementwise(self.inner, updates, params, extra_args, self.axis)
        local_params = None if params is None else local_shards(params, self.axis, n)
        grads = self._average(updates, n)
        with shards_over(self.axis, local_unsharded_leaves(shapes_by_name(updates), self.axis)):
            _check_parts(
                state,
                jax.eval_shape(self.inner.init, grads if local_params is None else local_params),
                n,
            )
            shard_updates, state = self.inner.update(grads, state, local_params, **extra_args)
        return all_gather_shards(shard_updates, updates, self.axis), state

    def _average(self, updates: Any, n: int) -> Any:
        """Compute this device's shards of the averaged (or summed) gradients."""
        leaves, treedef = jax.tree.flatten(updates)
        # With `check_vma=True`, types track varying axes, and `jax.grad` sums the gradients of
        # replicated params over the devices. A gradient that doesn't vary is such a sum.
        types_track_axes = bool(varying_axes(jax.lax.axis_index(self.axis)))
        is_summed = [types_track_axes and not {*self.axis} & varying_axes(g) for g in leaves]
        sums = iter(
            reduce_scatter(
                [g for g, s in zip(leaves, is_summed, strict=True) if not s], self.axis, n
            )
        )
        parts = [
            local_shards(g, self.axis, n) if s else self._scale(next(sums), n)
            for g, s in zip(leaves, is_summed, strict=True)
        ]
        return treedef.unflatten(parts)

    def _scale(self, part: jax.Array, n: int) -> jax.Array:
        return part / jax.numpy.asarray(n, part.dtype) if self.mean else part

    def _size(self) -> int:
        n = _size_if_bound(self.axis)
        if n is None:
            raise ValueError(
                f"{where()}the axis {self.axis!r} isn't bound here, expected an axis in scope. "
                "Call update inside jax.shard_map over a mesh with this axis. For a jitted step "
                "without named axes, use the plain optimizer and "
                "fnopt.distributed.state_sharding(tx, params, axis=...)."
            )
        return n

    def _shards_of(self, name: str, p: Any) -> Any:
        """Convert a leaf to the concatenated shards of all devices, sharded over its mesh."""
        mesh = mesh_of(p)
        if mesh is None or not {*self.axis} <= {*mesh.axis_names}:
            raise ValueError(
                f"{where()}the axis {self.axis!r} is neither bound here nor an axis of the params' "
                f"mesh: {leaf_text(name)} has {_sharding_of(p)}, expected a sharding on a mesh "
                "with this axis. Call init inside jax.shard_map, put the params on the mesh first, "
                "or use fnopt.distributed.init_sharded(tx, params, mesh=mesh)."
            )
        n = math.prod(mesh.shape[name] for name in self.axis)
        return _shard_last(concatenate_shards(replicate(p), n), self.axis, mesh)

    def _unsharded_leaves(self, params: Any) -> UnshardedLeaves | None:
        """Describe leaves that are concatenated shards on the mesh of the params."""
        mesh = next(map(mesh_of, jax.tree.leaves(params)), None)
        if mesh is None:
            return None

        n = math.prod(mesh.shape[name] for name in self.axis)
        return UnshardedLeaves(
            shapes_by_name(params),
            n,
            lambda parts: _shard_last(parts.reshape(*parts.shape[:-2], -1), self.axis, mesh),
        )


def _is_sharded(node: Any) -> bool:
    return isinstance(node, sharded)


def without_sharded(tx: Any) -> Any:
    """Replace every `sharded` in an optimizer by its inner optimizer."""
    return jax.tree.map(
        lambda x: without_sharded(x.inner) if _is_sharded(x) else x, tx, is_leaf=_is_sharded
    )


def _check_wrappers() -> None:
    # These wrappers accept or skip a step depending on the gradient, which differs between devices
    # here. A device that skips a step doesn't join the collectives of other devices: a deadlock.
    for name in ("apply_if_finite", "skip_large_updates"):
        if name in where():
            raise ValueError(
                f"{where()}got {name}(sharded(...)), which deadlocks because each device decides "
                f"by its own gradient; expected sharded({name}(...), axis). Put {name} inside "
                "sharded."
            )


def _size_if_bound(axes: tuple[str, ...]) -> int | None:
    try:
        return jax.lax.psum(1, axes)
    except NameError:  # JAX's error for an unbound axis
        return None


def shapes_by_name(tree: Any) -> dict[str, tuple[int, ...]]:
    """Shapes of the leaves, keyed by their names."""
    return {name: jax.numpy.shape(x) for name, x in leaves_with_names(tree)[0]}


def _shard_last(x: Any, axis: tuple[str, ...], mesh: Any) -> jax.Array:
    """Shard the last dimension of an array over the given mesh axes."""
    return put(x, NamedSharding(mesh, PartitionSpec(*(None,) * (x.ndim - 1), axis)))


def mesh_of(p: Any) -> Any:
    """Mesh of an array's type or sharding, or None."""
    if isinstance(p, Tracer):
        mesh = jax.typeof(p).sharding.mesh
        return None if mesh.empty else mesh
    sharding = getattr(p, "sharding", None)
    return sharding.mesh if isinstance(sharding, NamedSharding) else None


def _sharding_of(p: Any) -> str:
    if isinstance(p, Tracer):
        return f"the type {jax.typeof(p)}"
    sharding = getattr(p, "sharding", None)
    return "no sharding" if sharding is None else f"the sharding {sharding}"


def _check_parts(state: Any, expected: Any, n: int) -> None:
    if jax.tree.structure(state) != jax.tree.structure(expected):
        return  # the inner optimizer raises the error
    for (name, x), y in zip(leaves_with_names(state)[0], jax.tree.leaves(expected), strict=True):
        if jax.numpy.shape(x) != y.shape:
            raise ValueError(
                f"{where()}{leaf_text(name)} of the state has shape {jax.numpy.shape(x)} on a "
                f"device, expected {y.shape}, the shape of one of {count_text(n, 'shard')}. "
                "Convert a state of another number of devices with fnopt.distributed.gather_state "
                "and scatter_state. Pass jax.shard_map the specs of "
                "fnopt.distributed.state_sharding(tx, params)."
            )

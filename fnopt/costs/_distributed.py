"""Cost of a training step on many devices: memory, communication and time per device."""

from __future__ import annotations

import dataclasses
import math

from fnopt.costs._remarks import aligned, binary, seconds
from fnopt.costs._result import StepCost
from fnopt.costs._roofline import Hardware, Work
from fnopt.errors import check_count, names_text, show_report


@dataclasses.dataclass(frozen=True)
class Network:
    r"""The bandwidth and latency between devices.

    .. math:: t = \frac{\text{bytes}}{\text{bandwidth}} + \text{messages} \cdot \text{latency}
              \cdot \lceil \log_2 N \rceil

    Args:
        bandwidth: Bytes per second over the slowest link, for a device that sends and receives
            simultaneously.
        latency: Seconds that a message takes to the next device.
        name: The name in tables.

    Raises:
        ValueError: The bandwidth is not above 0, or the latency is negative.

    Example:
        >>> from fnopt.costs import Network
        >>> Network(bandwidth=1e9, latency=1e-3).seconds(2_000_000, messages=1, devices=8)
        0.005
    """

    bandwidth: float
    latency: float = 0.0
    name: str = "network"

    def __post_init__(self) -> None:
        if not self.bandwidth > 0:
            raise ValueError(f"Network: bandwidth is {self.bandwidth!r}, expected a rate above 0.")
        if not self.latency >= 0:
            raise ValueError(f"Network: latency is {self.latency!r}, expected no negative time.")

    def seconds(self, sent: float, messages: float, devices: int) -> float:
        """Return the time in seconds to exchange `messages` messages with `sent` bytes in total.

        The latency of a message grows with the logarithm of the number of devices.
        """
        return sent / self.bandwidth + messages * self.latency * math.ceil(math.log2(devices))


@dataclasses.dataclass(frozen=True)
class DeviceCost:
    """Memory, communication and computation of one device in a step.

    Attributes:
        params_bytes: Bytes of the params that the device stores.
        grads_bytes: Bytes of the gradients that the device stores.
        state_bytes: Bytes of the optimizer's state that the device stores.
        kept_bytes: Bytes that the forward pass stores for the backward pass.
        sent_bytes: Bytes that the device sends in a step; the device receives the same number.
        gradient_seconds: The roofline time of the forward and the backward pass.
        update_seconds: The roofline time of the update.
        network_seconds: The communication time, without overlap.
    """

    params_bytes: float
    grads_bytes: float
    state_bytes: float
    kept_bytes: float
    sent_bytes: float
    gradient_seconds: float
    update_seconds: float
    network_seconds: float

    @property
    def memory_bytes(self) -> float:
        """Total memory in bytes."""
        return self.params_bytes + self.grads_bytes + self.state_bytes + self.kept_bytes

    @property
    def seconds(self) -> float:
        """Time of a step without overlap of communication and computation."""
        return self.gradient_seconds + self.update_seconds + self.network_seconds

    @property
    def overlapped_seconds(self) -> float:
        """Time of a step if communication overlaps with the computation of gradients."""
        return max(self.gradient_seconds, self.network_seconds) + self.update_seconds

    @property
    def update_share(self) -> float:
        """Fraction of `seconds` that the optimizer update takes."""
        return self.update_seconds / self.seconds if self.seconds else 0.0


@dataclasses.dataclass(frozen=True)
class DistributedCost:
    """Cost of a training step for each distribution strategy; `print` shows a table.

    Attributes:
        devices: Number of devices.
        ways: The cost of each distribution strategy on one device, keyed by name.
    """

    devices: int
    ways: dict[str, DeviceCost]

    def __getitem__(self, name: str) -> DeviceCost:
        if name not in self.ways:
            raise KeyError(f"{name!r} is unknown, expected one of {names_text([*self.ways])}")
        return self.ways[name]

    def table(self) -> str:
        """Table of the costs as text, with one row for each distribution strategy."""
        head = (f"{self.devices} devices", "memory", "of it state", "sent a step")
        head = (*head, "step", "overlapped", "update")
        rows: list[tuple[str, ...]] = [head]
        for name, way in self.ways.items():
            sizes = map(binary, (way.memory_bytes, way.state_bytes, way.sent_bytes))
            times = map(seconds, (way.seconds, way.overlapped_seconds))
            rows.append((name, *sizes, *times, f"{way.update_share:.1%}"))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(aligned(row, widths) for row in rows)

    _repr_pretty_ = show_report

    def __str__(self) -> str:
        return self.table()


def distributed_cost(
    step: StepCost,
    devices: int,
    hardware: Hardware,
    network: Network,
    *,
    every: int = 20,
    block_size: int | None = None,
    meeting_network: Network | None = None,
) -> DistributedCost:
    r"""Compute the cost of a step per device for several distribution strategies.

    With params of `P` bytes, a state of `S`, and `N` devices, each with the batch of the counted
    step, a device stores and sends (with ring collectives, which send the fewest bytes)

    ======== ============ ============ ============ =========================================
    way      params       gradients    state        sent
    ======== ============ ============ ============ =========================================
    `ddp`    P            P            S            2 P (N - 1) / N
    `zero1`  P            P            S / N        2 P (N - 1) / N
    `fsdp`   P / N        P / N        S / N        3 P (N - 1) / N
    `diloco` P            P            S + 2 P      2 P (N - 1) / (N H)
    ======== ============ ============ ============ =========================================

    `zero1` is `fnopt.distributed.sharded`. `fsdp` also shards the params, and gathers a layer's
    params twice, in the forward and in the backward pass. The memory of gathered layers isn't
    included. `diloco` has workers of one device each, which synchronize every `H` steps, with an
    outer momentum. With 8-bit codes, a `diloco` worker sends about a quarter of the bytes and
    stores another `P` (rounding errors). The work of the update is divided like the state. Params
    are assumed to be float32, with one message for all leaves. The cost omits the outer update, the
    all-to-alls of matrix methods, and overheads: copies, padding, memory fragmentation, suboptimal
    scheduling of collectives.

    Args:
        step: The result of `step_cost(loss, tx)(params, *batch)`, with the batch of one device.
            Shapes are sufficient.
        devices: :math:`N`.
        hardware: The FLOP/s and bandwidth of a device.
        network: The network between devices.
        every: :math:`H`, the steps between synchronizations of `diloco`.
        block_size: As in `fnopt.distributed.diloco`: None for messages of floats, else the number
            of 8-bit codes with one scale.
        meeting_network: The network for `diloco` synchronizations, if it differs from `network`.

    Returns:
        A `DistributedCost`.

    Raises:
        TypeError: If `step` isn't a `StepCost`.
        ValueError: If `devices`, `every` or `block_size` isn't at least 1.

    Example:
        >>> import fnopt
        >>> from fnopt.costs import Hardware, Network, distributed_cost, step_cost
        >>> def loss(w, x):
        ...     return jnp.mean((x @ w) ** 2)
        >>> step = step_cost(loss, fnopt.adam(1e-3))(jnp.ones((64, 8)), jnp.ones((16, 64)))
        >>> c = distributed_cost(step, 8, Hardware(1e12, 1e11), Network(1e10))
        >>> c["ddp"].sent_bytes, c["ddp"].state_bytes, c["zero1"].state_bytes
        (3584.0, 4100.0, 512.5)

    Reference:
        Rajbhandari et al., 2020, arXiv:1910.02054; Douillard et al., 2023, arXiv:2311.08105.
    """
    if not isinstance(step, StepCost):
        raise TypeError(
            f"distributed_cost: step is {type(step).__name__}, expected the StepCost of "
            "fnopt.costs.step_cost(loss, tx)(params, *batch)."
        )
    check_count(devices, "devices", "distributed_cost")
    check_count(every, "every", "distributed_cost")
    share, more = 1.0, 2 * step.params_bytes
    if block_size is not None:
        check_count(block_size, "block_size", "distributed_cost")
        # Codes take one byte for each float32, and a float32 scale for each block.
        share, more = (1 + 4 / block_size) / 4, 3 * step.params_bytes
    size, state = float(step.params_bytes), float(step.state_bytes)
    # A ring sends N - 1 of N parts, the minimum for a reduce-scatter or an all-gather.
    travels = size * (devices - 1) / devices
    gradient_seconds = sum(p.seconds(hardware) for p in (step.forward, step.backward))
    whole = hardware.seconds(step.update.total)
    # Count the largest part, because N doesn't always divide the work.
    parts = {k: -(-n // devices) for k, n in dataclasses.asdict(step.update.total).items()}
    part = hardware.seconds(Work(**parts))

    ddp = DeviceCost(
        params_bytes=size,
        grads_bytes=size,
        state_bytes=state,
        kept_bytes=step.residual_bytes,
        sent_bytes=2 * travels,
        gradient_seconds=gradient_seconds,
        update_seconds=whole,
        network_seconds=network.seconds(2 * travels, 2, devices),
    )
    zero1 = dataclasses.replace(ddp, state_bytes=state / devices, update_seconds=part)
    fsdp = dataclasses.replace(
        zero1,
        params_bytes=size / devices,
        grads_bytes=size / devices,
        sent_bytes=3 * travels,
        network_seconds=network.seconds(3 * travels, 3, devices),
    )
    meeting = (meeting_network or network).seconds(2 * travels * share, 2, devices)
    diloco = dataclasses.replace(
        ddp,
        state_bytes=state + more,
        sent_bytes=2 * travels * share / every,
        network_seconds=meeting / every,
    )
    ways = {"ddp": ddp, "zero1": zero1, "fsdp": fsdp, "diloco": diloco}
    return DistributedCost(int(devices), ways)

"""Memory, communication and time per device of a training step on many devices."""

from __future__ import annotations

import dataclasses
import math

from fnopt.costs._remarks import align_row, binary, seconds
from fnopt.costs._result import StepCost
from fnopt.costs._roofline import Hardware, Work
from fnopt.errors import check_count, count_text, names_text, show_report


@dataclasses.dataclass(frozen=True)
class Network:
    r"""Bandwidth and latency of the network between devices.

    .. math:: t = \frac{\text{bytes}}{\text{bandwidth}} + \text{messages} \cdot \text{latency}
              \cdot \lceil \log_2 N \rceil

    Args:
        bandwidth: Bytes per second that a device sends while it receives the same number, over the
            slowest link.
        latency: Seconds until a message reaches the next device.
        name: The name in tables.

    Raises:
        ValueError: If the bandwidth isn't positive, or the latency is negative.

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
            raise ValueError(f"Network: latency is {self.latency!r}, expected a time >= 0.")

    def seconds(self, sent: float, messages: float, devices: int) -> float:
        """Time in seconds of `messages` collectives in which every device sends `sent` bytes.

        The latency grows with the logarithm of the number of devices, as in a tree.

        Args:
            sent: Bytes that a device sends in total.
            messages: Number of messages.
            devices: Number of devices.
        """
        return sent / self.bandwidth + messages * self.latency * math.ceil(math.log2(devices))


@dataclasses.dataclass(frozen=True)
class DeviceCost:
    """Memory, communication and computation time of one device in a step.

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
        ways: The cost per device of each distribution strategy, keyed by the strategy's name.
    """

    devices: int
    ways: dict[str, DeviceCost]

    def __getitem__(self, name: str) -> DeviceCost:
        if name not in self.ways:
            raise KeyError(
                f"the strategy {name!r} is unknown, expected one of {names_text([*self.ways])}"
            )
        return self.ways[name]

    def table(self) -> str:
        """Format the costs as a table with one row for each distribution strategy."""
        head = (count_text(self.devices, "device"), "memory", "state", "sent/step")
        head = (*head, "step", "overlapped", "update")
        rows: list[tuple[str, ...]] = [head]
        for name, way in self.ways.items():
            sizes = map(binary, (way.memory_bytes, way.state_bytes, way.sent_bytes))
            times = map(seconds, (way.seconds, way.overlapped_seconds))
            rows.append((name, *sizes, *times, f"{way.update_share:.1%}"))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(align_row(row, widths) for row in rows)

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

    Let `P` and `S` be the bytes of the params and of the optimizer's state, and `N` the number of
    devices. Every device has the batch of the counted step. With ring collectives, which send the
    fewest bytes, a device stores and sends the following bytes:

    ======== ============ ============ ============ =========================================
    way      params       gradients    state        sent
    ======== ============ ============ ============ =========================================
    `ddp`    P            P            S            2 P (N - 1) / N
    `zero1`  P            P            S / N        2 P (N - 1) / N
    `fsdp`   P / N        P / N        S / N        3 P (N - 1) / N
    `diloco` P            P            S + 2 P      2 P (N - 1) / (N H)
    ======== ============ ============ ============ =========================================

    `zero1` is `fnopt.distributed.sharded`. `fsdp` also shards the params, and gathers the params of
    each layer in the forward and in the backward pass. The memory of gathered layers isn't
    included. `diloco` has workers of one device each, which synchronize every `H` steps, with an
    outer momentum. With 8-bit codes, a `diloco` worker sends about a quarter of the bytes and
    stores another `P` (rounding errors). The work of the update is divided like the state. Params
    are assumed to be float32, with one message for all leaves.

    The cost omits the outer update, the all-to-alls of matrix methods, and overheads such as
    copies, padding, memory fragmentation and suboptimal scheduling of collectives.

    Args:
        step: The result of `step_cost(loss, tx)(params, *batch)`, with the batch of one device.
            Shapes are sufficient.
        devices: :math:`N`.
        hardware: The FLOP/s and bandwidth of a device.
        network: The network between devices.
        every: :math:`H`, the number of steps between synchronizations of `diloco`.
        block_size: Number of 8-bit codes that share a scale, as in `fnopt.distributed.diloco`;
            `None` for messages of floats.
        meeting_network: The network for `diloco` synchronizations; `None` for `network`.

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
            f"distributed_cost: the argument `step` is a {type(step).__name__}, expected the "
            "StepCost of fnopt.costs.step_cost(loss, tx)(params, *batch)."
        )
    check_count(devices, "devices", "distributed_cost")
    check_count(every, "every", "distributed_cost")
    code_ratio, outer_state = 1.0, 2 * step.params_bytes
    if block_size is not None:
        check_count(block_size, "block_size", "distributed_cost")
        # Bytes per float32: one code of 1 byte, and a scale of 4 bytes per block.
        code_ratio, outer_state = (1 + 4 / block_size) / 4, 3 * step.params_bytes
    size, state = float(step.params_bytes), float(step.state_bytes)
    # In a ring reduce-scatter or all-gather, a device sends N - 1 of N parts, the minimum.
    ring_bytes = size * (devices - 1) / devices
    gradient_seconds = sum(p.seconds(hardware) for p in (step.forward, step.backward))
    update_seconds = hardware.seconds(step.update.total)
    # Rounded up, because the slowest device has the largest part.
    part = {k: -(-n // devices) for k, n in dataclasses.asdict(step.update.total).items()}
    part_seconds = hardware.seconds(Work(**part))

    ddp = DeviceCost(
        params_bytes=size,
        grads_bytes=size,
        state_bytes=state,
        kept_bytes=step.residual_bytes,
        sent_bytes=2 * ring_bytes,  # an all-reduce is a reduce-scatter and an all-gather
        gradient_seconds=gradient_seconds,
        update_seconds=update_seconds,
        network_seconds=network.seconds(2 * ring_bytes, 2, devices),
    )
    zero1 = dataclasses.replace(ddp, state_bytes=state / devices, update_seconds=part_seconds)
    fsdp = dataclasses.replace(
        zero1,
        params_bytes=size / devices,
        grads_bytes=size / devices,
        sent_bytes=3 * ring_bytes,  # params in both passes, and a reduce-scatter of gradients
        network_seconds=network.seconds(3 * ring_bytes, 3, devices),
    )
    outer_bytes = 2 * ring_bytes * code_ratio
    diloco = dataclasses.replace(
        ddp,
        state_bytes=state + outer_state,
        sent_bytes=outer_bytes / every,
        network_seconds=(meeting_network or network).seconds(outer_bytes, 2, devices) / every,
    )
    ways = {"ddp": ddp, "zero1": zero1, "fsdp": fsdp, "diloco": diloco}
    return DistributedCost(int(devices), ways)

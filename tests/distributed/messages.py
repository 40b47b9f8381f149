"""Read the messages that a compiled program sends from its text."""

from __future__ import annotations

import math
import re

KINDS = ("all-reduce", "reduce-scatter", "all-gather", "all-to-all", "collective-permute")
BITS = {"pred": 8, "bf16": 16}

_LINE = re.compile(rf" = (.*?) ({'|'.join(KINDS)})(?:-start)?\((.*?)\)")
_ARRAY = re.compile(r"([a-z]+\d*)\[([\d,]*)\]")


def arrays(text: str) -> list[tuple[str, int]]:
    """Return dtype and bytes of each array in a type of HLO."""
    return [(dtype, _bytes(dtype, shape)) for dtype, shape in _ARRAY.findall(text)]


def results(text: str) -> list[tuple[str, str, int]]:
    """Return kind, dtype and bytes of the result on a device, for each message."""
    messages = []
    for types, kind, _ in _LINE.findall(text):
        parts = arrays(types)
        messages.append((kind, parts[0][0], sum(size for _, size in parts)))
    return messages


def sent(text: str, devices: int) -> int:
    """Return the bytes that a device sends in all messages, by ring algorithms."""
    others = devices - 1
    factors = {  # sent bytes / bytes of the result
        "all-reduce": 2 * others / devices,  # the result has the size of the input
        "reduce-scatter": others,  # the result is a part of the input
        "all-gather": others / devices,
        "all-to-all": others / devices,
        "collective-permute": 1,
    }
    return round(sum(factors[kind] * size for kind, _, size in results(text)))


def _bytes(dtype: str, shape: str) -> int:
    bits = BITS.get(dtype) or int(re.sub(r"\D", "", dtype))
    return bits * math.prod(int(n) for n in shape.split(",") if n) // 8

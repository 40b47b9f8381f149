"""What a compiled program sends, read from its text."""

from __future__ import annotations

import math
import re

KINDS = ("all-reduce", "reduce-scatter", "all-gather", "all-to-all", "collective-permute")
BITS = {"pred": 8, "bf16": 16}

_LINE = re.compile(rf" = (.*?) ({'|'.join(KINDS)})(?:-start)?\((.*?)\)")
_ARRAY = re.compile(r"([a-z]+\d*)\[([\d,]*)\]")


def arrays(text: str) -> list[tuple[str, int]]:
    """The dtypes of arrays and their bytes, in a type of HLO."""
    return [(dtype, _bytes(dtype, shape)) for dtype, shape in _ARRAY.findall(text)]


def results(text: str) -> list[tuple[str, str, int]]:
    """All messages: their kind, the dtype of what comes of it on a device, and its bytes."""
    found = []
    for types, kind, _ in _LINE.findall(text):
        parts = arrays(types)
        found.append((kind, parts[0][0], sum(size for _, size in parts)))
    return found


def sent(text: str, devices: int) -> int:
    """The bytes that a device sends in all messages, if they go round in a ring."""
    others = devices - 1
    ways = {
        "all-reduce": 2 * others / devices,  # of a result as large as what goes in
        "reduce-scatter": others,  # of a result that is a part
        "all-gather": others / devices,
        "all-to-all": others / devices,
        "collective-permute": 1,
    }
    return round(sum(ways[kind] * size for kind, _, size in results(text)))


def _bytes(dtype: str, shape: str) -> int:
    bits = BITS.get(dtype) or int(re.sub(r"\D", "", dtype))
    return bits * math.prod(int(n) for n in shape.split(",") if n) // 8

"""Report of `kfac`: the Gauss-Newton block of each param, and the size of its state."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import slot_zeros
from fnopt.curvature._eigenbasis import basis_shapes, is_corrected, moment_shape
from fnopt.curvature._kronecker import KroneckerSpec, common_dtype, planned_blocks
from fnopt.errors import leaves_with_names, show_report, table_lines
from fnopt.gradients.ghost import KroneckerBlock


class KfacRule(NamedTuple):
    """Curvature block of one parameter under `fnopt.kfac`.

    Attributes:
        name: The path of the param.
        shape: The shape of the param.
        block: `'kronecker'`, `'dense'`, `'diagonal'`, or `'none'` for a param that the model
            doesn't use.
        factors: The sizes of the factors, such as `'785 x 128'`. `'bias of w'` means that the param
            is an additional row of the weight `w`. `'joined to w'` means that the model
            concatenates the param with `w` before the product. `'2 x 512'` is a factor that is
            split into blocks. A param that is split before the product has several factors.
        why: The reason for this kind of block.
        bytes: Size of the param's state in bytes: momentum, factors and inverses. State shared by
            several params is counted only for the first param.
    """

    name: str
    shape: tuple[int, ...]
    block: str
    factors: str
    why: str
    bytes: int


class KfacReport(NamedTuple):
    """Curvature block of every parameter under `fnopt.kfac`; `print` shows a table.

    Attributes:
        params: One entry for each param.
        coverage: Fraction of the entries whose block isn't diagonal, among the params that the
            model uses.
        numbers: Number of entries of the factors.
        bytes: Size of the state of `fnopt.kfac` in bytes, except for a few scalars.
    """

    params: tuple[KfacRule, ...]
    coverage: float
    numbers: int
    bytes: int

    _repr_pretty_ = show_report

    def __str__(self) -> str:
        head = ("param", "shape", "block", "factors", "state", "why")
        table = [
            (p.name, str(p.shape), p.block, p.factors, _format_bytes(p.bytes), p.why)
            for p in self.params
        ]
        summary = f"{100 * self.coverage:.1f} % of the entries are in blocks that aren't diagonal; "
        summary += f"factors: {self.numbers:,} entries; state: {_format_bytes(self.bytes)}"
        return "\n".join([*table_lines([head, *table]), summary])


def kfac_report(
    model_fn: Callable[[Any, Any], Any], *, max_side: int = 512, eigenbasis: bool = False
) -> Callable[[Any, Any], KfacReport]:
    """Report which curvature block `fnopt.kfac` uses for each parameter, and why.

    The report traces the model once for one example, and executes nothing.

    Args:
        model_fn: `f(params, example) -> outputs` of ONE example.
        max_side: As in `fnopt.kfac`.
        eigenbasis: As in `fnopt.kfac`; the state then includes bases and moments.

    Returns:
        A function `(params, batch)` -> a `KfacReport`.

    Raises:
        TypeError: If a param isn't a real floating array.
        ValueError: If the example axes disagree or are empty.

    Example:
        >>> from fnopt.curvature import kfac_report
        >>> params = {"b": jnp.ones(8), "scale": jnp.ones(5), "w": jnp.ones((5, 8))}
        >>> def model(params, x):
        ...     return jnp.tanh(x * params["scale"]) @ params["w"] + params["b"]
        >>> report = kfac_report(model)(params, jnp.ones((4, 5)))
        >>> [(p.name, p.block, p.factors) for p in report.params]
        [('b', 'kronecker', 'bias of w'), ('scale', 'dense', '5'), ('w', 'kronecker', '6 x 8')]
        >>> report.coverage, report.bytes
        (1.0, 1212)
    """
    spec = KroneckerSpec(
        model_fn, lambda f, _: _sum(f), max_side=max_side, eigenbasis=eigenbasis, name="kfac_report"
    )

    def report(params: Any, batch: Any) -> KfacReport:
        blocks = planned_blocks(spec, params, batch)
        pairs = leaves_with_names(params)[0]
        width = jnp.finfo(common_dtype(params)).dtype.itemsize if pairs else 0
        rules: dict[int, KfacRule] = {}
        for block in blocks:
            for i, rule in _rules(block, pairs, width, eigenbasis).items():
                if i in rules:  # a split param has several blocks
                    factors = dict.fromkeys([rules[i].factors, rule.factors])
                    size = rules[i].bytes + rule.bytes
                    rule = rules[i]._replace(factors="; ".join(factors), bytes=size)
                rules[i] = rule
        for i, (_, leaf) in enumerate(pairs):
            slot = jax.eval_shape(slot_zeros, leaf)
            rules[i] = rules[i]._replace(bytes=rules[i].bytes + slot.size * slot.dtype.itemsize)
        reports = tuple(rules[i] for i in sorted(rules))
        used = [(r.block, math.prod(r.shape)) for r in reports if r.block != "none"]
        diagonal = sum(size for block, size in used if block == "diagonal")
        coverage = 1 - diagonal / max(sum(size for _, size in used), 1)
        return KfacReport(
            reports, coverage, sum(map(_numbers, blocks)), sum(rule.bytes for rule in reports)
        )

    return report


def _sum(outputs: Any) -> jax.Array:
    return sum((jnp.sum(x.astype(jnp.float32)) for x in jax.tree.leaves(outputs)), jnp.zeros(()))


def _numbers(block: KroneckerBlock) -> int:
    return sum(math.prod(side.shape(block.matrices)) for side in block.sides)


def _curvature_numbers(block: KroneckerBlock, eigenbasis: bool) -> int:
    """Number of entries in the state of a block: factors and inverses, or bases and moments."""
    if not (eigenbasis and is_corrected(block)):
        return 2 * _numbers(block)
    return _numbers(block) + sum(map(math.prod, (*basis_shapes(block), moment_shape(block))))


def _rules(
    block: KroneckerBlock, leaves: list[tuple[str, Any]], width: int, eigenbasis: bool
) -> dict[int, KfacRule]:
    names = [name for name, _ in leaves]
    prefix = f"{block.matrices} times " if block.matrices > 1 else ""
    sides = [str(s) if s.count < 2 else f"({s})" for s in block.sides]
    factors = prefix + " x ".join(sides)
    first, size = block.leaves[0], width * _curvature_numbers(block, eigenbasis)
    rules = {first: (factors, size)}
    rules |= dict.fromkeys(block.leaves[1:], (f"joined to {names[first]}", 0))
    rules |= dict.fromkeys(block.biases, (f"bias of {names[first]}", 0))
    return {
        i: KfacRule(names[i], jnp.shape(leaves[i][1]), block.kind, text, block.why, size)
        for i, (text, size) in rules.items()
    }


def _format_bytes(count: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} B"

"""What a value may be off by because of the numbers it was computed from: differences of large ones, equal scores.

Both follow from the reference's own values. A mean of numbers near 3 is known to the last digit of 3, and a norm
divides what is left by a small deviation. Where two scores are equal, TopK and ArgMax may name either.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from graphkit.graph import Graph, Node
from graphkit.verification.bisect.noise import Allowance
from graphkit.verification.bisect.references import References

Array = npt.NDArray[Any]

_DIGITS = 8 * 2.0**-23  # of the numbers that go in: two engines sum in another order
_TIED = 1e-6  # of the largest score


@dataclass(frozen=True)
class Floor:
    """atol: what floats may be off by; flips: how many integers may differ."""

    atol: float = 0.0
    flips: int = 0


def sources(graph: Graph, known: Collection[str]) -> list[str]:
    """The values, of those that are known, whose sizes or ties matter."""
    return [node.inputs[0] for node in graph.nodes if node.op_type in _BY_OP and node.inputs[0] in known]


def floors(graph: Graph, references: References) -> dict[Node, Floor]:
    """The floor of each node that has one and whose input is among the references."""
    found = {}
    for node in graph.nodes:
        data = references.get_array(node.inputs[0]) if node.op_type in _BY_OP else None
        if data is not None and data.size and np.isfinite(data).all():
            found[node] = _BY_OP[node.op_type](graph, node, np.asarray(data, np.float64))
    return found


def widened(allowed: Allowance, nodes: Collection[Node], found: Mapping[Node, Floor], kind: str) -> Allowance:
    """An allowance with the floors of the nodes that make the value. kind: of its type, as numpy has it."""
    mine = [found[node] for node in nodes if node in found]
    atol = max((floor.atol for floor in mine), default=0.0)
    flips = sum(floor.flips for floor in mine) if kind in "iub" else 0
    return Allowance(allowed.rtol, max(allowed.atol, atol), allowed.flips + flips)


def _layer_norm(graph: Graph, node: Node, data: Array) -> Floor:
    axis = int(node.attr("axis", -1)) % data.ndim
    return _norm(data, tuple(range(axis, data.ndim)), _gain(graph, node), float(node.attr("epsilon", 1e-5)))


def _instance_norm(graph: Graph, node: Node, data: Array) -> Floor:
    return _norm(data, tuple(range(2, data.ndim)), _gain(graph, node), float(node.attr("epsilon", 1e-5)))


def _group_norm(graph: Graph, node: Node, data: Array) -> Floor:
    groups = int(node.attr("num_groups", 1))
    rows = data.reshape(data.shape[0], groups, -1)
    return _norm(rows, (2,), _gain(graph, node), float(node.attr("epsilon", 1e-5)))


def _norm(data: Array, axes: tuple[int, ...], gain: float, epsilon: float) -> Floor:
    mean, deviation = np.abs(data.mean(axis=axes)), np.sqrt(data.var(axis=axes) + epsilon)
    return Floor(_DIGITS * gain * float((mean / np.maximum(deviation, 1e-30)).max(initial=0.0)))


def _gain(graph: Graph, node: Node) -> float:
    scale = graph.constant(node.inputs[1]) if node.input(1) else None
    return 1.0 if scale is None or not scale.size else float(np.abs(scale.astype(np.float64)).max())


def _batch_norm(graph: Graph, node: Node, data: Array) -> Floor:
    scale, mean, variance = (graph.constant(node.inputs[place]) for place in (1, 3, 4))
    if scale is None or mean is None or variance is None:
        return Floor()
    factor = np.abs(scale.astype(np.float64)) / np.sqrt(variance.astype(np.float64) + float(node.attr("epsilon", 1e-5)))
    others = tuple(axis for axis in range(data.ndim) if axis != 1)
    largest = np.maximum(np.abs(data).max(axis=others), np.abs(mean.astype(np.float64)))
    return Floor(_DIGITS * float((factor * largest).max(initial=0.0)))


def _mean(graph: Graph, node: Node, data: Array) -> Floor:
    return Floor(_DIGITS * float(np.abs(data).max()))


def _sum(graph: Graph, node: Node, data: Array) -> Floor:
    axes = graph.constant(node.inputs[1]) if node.input(1) else node.attr("axes", None)
    reduced = tuple(int(axis) for axis in axes) if axes is not None and len(axes) else None
    return Floor(_DIGITS * float(np.abs(data).sum(axis=reduced).max()))


def _top_k(graph: Graph, node: Node, data: Array) -> Floor:
    """Every index whose score comes up more than once may be another one."""
    count = graph.constant(node.inputs[1]) if node.input(1) else None
    rows = np.sort(np.moveaxis(data, int(node.attr("axis", -1)), -1), axis=-1)
    rows = rows[..., ::-1] if node.attr("largest", 1) else rows
    near = np.abs(np.diff(rows, axis=-1)) <= _TIED * max(float(np.abs(data).max()), 1e-30)
    no = np.zeros((*rows.shape[:-1], 1), bool)
    tied = np.concatenate([no, near], -1) | np.concatenate([near, no], -1)
    kept = int(np.asarray(count).reshape(-1)[0]) if count is not None and np.size(count) else rows.shape[-1]
    return Floor(flips=int(tied[..., :kept].sum()))


def _arg(graph: Graph, node: Node, data: Array) -> Floor:
    """Every place where the first and the second score are equal."""
    axis = int(node.attr("axis", 0))
    if data.shape[axis] < 2:
        return Floor()
    rows = np.sort(np.moveaxis(data, axis, -1), axis=-1)
    best, second = (rows[..., -1], rows[..., -2]) if node.op_type == "ArgMax" else (rows[..., 0], rows[..., 1])
    return Floor(flips=int((np.abs(best - second) <= _TIED * max(float(np.abs(data).max()), 1e-30)).sum()))


_BY_OP: Mapping[str, Callable[[Graph, Node, Array], Floor]] = {
    "LayerNormalization": _layer_norm, "InstanceNormalization": _instance_norm, "GroupNormalization": _group_norm,
    "BatchNormalization": _batch_norm, "ReduceMean": _mean, "GlobalAveragePool": _mean, "AveragePool": _mean,
    "ReduceSum": _sum, "TopK": _top_k, "ArgMax": _arg, "ArgMin": _arg,
}  # fmt: skip

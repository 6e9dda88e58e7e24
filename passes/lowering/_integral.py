"""Which float32 values are whole numbers, and within which bounds: what was quantized, proven from the graph."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.passes._dequantize import RANGES
from graphkit.passes.lowering._quantized_emit import MAGIC

Bounds = tuple[float, float]
# Operators that only move numbers, or take the largest of some: they do the same to codes and to floats.
MOVES = frozenset(
    ("Identity", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Slice", "Gather", "Expand", "Tile",
     "MaxPool", "DepthToSpace", "SpaceToDepth", "Relu")
)  # fmt: skip
_DEPTH = 12
_EXACT = float(2**24)


def bounds(graph: Graph, value: str, depth: int = _DEPTH) -> Bounds | None:
    """Least and largest of a float value that holds whole numbers only; None when that is not known."""
    array = graph.constant(value)
    if array is not None:
        return _of_array(array)
    node = graph.producer(value)
    if node is None or not depth:
        return None
    if moves(node):  # a Relu widens nothing either
        return bounds(graph, node.inputs[0], depth - 1)
    if node.op == "Cast":
        return _of_cast(graph, node)
    if node.op in ("Clip", "Min", "Max"):
        return _of_clip(graph, node, depth)
    if node.op in ("Concat", "Split"):
        return _of_all(graph, node, depth)
    return _of_sum(graph, node, depth) if node.op in ("Add", "Sub") else None


def moves(node: Node) -> bool:
    """True for a node that makes nothing but numbers that its first input holds, or zeros where Relu cuts."""
    if node.op != "Resize":
        return node.op in MOVES
    inside = bool(node.attr("coordinate_transformation_mode") != "tf_crop_and_resize")
    return inside and bool(node.attr("mode", "nearest") == "nearest")


def is_float32(graph: Graph, value: str, depth: int = _DEPTH) -> bool:
    """True for float32, also where shapes were not inferred since the value was made: its constants tell."""
    kind, node = graph.dtype(value), graph.producer(value)
    if kind or node is None or not depth:
        return kind == TensorProto.FLOAT
    if node.op == "Cast":
        return bool(node.attr("to") == TensorProto.FLOAT)
    return any(is_float32(graph, operand, depth - 1) for operand in node.inputs if operand)


def _of_all(graph: Graph, node: Node, depth: int) -> Bounds | None:
    values = node.inputs if node.op == "Concat" else node.inputs[:1]
    parts = [bounds(graph, value, depth - 1) for value in values]
    known = [part for part in parts if part is not None]
    return (min(p[0] for p in known), max(p[1] for p in known)) if len(known) == len(parts) else None


def _of_array(array: np.ndarray) -> Bounds | None:
    if array.dtype != np.float32 or not array.size or not np.all(np.isfinite(array)) or np.any(array != np.rint(array)):
        return None
    return float(array.min()), float(array.max())


def _of_cast(graph: Graph, node: Node) -> Bounds | None:
    source = RANGES.get(graph.dtype(node.inputs[0]))
    return source if node.attr("to") == TensorProto.FLOAT else None


def clip_bounds(graph: Graph, node: Node) -> Bounds:
    """Constant bounds of a Clip (opset 11 and later), Min or Max; infinite where there is none."""
    low, high = -np.inf, np.inf
    if node.op == "Clip":
        for index in (1, 2):
            number = graph.scalar(node.input(index)) if node.input(index) else None
            low, high = (number, high) if index == 1 and number is not None else (low, high)
            high = number if index == 2 and number is not None else high
        return float(low), float(high)
    number = graph.scalar(node.inputs[1]) if len(node.inputs) == 2 else None
    if number is None:
        return -np.inf, np.inf
    return (-np.inf, number) if node.op == "Min" else (number, np.inf)


def _limits(graph: Graph, value: str) -> Bounds:
    """Between which numbers a value lies because it was clipped."""
    low, high = -np.inf, np.inf
    node = graph.producer(value)
    while node is not None and node.op in ("Clip", "Min", "Max"):
        own = clip_bounds(graph, node)
        low, high = max(low, own[0]), min(high, own[1])
        node = graph.producer(node.inputs[0])
    return low, high


def _of_clip(graph: Graph, node: Node, depth: int) -> Bounds | None:
    inner, own = bounds(graph, node.inputs[0], depth - 1), clip_bounds(graph, node)
    if inner is None or any(np.isfinite(edge) and edge != np.rint(edge) for edge in own):
        return None
    return max(inner[0], own[0]), min(inner[1], own[1])


def _of_sum(graph: Graph, node: Node, depth: int) -> Bounds | None:
    rounded = _of_rounding(graph, node)
    if rounded is not None:
        return rounded
    a, b = (bounds(graph, value, depth - 1) for value in node.inputs)
    if a is None or b is None:
        return None
    low, high = (a[0] + b[0], a[1] + b[1]) if node.op == "Add" else (a[0] - b[1], a[1] - b[0])
    return (low, high) if max(abs(low), abs(high)) < _EXACT else None


def _of_rounding(graph: Graph, node: Node) -> Bounds | None:
    """x + 1.5·2^23 − c of a clipped x: whole numbers."""
    inner = graph.producer(node.inputs[0])
    back = graph.scalar(node.inputs[1])
    if node.op != "Sub" or inner is None or inner.op != "Add" or back is None or back != np.rint(back):
        return None
    low, high = _limits(graph, inner.inputs[0])
    if graph.scalar(inner.inputs[1]) != MAGIC or max(abs(low), abs(high)) >= 2**22:
        return None
    return float(np.rint(low) + MAGIC - back), float(np.rint(high) + MAGIC - back)

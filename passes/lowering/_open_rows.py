"""Which rows of attention scores keep a finite entry: a small analysis on the graph, sound but not complete.

Softmax gives NaN for a row of nothing but −inf. Scores are a product plus a mask; products, norms and bounded
functions count as finite (they are unless the model overflows), so all hangs on the mask. A row is what lies along
the last axis. Every answer is a proof, or False.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto

from graphkit.graph import Graph
from graphkit.node import Node

_DEPTH = 12  # operators between Softmax and what makes the mask
_PRODUCTS = ("MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum", "LayerNormalization")
_BOUNDED = ("Softmax", "Sigmoid", "Tanh", "Erf", "Sin", "Cos", "HardSigmoid")
_CHOICES = ("Neg", "Abs", "Relu", "Max", "Min", "ReduceMax", "ReduceMean", "Concat")
_MOVES = ("Identity", "Unsqueeze", "Squeeze", "Reshape", "Expand", "Transpose", "Slice", "Split", "Flatten")
_WHOLE = (TensorProto.BOOL, TensorProto.INT64, TensorProto.INT32, TensorProto.INT8, TensorProto.UINT8)
_ORDINARY, _HUGE = 1, 2  # two huge numbers (masks of the type's minimum) may sum up to −inf
_HUGE_FROM = {"float16": 1e3, "float32": 1e30, "float64": 1e30}


def keeps_finite(graph: Graph, scores: str, depth: int = _DEPTH) -> bool:
    """True when every row of `scores` has an entry that is not −inf, and none that is +inf or NaN."""
    array = graph.constant(scores)
    if array is not None:
        return array.dtype.kind == "f" and _rows_open(array)
    if magnitude(graph, scores):
        return True
    node = graph.producer(scores)
    if node is None or node.domain or not depth:
        return False
    if node.op_type == "Add":
        pairs = (node.inputs, node.inputs[::-1])
        return any(magnitude(graph, a) == _ORDINARY and keeps_finite(graph, b, depth - 1) for a, b in pairs)
    if node.op_type == "Where":
        return _where_keeps(graph, node)
    return _same_rows(graph, node) and keeps_finite(graph, node.inputs[0], depth - 1)


def _rows_open(array: np.ndarray) -> bool:
    values = array.astype(np.float64).reshape(array.shape or (1,))
    if np.isnan(values).any() or (values == np.inf).any():
        return False
    return bool(np.isfinite(values).any(axis=-1).all())


def _where_keeps(graph: Graph, node: Node) -> bool:
    """Where(keep, finite, mask value), or the other way round with the condition negated."""
    condition, yes, no = node.inputs
    if not (_not_high(graph, yes) and _not_high(graph, no)):
        return False
    if magnitude(graph, yes):
        return row_true(graph, condition)
    if not magnitude(graph, no):
        return False
    array, negated = graph.constant(condition), graph.producer(condition)
    if array is not None:
        return bool((~array.reshape(array.shape or (1,))).any(axis=-1).all())
    return negated is not None and negated.op == "Not" and row_true(graph, negated.inputs[0])


def _not_high(graph: Graph, value: str) -> bool:
    """Finite, or a constant without +inf and NaN."""
    array = graph.constant(value)
    if array is None or array.dtype.kind != "f":
        return bool(magnitude(graph, value))
    return not bool(np.isnan(array).any() or (array == np.inf).any())


def magnitude(graph: Graph, value: str, depth: int = _DEPTH) -> int:
    """0 for what may be infinite or NaN, 2 for what may be near the limit of its type, 1 for what is neither."""
    array = graph.constant(value)
    if array is not None:
        return _magnitude_of(array)
    if graph.dtype(value) in _WHOLE:
        return _ORDINARY
    node = graph.producer(value)
    if node is None or node.domain or not depth:
        return 0
    if node.op_type in (*_PRODUCTS, *_BOUNDED):
        return _ORDINARY
    if node.op_type == "Div" and not _no_zero(graph, node.inputs[1]):
        return 0
    operands = node.inputs[1:] if node.op_type == "Where" else node.inputs
    if node.op_type in ("Add", "Sub", "Mul", "Div"):
        parts = [magnitude(graph, item, depth - 1) for item in operands]
        return sum(parts) - 1 if 0 not in parts and sum(parts) <= (3 if node.op_type in ("Add", "Sub") else 2) else 0
    if node.op_type in ("Where", *_CHOICES):
        parts = [magnitude(graph, item, depth - 1) for item in operands if item]
        return 0 if 0 in parts else max(parts)
    if node.op_type == "Cast":
        inside = magnitude(graph, node.inputs[0], depth - 1)
        return inside if inside == _ORDINARY or graph.dtype(node.inputs[0]) == graph.dtype(value) else 0
    return magnitude(graph, node.inputs[0], depth - 1) if node.op_type in _MOVES else 0


def _magnitude_of(array: np.ndarray) -> int:
    if array.dtype.kind in "biu":
        return _ORDINARY
    if array.dtype.name not in _HUGE_FROM or not np.isfinite(array).all():
        return 0
    return _HUGE if np.abs(array).max(initial=0) > _HUGE_FROM[array.dtype.name] else _ORDINARY


def _no_zero(graph: Graph, value: str) -> bool:
    array = graph.constant(value)
    return array is not None and bool((np.abs(array) > 1e-3).all())


def row_true(graph: Graph, condition: str, depth: int = _DEPTH) -> bool:
    """True when a boolean value has a True in every row, however it is broadcast."""
    array = graph.constant(condition)
    if array is not None:
        return bool(array.astype(bool).reshape(array.shape or (1,)).any(axis=-1).all())
    node = graph.producer(condition)
    if node is None or node.domain or not depth:
        return False
    if node.op_type in ("LessOrEqual", "GreaterOrEqual"):
        return _causal(graph, node) or all_true(graph, condition)
    if node.op_type == "Trilu":
        return _lower_triangle(graph, node)
    if node.op_type == "Or":
        return any(row_true(graph, item, depth - 1) for item in node.inputs)
    if node.op_type == "And":
        pairs = (node.inputs, node.inputs[::-1])
        return any(row_true(graph, a, depth - 1) and all_true(graph, b) for a, b in pairs)
    truth = _truth_of(graph, node)
    if truth is not None:
        return row_true(graph, truth, depth - 1)
    return _same_rows(graph, node) and row_true(graph, node.inputs[0], depth - 1)


def all_true(graph: Graph, value: str, depth: int = _DEPTH) -> bool:
    """True when nothing in a boolean value (or in numbers that stand for one) is False."""
    array = graph.constant(value)
    if array is not None:
        return bool(array.astype(bool).all())
    node = graph.producer(value)
    if node is None or node.domain or not depth:
        return False
    if node.op_type == "ConstantOfShape":
        fill = node.attr("value")
        return fill is not None and bool(onnx.numpy_helper.to_array(fill).astype(bool).all())
    if node.op_type in ("LessOrEqual", "GreaterOrEqual"):
        high, low = node.inputs if node.op_type == "GreaterOrEqual" else node.inputs[::-1]
        bound, found = graph.scalar(low), _range(graph, high)
        return bound is not None and found is not None and found[0] >= bound
    if node.op_type == "And":
        return all(all_true(graph, item, depth - 1) for item in node.inputs)
    truth = _truth_of(graph, node)
    if truth is not None:
        return all_true(graph, truth, depth - 1)
    return node.op_type in _MOVES and all_true(graph, node.inputs[0], depth - 1)


def _truth_of(graph: Graph, node: Node) -> str | None:
    """The numbers that a node makes booleans of, by Cast or as not (x = 0); None for other nodes."""
    if node.op_type == "Cast":
        return node.inputs[0] if node.attr("to") == TensorProto.BOOL else None
    equal = graph.producer(node.inputs[0]) if node.op_type == "Not" else None
    if equal is None or equal.op not in ("Equal", "And"):
        return None
    if equal.op == "And":  # x ≥ 0 and 0 ≥ x, as Equal of floats is lowered
        halves = [graph.producer(value) for value in equal.inputs]
        if [half and half.op for half in halves] != ["GreaterOrEqual"] * 2:
            return None
        first, second = (half.inputs for half in halves if half is not None)
        return first[0] if first == second[::-1] and graph.scalar(first[1]) == 0 else None
    return equal.inputs[0] if graph.scalar(equal.inputs[1]) == 0 else None


def _same_rows(graph: Graph, node: Node) -> bool:
    """True for operators that only add axes before the last one, or repeat what is there."""
    if node.op_type in ("Identity", "Expand"):
        return True
    axes = _new_axes(graph, node)
    return axes is not None and max(axes) != (graph.rank(node.outputs[0]) or 0) - 1


def _new_axes(graph: Graph, node: Node) -> set[int] | None:
    """Axes that an Unsqueeze adds, not negative."""
    if node.op_type != "Unsqueeze":
        return None
    axes = node.attr("axes") if len(node.inputs) < 2 else graph.constant(node.inputs[1])
    rank = graph.rank(node.outputs[0])
    return None if axes is None or rank is None else {int(axis) % rank for axis in axes}


def _causal(graph: Graph, node: Node) -> bool:
    """Column index ≤ row index: the first column is True when it counts up from no more than the rows do."""
    low, high = node.inputs if node.op_type == "LessOrEqual" else node.inputs[::-1]
    columns, rows = _range(graph, low), _range(graph, high)
    if columns is None or rows is None:
        return False
    return columns[0] <= rows[0] and columns[1] == 1 and rows[1] != 1


def _range(graph: Graph, value: str, depth: int = _DEPTH) -> tuple[float, int] | None:
    """First number of a Range that counts up, and the axis on which it lies, from the end (1: the last)."""
    node = graph.producer(value)
    if node is None or node.domain or not depth:
        return None
    if node.op_type == "Range":
        start, step = graph.scalar(node.inputs[0]), graph.scalar(node.inputs[2])
        return (start, 1) if start is not None and step is not None and step > 0 else None
    inside = _range(graph, node.inputs[0], depth - 1) if node.op_type in ("Identity", "Unsqueeze") else None
    if inside is None or node.op_type == "Identity":
        return inside
    new, rank = _new_axes(graph, node), graph.rank(node.outputs[0])
    if new is None or rank is None:
        return None
    kept = [axis for axis in range(rank) if axis not in new]
    return inside[0], rank - kept[len(kept) - inside[1]]


def _lower_triangle(graph: Graph, node: Node) -> bool:
    """The first column of a lower triangle on or above the diagonal is kept in every row."""
    diagonal = graph.scalar(node.input(1)) if node.input(1) else 0
    return not node.attr("upper", 1) and diagonal is not None and diagonal >= 0 and all_true(graph, node.inputs[0])

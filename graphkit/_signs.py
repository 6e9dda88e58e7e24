"""Which values are negative nowhere, whatever the model is fed: MNN compares two negative numbers wrong."""

from __future__ import annotations

import math

from onnx import TensorProto

from graphkit.graph import Graph
from graphkit.node import Node

_DEPTH = 12
_SMALL = 1 << 16  # elements of a constant that are looked at
_UNSIGNED = (TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64, TensorProto.BOOL)
_ALWAYS = frozenset(
    [
        "Abs", "ArgMax", "ArgMin", "Exp", "HardSigmoid", "NonZero", "ReduceL1", "ReduceL2", "ReduceSumSquare",
        "Relu", "Shape", "Sigmoid", "Size", "Softmax", "Softplus", "Sqrt", "Equal", "Greater", "GreaterOrEqual",
        "Less", "LessOrEqual", "Not", "And", "Or", "Xor", "IsNaN", "IsInf",
    ]
)  # fmt: skip
_PASS_ON = frozenset(
    [
        "Identity", "Cast", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Expand", "Gather",
        "GatherND", "GatherElements", "Slice", "Tile", "Floor", "Ceil", "Round", "ReduceMax", "ReduceMin",
        "ReduceMean", "ReduceSum", "ReduceProd", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool",
        "Split", "TopK", "DepthToSpace", "SpaceToDepth",
    ]
)  # fmt: skip
_ALL_OF = frozenset(["Add", "Mul", "Div", "Concat", "Min", "Pow", "Sum", "Mean", "Range"])


def nonnegative(graph: Graph, value: str, depth: int = _DEPTH) -> bool:
    """True when the value is proven to have no negative element."""
    if not value or not depth:
        return False
    if graph.dtype(value) in _UNSIGNED:
        return True
    if graph.is_constant(value):
        return _constant(graph, value)
    node = graph.producer(value)
    if node is None or node.domain:
        return False
    if node.op_type in _ALWAYS or (node.op_type == "TopK" and value in node.outputs[1:]):
        return True
    if node.op_type in _PASS_ON:
        return nonnegative(graph, node.input(0), depth - 1)
    if node.op_type == "Where":
        return wraps(graph, node) or all(nonnegative(graph, item, depth - 1) for item in node.inputs[1:])
    if node.op_type == "Max":
        return any(nonnegative(graph, item, depth - 1) for item in node.inputs)
    if node.op_type in _ALL_OF:
        return all(nonnegative(graph, item, depth // 2) for item in node.inputs)
    return False


def wraps(graph: Graph, node: Node) -> bool:
    """True for Where(i < 0, i + size, i): an index counted from the start, if it was a valid one."""
    test, moved = graph.producer(node.inputs[0]), graph.producer(node.inputs[1])
    if test is None or test.op not in ("Greater", "Less") or moved is None or moved.op != "Add":
        return False
    zero, index = test.inputs if test.op == "Greater" else reversed(test.inputs)
    return graph.scalar(zero) == 0 and index == node.inputs[2] and index in moved.inputs


def _constant(graph: Graph, value: str) -> bool:
    shape = graph.shape(value)
    if shape is None or math.prod(dim for dim in shape if isinstance(dim, int)) > _SMALL:
        return False
    array = graph.constant(value)
    return array is not None and array.dtype.kind in "iufb" and not bool((array < 0).any())

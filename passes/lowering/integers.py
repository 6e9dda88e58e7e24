"""Integers of 8 and 16 bits computed in 32: MNN has no arithmetic on uint8, and none of the others wraps.

MNN 3.6 keeps uint8 and computed int8 as they are and takes int16, uint16 and the int8 of graph inputs for int32:
elementwise operators crash on bytes or fail, and sums and products of the others are not brought back into their range.
"""

from __future__ import annotations

from onnx import TensorProto

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.passes._emit import Emit
from graphkit.passes.lowering._numbers import NARROW, wrapped
from graphkit.rewrite import Outcome, Refusal, rule

_WRAPPING = frozenset({"Add", "Sub", "Mul", "Neg", "Abs", "Pow", "ReduceSum", "ReduceProd", "CumSum", "Div"})
_BOUNDED = frozenset({"Mod", "Max", "Min", "Clip", "Sign", "Relu", "ReduceMax", "ReduceMin", "ReduceMean"})
_TRUTHS = frozenset({"Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual"})
_INDICES = frozenset({"ArgMax", "ArgMin", "NonZero"})
_PARAMETERS = frozenset({"ReduceSum", "ReduceProd", "ReduceMax", "ReduceMin", "ReduceMean", "CumSum"})


@rule(*_WRAPPING, *_BOUNDED, *_TRUTHS, *_INDICES, name="narrow-integers")
def narrow(graph: Graph, node: Node) -> Outcome:
    """Arithmetic on 8- and 16-bit integers in 32 bits, brought back into the range of its type."""
    dtype = graph.dtype(node.inputs[0])
    if dtype not in NARROW or not _is_wrong(node, dtype) or not _has_int32(graph, node):
        return None
    emit = Emit(graph, node)
    count = 1 if node.op in _PARAMETERS else len(node.inputs)
    inputs = [emit.cast(x, TensorProto.INT32) if x and i < count else x for i, x in enumerate(node.inputs)]
    y = emit.op(node.op, *inputs, **node.attrs)
    if node.op in _WRAPPING:
        y = wrapped(emit, y, dtype)
    elif node.op in _BOUNDED:
        y = emit.cast(y, dtype)
    return emit.rewrite({node.outputs[0]: y}, f"{node.op} of narrow integers in 32 bits")


def _is_wrong(node: Node, dtype: int) -> bool:
    """True where MNN does not compute the operator right in this type."""
    return dtype in (TensorProto.UINT8, TensorProto.INT8) or node.op in _WRAPPING or node.op == "Clip"


def _has_int32(graph: Graph, node: Node) -> bool:
    """True when the operator takes int32 in this operator set."""
    since = {"Clip": 12, "Relu": 14, "Equal": 7, "Max": 12, "Min": 12, "Pow": 12}.get(node.op, 7)
    return graph.opset() >= since


@rule("TopK", name="topk-of-narrow-integers")
def topk(graph: Graph, node: Node) -> Outcome:
    """TopK of uint8 reads other memory in MNN: it goes through int32."""
    if graph.dtype(node.inputs[0]) != TensorProto.UINT8 or graph.opset() < 11:
        return None
    emit = Emit(graph, node)
    values = emit.op("TopK", emit.cast(node.inputs[0], TensorProto.INT32), node.inputs[1], outputs=2, **node.attrs)
    indices = emit.nodes[-1].output[1]
    outputs = {node.outputs[0]: emit.cast(values, TensorProto.UINT8)}
    if len(node.outputs) > 1 and node.outputs[1]:
        outputs[node.outputs[1]] = indices
    return emit.rewrite(outputs, "TopK of uint8 in 32 bits")


_CALCULATING = ("Add", "Sub", "Mul", "Div", "Mod", "Pow", "Max", "Min", "Where", "Equal", "Greater", "Less")
_CLAMP = 1 << 30  # MNN's converter brings larger int64 constants to this


@rule(*_CALCULATING, name="int64-range")
def int64_range(graph: Graph, node: Node) -> Outcome:
    """An int64 constant that is calculated with and that MNN's converter would clamp: nothing can stand for it."""
    for value in node.inputs:
        if graph.dtype(value) != TensorProto.INT64 or not graph.is_constant(value):
            continue
        array = graph.constant(value)
        if array is not None and array.size and max(int(array.max()), -int(array.min())) > _CLAMP:
            return Refusal("int64-range", node.label, f"'{value}' has integers beyond ±2³⁰, where MNN cuts them off")
    return None


RULES = (narrow, topk, int64_range)

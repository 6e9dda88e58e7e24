"""Comparisons and casts to booleans: where MNN's differ from IEEE 754 and from ONNX.

Measured on MNN 3.6.1: Less of two negative floats compares their bits, Equal takes NaN for equal to itself, and a Cast
to bool keeps the number, so that Not, And, Or and Where of floats see a 2.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.passes._emit import Emit
from graphkit.passes.lowering._numbers import FLOATS, INTEGERS
from graphkit.rewrite import Outcome, Refusal, rule


@rule("Less", name="less-to-greater")
def less(graph: Graph, node: Node) -> Outcome:
    """Less(a, b) is Greater(b, a): MNN's Less is wrong where both are negative floats."""
    if graph.dtype(node.inputs[0]) in INTEGERS:
        return None
    emit = Emit(graph, node)
    y = emit.op("Greater", node.inputs[1], node.inputs[0])
    return emit.rewrite({node.outputs[0]: y}, "Greater with the operands swapped in place of Less")


def _is_number(graph: Graph, value: str) -> bool:
    """True for constants without NaN."""
    array = graph.constant(value)
    return array is not None and array.dtype.kind == "f" and not np.isnan(array).any()


@rule("Equal", name="equal-of-floats")
def equal(graph: Graph, node: Node) -> Outcome:
    """Equal of computed floats as a ≥ b and b ≥ a: MNN's Equal is true for two NaN."""
    a, b = node.inputs
    if graph.dtype(a) not in FLOATS or graph.opset() < 12 or any(_is_number(graph, x) for x in (a, b)):
        return None
    emit = Emit(graph, node)
    y = emit.op("And", emit.op("GreaterOrEqual", a, b), emit.op("GreaterOrEqual", b, a))
    return emit.rewrite({node.outputs[0]: y}, "Equal of floats by two comparisons, for NaN")


@rule("Cast", name="cast-to-bool")
def cast_to_bool(graph: Graph, node: Node) -> Outcome:
    """Cast to bool is x ≠ 0; MNN keeps the number, and what reads it sees more than 0 and 1."""
    if int(node.attr("to", 0)) != TensorProto.BOOL:
        return None
    x, dtype = node.inputs[0], graph.dtype(node.inputs[0])
    if dtype == TensorProto.BOOL or _is_truth(graph, x):
        return None
    if dtype not in FLOATS | INTEGERS:
        return Refusal("cast-to-bool", node.label, f"the element type of '{x}' is unknown")
    emit = Emit(graph, node)
    if graph.opset() < 11 and dtype not in (TensorProto.INT32, TensorProto.INT64):
        # Equal takes these two integer types only; a truth of magnitude > 0 is lost for NaN alone.
        y = emit.op("Greater", emit.op("Abs", emit.cast(x, TensorProto.FLOAT)), emit.number(0))
    else:
        y = emit.op("Not", emit.op("Equal", x, emit.number(0, dtype)))
    return emit.rewrite({node.outputs[0]: y}, "Cast to bool by a comparison with zero")


def _is_truth(graph: Graph, value: str) -> bool:
    """True for numbers that were cast from booleans: they are 0 and 1."""
    maker = graph.producer(value)
    return maker is not None and maker.op == "Cast" and graph.dtype(maker.inputs[0]) == TensorProto.BOOL


RULES = (less, equal, cast_to_bool)

"""Comparisons and casts to booleans: where MNN's differ from IEEE 754 and from ONNX.

Measured on MNN 3.6.1: Less of two negative floats compares their bits, Equal takes NaN for equal to itself and −0 for
another number than 0, and a Cast to bool keeps the number, so that Not, And, Or and Where of floats see a 2. All
comparisons of floats compare bits where both operands are broadcast: two negative ones come out the wrong way round.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.passes._emit import Emit
from graphkit.passes.lowering._numbers import FLOATS, INTEGERS, is_zero
from graphkit.rewrite import Outcome, Refusal, rule

Shape = tuple[int | str | None, ...] | None


@rule("Less", name="less-to-greater")
def less(graph: Graph, node: Node) -> Outcome:
    """Less(a, b) is Greater(b, a): MNN's Less is wrong where both are negative floats."""
    if graph.dtype(node.inputs[0]) in INTEGERS:
        return None
    emit = Emit(graph, node)
    y = emit.op("Greater", node.inputs[1], node.inputs[0])
    return emit.rewrite({node.outputs[0]: y}, "Greater with the operands swapped in place of Less")


@rule("Greater", "GreaterOrEqual", "LessOrEqual", name="compare-expanded")
def expanded(graph: Graph, node: Node) -> Outcome:
    """Both operands are broadcast, where MNN compares the bits of floats: one of them is expanded before."""
    a, b = node.inputs
    if graph.dtype(a) in INTEGERS or not _both_broadcast(graph.shape(a), graph.shape(b)):
        return None
    emit = Emit(graph, node)
    y = emit.op(node.op, emit.op("Expand", a, emit.op("Shape", b)), b)
    return emit.rewrite({node.outputs[0]: y}, f"{node.op} of an operand that is expanded before")


def _both_broadcast(a: Shape, b: Shape) -> bool:
    """True when each of two shapes has an axis of size 1, or none, where the other one may have more."""
    if a is None or b is None:
        return False
    rank = max(len(a), len(b))
    pairs = list(zip((1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b, strict=True))
    return any(x == 1 != y for x, y in pairs) and any(y == 1 != x for x, y in pairs)


def _is_safe(graph: Graph, value: str) -> bool:
    """True for constants of which MNN's Equal is right: there is neither a NaN nor a zero among them."""
    array = graph.constant(value)
    return array is not None and array.dtype.kind == "f" and not np.isnan(array).any() and bool(array.all())


@rule("Equal", name="equal-of-floats")
def equal(graph: Graph, node: Node) -> Outcome:
    """Equal of floats as a ≥ b and b ≥ a: MNN's Equal is true for two NaN, and false for 0 and −0."""
    a, b = node.inputs
    dtype = graph.dtype(a)
    if dtype not in FLOATS or any(_is_safe(graph, x) for x in (a, b)):
        return None
    emit = Emit(graph, node)
    if graph.opset() >= 12:
        y = emit.op("And", emit.op("GreaterOrEqual", a, b), emit.op("GreaterOrEqual", b, a))
    elif (number := next((x for x in (a, b) if graph.scalar(x) == 0), None)) is not None:
        y = is_zero(emit, b if number == a else a, dtype)
    else:
        y = _equal_by_greater(emit, a, b, dtype)
    return emit.rewrite({node.outputs[0]: y}, "Equal of floats by two comparisons, for NaN and −0")


def _equal_by_greater(emit: Emit, a: str, b: str, dtype: int) -> str:
    """Neither is greater, and both are numbers: more than 0 or less than 1."""
    zero, one = emit.number(0, dtype), emit.number(1, dtype)
    same = emit.op("Not", emit.op("Or", emit.op("Greater", a, b), emit.op("Greater", b, a)))
    for x in (a, b):
        same = emit.op("And", same, emit.op("Or", emit.op("Greater", x, zero), emit.op("Greater", one, x)))
    return same


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
    if dtype in FLOATS:
        y = emit.op("Not", is_zero(emit, x, dtype))
    elif graph.opset() < 11 and dtype not in (TensorProto.INT32, TensorProto.INT64):
        # Equal takes these two integer types only.
        y = emit.op("Greater", emit.op("Abs", emit.cast(x, TensorProto.FLOAT)), emit.number(0))
    else:
        y = emit.op("Not", emit.op("Equal", x, emit.number(0, dtype)))
    return emit.rewrite({node.outputs[0]: y}, "Cast to bool by a comparison with zero")


def _is_truth(graph: Graph, value: str) -> bool:
    """True for numbers that were cast from booleans: they are 0 and 1."""
    maker = graph.producer(value)
    return maker is not None and maker.op == "Cast" and graph.dtype(maker.inputs[0]) == TensorProto.BOOL


RULES = (less, expanded, equal, cast_to_bool)

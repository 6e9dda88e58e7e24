"""Activations that MNN lacks or gets wrong, as the ONNX Operators specification defines them."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.passes._emit import Emit
from graphkit.passes.lowering import contrib_activations
from graphkit.passes.lowering._forms import Floats, gelu_erf, gelu_tanh, mish, softplus, swish, used
from graphkit.rewrite import Outcome, Rule, rule

_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)
_PER_AXIS = 13  # from this opset on they work along one axis
_SOFTPLUS_UNTIL = 80.0  # MNN's own is right up to here


@rule("Gelu", name="gelu")
def gelu(graph: Graph, node: Node) -> Outcome:
    """MNN computes the tanh approximation for both functions, and overflows in it."""
    build = Emit(graph, node)
    at = Floats(build, node.inputs[0])
    if not at.outside:
        return gelu.refuse(node, "the element type is unknown")
    form = gelu_tanh if node.attr("approximate", "none") == "tanh" else gelu_erf
    return build.rewrite({node.outputs[0]: at.down(form(at, at.up(node.inputs[0])))}, "Gelu spelled out")


@rule("Swish", name="swish")
def swish_op(graph: Graph, node: Node) -> Outcome:
    """MNN has x · sigmoid(x), not the operator."""
    build = Emit(graph, node)
    at = Floats(build, node.inputs[0])
    if not at.outside:
        return swish_op.refuse(node, "the element type is unknown")
    y = swish(at, at.up(node.inputs[0]), node.attr("alpha", 1.0))
    return build.rewrite({node.outputs[0]: at.down(y)}, "Swish by Sigmoid")


@rule("Mish", name="mish")
def mish_op(graph: Graph, node: Node) -> Outcome:
    """MNN lacks x · tanh(softplus(x))."""
    build = Emit(graph, node)
    at = Floats(build, node.inputs[0])
    if not at.outside:
        return mish_op.refuse(node, "the element type is unknown")
    return build.rewrite({node.outputs[0]: at.down(mish(at, at.up(node.inputs[0])))}, "Mish spelled out")


@rule("Softplus", name="softplus")
def softplus_op(graph: Graph, node: Node) -> Outcome:
    """MNN's Softplus stops growing at 87: the greater of it and x, where it is right."""
    x = node.inputs[0]
    clamp = graph.producer(x)
    if clamp is not None and clamp.op == "Min" and _at_most(graph, clamp, _SOFTPLUS_UNTIL):
        return None
    build = Emit(graph, node)
    at = Floats(build, x)
    if not at.outside:
        return softplus_op.refuse(node, "the element type is unknown")
    return build.rewrite({node.outputs[0]: at.down(softplus(at, at.up(x)))}, "Softplus that goes on growing")


def _at_most(graph: Graph, clamp: Node, limit: float) -> bool:
    numbers = [number for name in clamp.inputs if (number := graph.scalar(name)) is not None]
    return bool(numbers) and min(numbers) <= limit


@rule("Shrink", name="shrink")
def shrink(graph: Graph, node: Node) -> Outcome:
    """MNN's Shrink is wrong: x − bias above λ, x + bias below −λ, else 0."""
    x, build = node.inputs[0], Emit(graph, node)
    dtype = graph.dtype(x)
    if not dtype:
        return shrink.refuse(node, "the element type is unknown")
    at = Floats(build, x)
    if dtype not in _FLOATS:
        at.dtype = TensorProto.FLOAT
        x = build.cast(x, TensorProto.FLOAT)
    x = at.up(x)
    limit, bias = node.attr("lambd", 0.5), node.attr("bias", 0.0)
    above = build.op("Greater", x, at.number(limit))
    below = build.op("Greater", at.number(-limit), x)
    y = build.op("Where", below, build.op("Add", x, at.number(bias)) if bias else x, at.number(0))
    y = build.op("Where", above, build.op("Sub", x, at.number(bias)) if bias else x, y)
    y = at.down(y) if dtype in _FLOATS else build.cast(y, dtype)
    return build.rewrite({node.outputs[0]: y}, "Shrink by comparisons")


@rule("PRelu", name="prelu")
def prelu(graph: Graph, node: Node) -> Outcome:
    """A constant slope that is not one number or one per channel: MNN takes it for one per channel."""
    x, slope = node.inputs
    array, rank, dtype = graph.constant(slope), graph.rank(x), graph.dtype(x)
    if array is None and dtype in _FLOATS:
        return None
    if rank is None or not dtype:
        return prelu.refuse(node, "the rank or the element type is unknown")
    if dtype in _FLOATS and array is not None and rank > 1 and _per_channel(array, rank):
        return None
    build = Emit(graph, node)
    negative = build.op("Greater", build.number(0, dtype), x)
    y = build.op("Where", negative, build.op("Mul", x, slope), x)
    return build.rewrite({node.outputs[0]: y}, "PRelu by a comparison")


def _per_channel(slope: np.ndarray, rank: int) -> bool:
    """True for one number, or a vector that lies along axis 1 of a value of this rank."""
    if slope.size == 1:
        return True
    shape = (1,) * (rank - slope.ndim) + slope.shape
    return shape[0] == 1 and all(dim == 1 for dim in shape[2:])


@rule("LogSoftmax", name="log-softmax")
def log_softmax(graph: Graph, node: Node) -> Outcome:
    """Below opset 13 MNN takes one axis of LogSoftmax where the standard takes all behind it, too."""
    rank, build = graph.rank(node.inputs[0]), Emit(graph, node)
    if build.opset >= _PER_AXIS:
        return None
    if rank is None:
        return log_softmax.refuse(node, "the rank is unknown")
    axis = int(node.attr("axis", 1)) % rank if rank else 0
    if axis == rank - 1:
        return None
    x = node.inputs[0]
    flat = build.op("LogSoftmax", build.op("Flatten", x, axis=axis), axis=1)
    y = build.op("Reshape", flat, build.op("Shape", x))
    return build.rewrite({node.outputs[0]: y}, "LogSoftmax of a matrix")


@rule("Dropout", "com.microsoft::BitmaskDropout", name="dropout")
def dropout(graph: Graph, node: Node) -> Outcome:
    """Without training nothing is dropped; MNN cannot run what is left of it beside the mask."""
    ratio, training = node.input(1), node.input(2)
    if training and graph.scalar(training) is None:
        return dropout.refuse(node, "whether it trains is known at run time only")
    if training and graph.scalar(training) and graph.scalar(ratio) != 0:
        return dropout.refuse(node, "in training mode its result is random")
    build, outputs = Emit(graph, node), {node.outputs[0]: node.inputs[0]}
    if used(graph, node, 1):
        if node.domain:
            return dropout.refuse(node, "the mask in bits has no counterpart")
        mask = _whole_mask(build, node.inputs[0])
        if mask is None:
            return dropout.refuse(node, "the element type is unknown")
        outputs[node.outputs[1]] = mask
    return build.rewrite(outputs, "Dropout drops nothing")


def _whole_mask(build: Emit, x: str) -> str | None:
    """True everywhere in the shape of x; before opset 12 onnxruntime leaves the mask empty."""
    dtype = build.graph.dtype(x)
    if not dtype:
        return None
    high = build.op("Greater", x, build.number(0, dtype))
    if build.opset >= 12:
        return build.op("Or", high, build.op("Not", high))
    none = build.op("And", high, build.op("Not", high))
    return none if build.opset >= 10 else build.cast(none, dtype)


RULES: tuple[Rule, ...] = (
    gelu,
    swish_op,
    mish_op,
    softplus_op,
    shrink,
    prelu,
    dropout,
    log_softmax,
    *contrib_activations.RULES,
)

"""onnxruntime's QLinear operators that are no products, in float.

Source: onnxruntime's contrib operators and its MLAS kernels. QLinearAdd and QLinearMul add the zero point of the
result before they round, the others after it, as QuantizeLinear does: halves fall to different sides.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.passes._quantized_params import guarded
from graphkit.passes.lowering._quantized_emit import MisfitError, Operand, QuantizedEmit
from graphkit.passes.lowering.quantized_dynamic import one
from graphkit.rewrite import Outcome, Refusal, Rule, rule

_MS = "com.microsoft::"
_POOL = ("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides")


def _type(graph: Graph, zero: str, codes: str) -> int:
    """Element type of the result's codes; shape inference does not know onnxruntime's operators."""
    return (graph.dtype(zero) if zero else 0) or graph.dtype(codes)


def _steps(build: QuantizedEmit, codes: str, zero: str) -> Operand:
    """Codes less their zero point."""
    values = build.floats(codes)
    return build.binary("Sub", values, one(build, zero)) if zero else values


def _numbers(build: QuantizedEmit, codes: str, scale: str, zero: str) -> Operand:
    """What codes stand for."""
    return build.binary("Mul", _steps(build, codes, zero), one(build, scale))


def _written(build: QuantizedEmit, x: Operand, scale: str, zero: str, dtype: int) -> str:
    """Numbers as codes, rounded as QuantizeLinear rounds."""
    point = one(build, zero) if zero else None
    return build.codes(build.rounded_codes(build.binary("Div", x, one(build, scale)), point, dtype), dtype)


@rule(f"{_MS}QLinearAdd", f"{_MS}QLinearMul", name="qlinear-binary")
def binary(graph: Graph, node: Node) -> Outcome:
    """MNN lacks it: codes less zero points, times quotients of scales; the zero point is added before rounding."""
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = (node.input(i) for i in range(8))
    build, dtype = QuantizedEmit(graph, node), _type(graph, y_zero, a)
    try:
        left, right, below = _steps(build, a, a_zero), _steps(build, b, b_zero), one(build, y_scale)
        scales = one(build, a_scale), one(build, b_scale)
        if node.op_type == "QLinearAdd":
            parts = [
                build.binary("Mul", x, build.binary("Div", s, below))
                for x, s in zip((left, right), scales, strict=True)
            ]
            total = build.binary("Add", *parts)
        else:
            factor = build.binary("Div", build.binary("Mul", *scales), below)
            total = build.binary("Mul", build.binary("Mul", left, right), factor)
        value = build.codes(build.rounded_sum(total, one(build, y_zero) if y_zero else None, dtype), dtype)
    except MisfitError as error:
        return Refusal("qlinear-binary", node.label, str(error))
    return build.rewrite({node.outputs[0]: value}, f"{node.op_type} in float")


@rule(*(f"{_MS}QLinear{kind}" for kind in ("Sigmoid", "LeakyRelu", "Softmax")), name="qlinear-activation")
def activation(graph: Graph, node: Node) -> Outcome:
    """MNN lacks it: the activation of the numbers that the codes stand for, rounded again."""
    x, x_scale, x_zero, y_scale, y_zero = (node.input(i) for i in range(5))
    build, kind = QuantizedEmit(graph, node), node.op_type.removeprefix("QLinear")
    dtype = _type(graph, y_zero, x)
    try:
        numbers = build.named(_numbers(build, x, x_scale, x_zero))
        if kind == "Softmax":
            result = _softmax(build, node, numbers)
        else:
            result = build.op(kind, numbers, alpha=node.attr("alpha", 0.01) if kind == "LeakyRelu" else None)
        value = _written(build, result, y_scale, y_zero, dtype)
    except MisfitError as error:
        return Refusal("qlinear-activation", node.label, str(error))
    return build.rewrite({node.outputs[0]: value}, f"{node.op_type} in float")


def _softmax(build: QuantizedEmit, node: Node, numbers: str) -> str:
    """Softmax over one axis (`opset` 13), or over all from `axis` on (before). Raises MisfitError for the latter."""
    rank, axis = build.graph.rank(node.inputs[0]), int(node.attr("axis", -1))
    if rank is None:
        raise MisfitError("the rank of its input is unknown")
    if not -rank <= axis < rank:
        raise MisfitError(f"axis {axis} of {rank} axes does not exist")
    axis %= rank
    if axis != rank - 1 and (int(node.attr("opset", 13)) < 13 or build.opset < 13):
        raise MisfitError(f"it normalizes over all axes from {axis} on, or the model's Softmax does")
    return build.softmax(numbers, axis, rank)


@rule(f"{_MS}QLinearAveragePool", f"{_MS}QLinearGlobalAveragePool", name="qlinear-average-pool")
def average_pool(graph: Graph, node: Node) -> Outcome:
    """MNN lacks it: the mean of the codes' numbers, rounded again."""
    x, x_scale, x_zero, y_scale, y_zero = (node.input(i) for i in range(5))
    if node.attr("channels_last", 0):
        return Refusal("qlinear-average-pool", node.label, "its channels come last")
    build, dtype = QuantizedEmit(graph, node), _type(graph, y_zero, x)
    try:
        steps = build.named(_steps(build, x, x_zero))
        factor = build.binary("Div", one(build, x_scale), one(build, y_scale))
        attrs = {key: value for key, value in node.attrs.items() if key in _POOL}
        mean = build.op(node.op_type.removeprefix("QLinear"), steps, **attrs)
        point = one(build, y_zero) if y_zero else None
        value = build.codes(build.rounded_codes(build.binary("Mul", mean, factor), point, dtype), dtype)
    except MisfitError as error:
        return Refusal("qlinear-average-pool", node.label, str(error))
    return build.rewrite({node.outputs[0]: value}, f"{node.op_type} in float")


@rule(f"{_MS}QLinearReduceMean", name="qlinear-reduce-mean")
def reduce_mean(graph: Graph, node: Node) -> Outcome:
    """MNN lacks it: the mean of the codes' numbers, rounded again."""
    x, x_scale, x_zero, y_scale, y_zero = (node.input(i) for i in range(5))
    axes, rank = node.attr("axes"), graph.rank(x)
    if rank is None:
        return Refusal("qlinear-reduce-mean", node.label, "the rank of its input is unknown")
    build, dtype = QuantizedEmit(graph, node), _type(graph, y_zero, x)
    try:
        numbers = build.named(_numbers(build, x, x_scale, x_zero))
        mean = build.reduce("ReduceMean", numbers, axes or range(rank), bool(node.attr("keepdims", 1)))
        value = _written(build, mean, y_scale, y_zero, dtype)
    except MisfitError as error:
        return Refusal("qlinear-reduce-mean", node.label, str(error))
    return build.rewrite({node.outputs[0]: value}, "QLinearReduceMean in float")


@rule(f"{_MS}QLinearConcat", name="qlinear-concat")
def concat(graph: Graph, node: Node) -> Outcome:
    """MNN lacks it: the codes' numbers side by side, rounded again with the scale of the result."""
    y_scale, y_zero = node.inputs[:2]
    build, dtype = QuantizedEmit(graph, node), graph.dtype(y_zero)
    triples = [node.inputs[i : i + 3] for i in range(2, len(node.inputs), 3)]
    if len(triples[-1]) < 3 or not all(part[0] and part[1] for part in triples):
        return Refusal("qlinear-concat", node.label, "each of its parts needs codes, a scale and a zero point")
    try:
        parts = [build.named(_numbers(build, *triple)) for triple in triples]
        joined = build.op("Concat", *parts, axis=int(node.attr("axis", 0)))
        value = _written(build, joined, y_scale, y_zero, dtype)
    except MisfitError as error:
        return Refusal("qlinear-concat", node.label, str(error))
    return build.rewrite({node.outputs[0]: value}, "QLinearConcat in float")


@rule(f"{_MS}QLinearWhere", name="qlinear-where")
def where(graph: Graph, node: Node) -> Outcome:
    """MNN lacks it: one of two numbers, rounded again with the scale of the result."""
    condition, x, x_scale, x_zero, y, y_scale, y_zero, z_scale, z_zero = (node.input(i) for i in range(9))
    build, dtype = QuantizedEmit(graph, node), graph.dtype(z_zero)
    try:
        chosen = [build.named(_numbers(build, *part)) for part in ((x, x_scale, x_zero), (y, y_scale, y_zero))]
        value = _written(build, build.op("Where", condition, *chosen), z_scale, z_zero, dtype)
    except MisfitError as error:
        return Refusal("qlinear-where", node.label, str(error))
    return build.rewrite({node.outputs[0]: value}, "QLinearWhere in float")


@rule(f"{_MS}QGemm", name="qgemm")
def qgemm(graph: Graph, node: Node) -> Outcome:
    """MNN lacks it: a product of whole numbers in float, plus a bias in the same steps, scaled and rounded."""
    a, a_scale, a_zero, b, b_scale, b_zero, c, y_scale, y_zero = (node.input(i) for i in range(9))
    build = QuantizedEmit(graph, node)
    try:
        left = build.named(build.binary("Sub", build.floats(a), one(build, a_zero)))
        right = build.named(_columns(build, node, b, b_zero))
        ins = [left, right, *([build.named(build.floats(c))] if c else [])]
        total = build.op("Gemm", *ins, transA=node.attr("transA", 0), transB=node.attr("transB", 0))
        alpha = np.asarray(node.attr("alpha", 1.0), np.float32)
        factor = build.binary("Mul", build.binary("Mul", one(build, a_scale), alpha), _per_column(build, b_scale))
        if not y_scale:
            return build.rewrite({node.outputs[0]: build.named(build.binary("Mul", total, factor))}, "QGemm in float")
        scaled = build.binary("Mul", total, build.binary("Div", factor, one(build, y_scale)))
        dtype = graph.dtype(y_zero) if y_zero else TensorProto.UINT8
        value = build.codes(build.rounded_codes(scaled, one(build, y_zero) if y_zero else None, dtype), dtype)
    except MisfitError as error:
        return Refusal("qgemm", node.label, str(error))
    return build.rewrite({node.outputs[0]: value}, "QGemm in float")


def _per_column(build: QuantizedEmit, value: str) -> Operand:
    values = build.floats(value)
    shape = values.shape if isinstance(values, np.ndarray) else build.graph.shape(value)
    if shape is None or len(shape) > 1:
        raise MisfitError(f"'{value}' is not one number a column, or its shape is unknown")
    return values


def _columns(build: QuantizedEmit, node: Node, b: str, b_zero: str) -> Operand:
    """B less its zero points, which lie along its rows when it is transposed."""
    zero = _per_column(build, b_zero)
    if node.attr("transB", 0) and (not isinstance(zero, np.ndarray) or zero.size > 1):
        zero = zero.reshape(-1, 1) if isinstance(zero, np.ndarray) else build.op("Reshape", zero, build.ints(-1, 1))
    return build.binary("Sub", build.floats(b), zero)


RULES: tuple[Rule, ...] = guarded(binary, activation, average_pool, reduce_mean, concat, where, qgemm)

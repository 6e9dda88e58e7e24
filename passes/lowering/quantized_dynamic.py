"""Quantization whose scale is found while the model runs, in float."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.passes._quantized_params import guarded
from graphkit.passes.lowering._numbers import is_zero
from graphkit.passes.lowering._quantized_emit import MisfitError, Operand, QuantizedEmit
from graphkit.rewrite import Outcome, Refusal, rule

_U8 = TensorProto.UINT8


@rule("DynamicQuantizeLinear", name="dynamic-quantize-linear")
def dynamic_quantize(graph: Graph, node: Node) -> Outcome:
    """MNN computes it wrong: range, scale, zero point and codes in float; the codes stay float where they can."""
    build = QuantizedEmit(graph, node)
    scale, zero = scale_and_zero(build, node.inputs[0])
    codes = build.rounded_codes(build.op("Div", node.inputs[0], scale), zero, _U8)
    made = (build.cast(codes, _U8), scale, build.cast(zero, _U8))
    used = zip(node.outputs, made, strict=False)
    return build.rewrite({old: new for old, new in used if old}, "DynamicQuantizeLinear in float")


def scale_and_zero(build: QuantizedEmit, x: str) -> tuple[str, str]:
    """Scale and zero point (as float32) of all of x for codes of 8 bits without sign (ONNX, DynamicQuantizeLinear).

    As in onnxruntime the scale is 1 where x is zero throughout.
    """
    zero = build.number(0.0)
    low = build.op("Min", build.op("ReduceMin", x, keepdims=0), zero)
    high = build.op("Max", build.op("ReduceMax", x, keepdims=0), zero)
    span = build.op("Sub", high, low)
    flat = build.cast(is_zero(build, span, TensorProto.FLOAT), TensorProto.FLOAT)
    scale = build.op("Add", build.op("Div", span, build.number(255.0)), flat)
    point = build.op("Div", build.op("Sub", zero, low), scale)
    return scale, build.rounded_codes(point, None, _U8)


@rule("com.microsoft::DynamicQuantizeMatMul", name="dynamic-quantize-matmul")
def dynamic_quantize_matmul(graph: Graph, node: Node) -> Outcome:
    """MNN lacks it: A is quantized by its own range, the product of codes is scaled (onnxruntime contrib operators)."""
    a, b, b_scale, b_zero, bias = (node.input(i) for i in range(5))
    build = QuantizedEmit(graph, node)
    scale, zero = scale_and_zero(build, a)
    codes = build.rounded_codes(build.op("Div", a, scale), zero, _U8)
    try:
        weights = _weights(build, b, b_zero)
        factor = build.binary("Mul", scale, column(build, b_scale, graph.rank(b)))
    except MisfitError as error:
        return Refusal("dynamic-quantize-matmul", node.label, str(error))
    product = build.op("MatMul", build.op("Sub", codes, zero), build.named(weights))
    return build.rewrite({node.outputs[0]: _scaled(build, product, factor, bias)}, "DynamicQuantizeMatMul in float")


@rule("com.microsoft::MatMulIntegerToFloat", name="matmul-integer-to-float")
def matmul_integer_to_float(graph: Graph, node: Node) -> Outcome:
    """MNN lacks it: the codes less their zero points as float, their product times both scales, plus bias."""
    a, b, a_scale, b_scale, a_zero, b_zero, bias = (node.input(i) for i in range(7))
    build = QuantizedEmit(graph, node)
    try:
        left = build.floats(a)
        left = build.binary("Sub", left, one(build, a_zero)) if a_zero else left
        factor = build.binary("Mul", one(build, a_scale), column(build, b_scale, graph.rank(b)))
        product = build.op("MatMul", build.named(left), build.named(_weights(build, b, b_zero)))
    except MisfitError as error:
        return Refusal("matmul-integer-to-float", node.label, str(error))
    value = _scaled(build, product, factor, bias)
    kind = graph.dtype(a_scale)
    return build.rewrite({node.outputs[0]: build.result(value, kind)}, "MatMulIntegerToFloat in float")


def _weights(build: QuantizedEmit, b: str, b_zero: str) -> Operand:
    codes = build.floats(b)
    return build.binary("Sub", codes, column(build, b_zero, build.graph.rank(b))) if b_zero else codes


def one(build: QuantizedEmit, value: str) -> Operand:
    """A parameter of one element, as a scalar. Raises MisfitError for others."""
    values = build.floats(value)
    shape = values.shape if isinstance(values, np.ndarray) else build.graph.shape(value)
    if shape is None or any(dim != 1 for dim in shape):
        raise MisfitError(f"'{value}' has the shape {'?' if shape is None else list(shape)}, not one element")
    return values.reshape(()) if isinstance(values, np.ndarray) else values


def column(build: QuantizedEmit, value: str, rank: int | None) -> Operand:
    """A parameter of the right-hand matrix: of one element, one for each column, or one for each column of each matrix.

    Raises MisfitError when its shape is unknown or fits neither.
    """
    values = build.floats(value)
    shape = values.shape if isinstance(values, np.ndarray) else build.graph.shape(value)
    if shape is None:
        raise MisfitError(f"the shape of '{value}' is unknown")
    if all(dim == 1 for dim in shape):
        return values.reshape(()) if isinstance(values, np.ndarray) else values
    if len(shape) == 1 or (rank is not None and len(shape) == rank and shape[-2] == 1):
        return values
    raise MisfitError(f"'{value}' of shape {list(shape)} is not one number a column")


def _scaled(build: QuantizedEmit, product: str, factor: Operand, bias: str) -> str:
    value = build.binary("Mul", product, factor)
    return build.named(build.binary("Add", value, build.floats(bias)) if bias else value)


@rule("com.microsoft::DynamicQuantizeLSTM", name="dynamic-quantize-lstm")
def dynamic_quantize_lstm(graph: Graph, node: Node) -> Outcome:
    """Its steps are quantized one by one, each by its own range: no LSTM of MNN's computes that."""
    reason = "each step is quantized by its own range; strip-activation-qdq makes an LSTM with float weights of it"
    return Refusal("dynamic-quantize-lstm", node.label, reason)


RULES = guarded(dynamic_quantize, dynamic_quantize_matmul, matmul_integer_to_float, dynamic_quantize_lstm)

"""Products of quantized numbers, in float: what ONNX calls QLinearConv, QLinearMatMul, ConvInteger, MatMulInteger.

Codes less their zero points are whole numbers, and so are their products and sums: float32 holds them exactly up to
2^24. MNN's product of int32 matrices is wrong, so longer sums are split where the exact integer is asked for. Where
the sum is scaled and rounded to 8 bits next, float32's rounding of it is a ten-thousandth of a step at most, and is
accepted.
"""

from __future__ import annotations

import math

import numpy as np
from onnx import TensorProto

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.passes._dequantize import Layout
from graphkit.passes._quantized_params import guarded
from graphkit.passes.lowering._quantized_emit import MisfitError, Operand, QuantizedEmit
from graphkit.passes.lowering.quantized_dynamic import column, one
from graphkit.rewrite import Outcome, Refusal, Rewrite, rule

_STEP = 255  # largest difference of two codes of 8 bits
_EXACT = 2**22  # sums below it are whole in float32 with room for MNN's fast convolutions to be a little off
_CHUNK = _EXACT // _STEP**2  # products whose sum stays exact, whatever the codes
_CHUNKS = 64
_PER_OUT = Layout(0, 0)
_CONV = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")


@rule("QLinearConv", "com.microsoft::QLinearConv", name="qlinear-conv")
def qlinear_conv(graph: Graph, node: Node) -> Outcome:
    """MNN refuses it: a convolution of whole numbers in float, then scaled, rounded and saturated."""
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias = (node.input(i) for i in range(9))
    rank = graph.rank(w)
    if rank is None or node.attr("channels_last", 0):
        return Refusal("qlinear-conv", node.label, "the rank of its weights is unknown, or its channels come last")
    if graph.rank(x) not in (None, rank):
        return Refusal("qlinear-conv", node.label, f"its input has {graph.rank(x)} axes and its weights {rank}")
    build = QuantizedEmit(graph, node)
    try:
        scale = build.spread(w_scale, _PER_OUT, (None,) * rank)
        factor = build.binary(
            "Div", build.binary("Mul", one(build, x_scale), _channels(build, scale, rank)), one(build, y_scale)
        )
        total = _conv(build, node, (x, x_zero, w, w_zero), bias)
        value = _requantized(build, build.binary("Mul", total, factor), y_zero)
    except MisfitError as error:
        return Refusal("qlinear-conv", node.label, str(error))
    return build.rewrite({node.outputs[0]: value}, "QLinearConv in float")


def _channels(build: QuantizedEmit, scale: Operand, rank: int) -> Operand:
    """A factor for each output channel, moved from the weights' axis 0 to the result's axis 1."""
    sizes = [1, -1, *[1] * (rank - 2)]
    if isinstance(scale, np.ndarray):
        return scale.reshape(sizes) if scale.ndim else scale
    shape = build.graph.shape(scale)
    single = shape is not None and all(dim == 1 for dim in shape)
    return scale if single else build.op("Reshape", scale, build.ints(*sizes))


def _conv(build: QuantizedEmit, node: Node, parts: tuple[str, str, str, str], bias: str = "") -> str:
    """The convolution of codes less their zero points, as float32."""
    x, x_zero, w, w_zero = parts
    graph = build.graph
    left = build.floats(x)
    left = build.binary("Sub", left, one(build, x_zero)) if x_zero else left
    right = build.steps(w, w_zero, _PER_OUT, graph.shape(w))
    inputs = [build.named(left), build.named(right)]
    inputs += [build.named(build.floats(bias))] if bias else []
    attrs = {key: value for key, value in node.attrs.items() if key in _CONV}
    return build.op("Conv", *inputs, **attrs)


def _requantized(build: QuantizedEmit, x: Operand, zero: str) -> str:
    dtype = build.graph.dtype(zero)
    return build.codes(build.rounded_codes(x, one(build, zero), dtype), dtype)


@rule("QLinearMatMul", name="qlinear-matmul")
def qlinear_matmul(graph: Graph, node: Node) -> Outcome:
    """MNN refuses it: a product of whole numbers in float, then scaled, rounded and saturated."""
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = node.inputs
    build = QuantizedEmit(graph, node)
    try:
        left = build.binary("Sub", build.floats(a), _row(build, a_zero, graph.rank(a)))
        right = build.binary("Sub", build.floats(b), column(build, b_zero, graph.rank(b)))
        scales = build.binary("Mul", _row(build, a_scale, graph.rank(a)), column(build, b_scale, graph.rank(b)))
        factor = build.binary("Div", scales, one(build, y_scale))
        total = build.op("MatMul", build.named(left), build.named(right))
        value = _requantized(build, build.binary("Mul", total, factor), y_zero)
    except MisfitError as error:
        return Refusal("qlinear-matmul", node.label, str(error))
    return build.rewrite({node.outputs[0]: value}, "QLinearMatMul in float")


def _row(build: QuantizedEmit, value: str, rank: int | None) -> Operand:
    """A parameter of the left-hand matrix: of one element, one for each row, or one for each row of each matrix."""
    values = build.floats(value)
    shape = values.shape if isinstance(values, np.ndarray) else build.graph.shape(value)
    if shape is None:
        raise MisfitError(f"the shape of '{value}' is unknown")
    if all(dim == 1 for dim in shape):
        return values.reshape(()) if isinstance(values, np.ndarray) else values
    if len(shape) == 1:
        return values.reshape(-1, 1) if isinstance(values, np.ndarray) else build.unsqueeze(values, 1)
    if len(shape) == rank and shape[-1] == 1:
        return values
    raise MisfitError(f"'{value}' of shape {list(shape)} is not one number a row")


@rule("ConvInteger", name="conv-integer")
def conv_integer(graph: Graph, node: Node) -> Outcome:
    """MNN refuses it: a convolution of whole numbers in float."""
    x, w, x_zero, w_zero = (node.input(i) for i in range(4))
    build = QuantizedEmit(graph, node)
    shape = graph.shape(w)
    if shape and graph.rank(x) not in (None, len(shape)):
        return Refusal("conv-integer", node.label, f"its input has {graph.rank(x)} axes and its weights {len(shape)}")
    try:
        total = _conv(build, node, (x, x_zero, w, w_zero))
    except MisfitError as error:
        return Refusal("conv-integer", node.label, str(error))
    sizes = [dim for dim in shape[1:] if isinstance(dim, int)] if shape else []
    known = shape is not None and len(sizes) == len(shape) - 1
    exact = known and _bound(build, w, w_zero, math.prod(sizes)) < _EXACT
    outcome = _integers(graph, node, build, total, exact=exact)
    return outcome or Refusal("conv-integer", node.label, "its sums may pass 2^22, and are asked for as integers")


@rule("MatMulInteger", name="matmul-integer")
def matmul_integer(graph: Graph, node: Node) -> Outcome:
    """MNN refuses it: a product of whole numbers in float, cut along the sum where that could pass 2^22."""
    a, b, a_zero, b_zero = (node.input(i) for i in range(4))
    build = QuantizedEmit(graph, node)
    try:
        left = build.floats(a)
        left = build.binary("Sub", left, _row(build, a_zero, graph.rank(a))) if a_zero else left
        right = build.floats(b)
        right = build.binary("Sub", right, column(build, b_zero, graph.rank(b))) if b_zero else right
    except MisfitError as error:
        return Refusal("matmul-integer", node.label, str(error))
    length = _length(graph, a, b)
    x, y = build.named(left), build.named(right)
    if _only_floats(graph, node) or (length is not None and _bound(build, b, b_zero, length) < _EXACT):
        return _integers(graph, node, build, build.op("MatMul", x, y), exact=True)
    if length is None or length > _CHUNK * _CHUNKS or (graph.rank(a) or 1) < 2 or (graph.rank(b) or 1) < 2:
        reason = "its sums may pass 2^22, and are asked for as integers"
        return Refusal("matmul-integer", node.label, reason)
    value = _in_chunks(build, x, y, (graph.rank(a) or 0, graph.rank(b) or 0), length)
    return build.rewrite({node.outputs[0]: value}, "MatMulInteger in float, in parts that are exact")


def _length(graph: Graph, a: str, b: str) -> int | None:
    """How many products are summed; None when unknown."""
    right, left = graph.shape(b), graph.shape(a)
    sizes = [right[max(len(right) - 2, 0)] if right else None, left[-1] if left else None]
    return next((dim for dim in sizes if isinstance(dim, int)), None)


def _bound(build: QuantizedEmit, w: str, w_zero: str, length: int) -> float:
    """Above all sums of `length` products with these weights; tight where the weights are constants."""
    codes, zero = build.graph.constant(w), build.graph.constant(w_zero) if w_zero else np.zeros(1)
    if codes is None or zero is None or zero.size != 1 or codes.size == 0:
        return float(length * _STEP**2)
    return float(np.abs(codes.astype(np.float64) - float(zero.reshape(-1)[0])).max() * length * _STEP)


def _only_floats(graph: Graph, node: Node) -> bool:
    """True when the integers are only read as float32, which holds no more than we compute."""
    out = node.outputs[0]
    users = graph.consumers(out)
    return not graph.is_output(out) and bool(users) and all(_to_float(user) for user in users)


def _to_float(user: Node) -> bool:
    return user.op == "Cast" and user.attr("to") == TensorProto.FLOAT


def _integers(graph: Graph, node: Node, build: QuantizedEmit, total: str, *, exact: bool) -> Rewrite | None:
    """The sums as int32, or as float where nothing but float is asked for; None when they are not exact."""
    if _only_floats(graph, node):
        casts = {user.outputs[0]: total for user in graph.consumers(node.outputs[0])}
        return build.rewrite(casts, f"{node.op_type} and its Cast in float")
    if not exact:
        return None
    return build.rewrite({node.outputs[0]: _whole(build, total)}, f"{node.op_type} in float")


def _whole(build: QuantizedEmit, total: str) -> str:
    """float32 to int32; Cast cuts off, and a fast convolution of MNN's is a little off: the nearest below + ½."""
    nearest = build.op("Floor", build.op("Add", total, build.number(0.5)))
    return build.cast(nearest, TensorProto.INT32)


def _in_chunks(build: QuantizedEmit, x: str, y: str, ranks: tuple[int, int], length: int) -> str:
    """A product whose partial sums are exact in float32, added up as int32."""
    total = ""
    for start in range(0, length, _CHUNK):
        end = min(start + _CHUNK, length)
        part = build.op("MatMul", build.slice(x, ranks[0] - 1, start, end), build.slice(y, ranks[1] - 2, start, end))
        whole = _whole(build, part)
        total = build.op("Add", total, whole) if total else whole
    return total


RULES = guarded(qlinear_conv, qlinear_matmul, conv_integer, matmul_integer)

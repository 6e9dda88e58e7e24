"""QuantizeLinear, DequantizeLinear and what moves their codes about, in float.

MNN 3.6 ignores the scales of DequantizeLinear at run time, drops or transposes what QuantizeLinear makes, and ends
on it in the converter. The values are those of the ONNX standard and of onnxruntime.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from graphkit.graph import Graph
from graphkit.node import Dim, Node
from graphkit.passes import _dequantize
from graphkit.passes._dequantize import DEQUANTIZE, QUANTIZE, RANGES, Layout, code_type, result_type, same_parameters
from graphkit.passes._quantized_params import guarded
from graphkit.passes.lowering import _integral
from graphkit.passes.lowering._quantized_emit import MisfitError, Operand, QuantizedEmit
from graphkit.rewrite import Outcome, Refusal, rule

_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16)


def pairs_with(graph: Graph, node: Node) -> Node | None:
    """The QuantizeLinear whose codes this DequantizeLinear reads and undoes."""
    write = graph.producer(node.inputs[0])
    if write is None or write.op not in QUANTIZE or not same_parameters(graph, write, node):
        return None
    return write


@rule(*QUANTIZE, name="quantize-linear")
def quantize(graph: Graph, node: Node) -> Outcome:
    """MNN's converter ends on QuantizeLinear, or loses its output: divide, round half to even, saturate, Cast."""
    users = graph.consumers(node.outputs[0])
    if users and not graph.is_output(node.outputs[0]):
        undone = (user.op in DEQUANTIZE and pairs_with(graph, user) is node for user in users)
        if all(undone) and code_type(graph, node) in RANGES:
            return None  # each is lowered as a pair
    dtype = code_type(graph, node)
    if dtype not in RANGES:
        return Refusal("quantize-linear", node.label, _no_codes(dtype))
    build = QuantizedEmit(graph, node)
    try:
        quotient, zero = _quotient(build, node)
        value = build.codes(build.rounded_codes(quotient, zero, dtype), dtype)
    except MisfitError as error:
        return Refusal("quantize-linear", node.label, str(error))
    return build.rewrite({node.outputs[0]: value}, f"{node.op_type} in float")


def _no_codes(dtype: int) -> str:
    kind = TensorProto.DataType.Name(dtype).lower() if dtype else "an unknown type"
    return f"codes of {kind} cannot be computed in float; strip-activation-qdq takes the pair out"


def _quotient(build: QuantizedEmit, node: Node) -> tuple[Operand, Operand | None]:
    """x / scale in float32, and the zero point."""
    graph, layout = build.graph, Layout.of(node)
    shape = graph.shape(node.inputs[0])
    scale = build.spread(node.inputs[1], layout, shape)
    zero = build.spread(node.input(2), layout, shape) if node.input(2) else None
    return build.binary("Div", build.floats(node.inputs[0]), scale), zero


@rule(*DEQUANTIZE, name="dequantize-linear")
def dequantize(graph: Graph, node: Node) -> Outcome:
    """MNN applies no scale at run time: Cast, subtract, multiply; with the QuantizeLinear before it no codes at all."""
    folded = _dequantize.folded(graph, node)
    if isinstance(folded, np.ndarray):
        name = graph.new_name(f"{node.inputs[0]}_float")
        build = QuantizedEmit(graph, node)
        build.constants[name] = folded
        return build.rewrite({node.outputs[0]: name}, "fold DequantizeLinear of a constant")
    if isinstance(folded, str):
        return Refusal("dequantize-linear", node.label, folded)
    build = QuantizedEmit(graph, node)
    try:
        steps = _steps(build, node)
        if isinstance(steps, Refusal):
            return steps
        scale = build.spread(node.inputs[1], Layout.of(node), _shape(graph, node))
        value = build.result(build.binary("Mul", steps, scale), result_type(graph, node))
    except MisfitError as error:
        return Refusal("dequantize-linear", node.label, str(error))
    return build.rewrite({node.outputs[0]: value}, f"{node.op_type} in float")


def _steps(build: QuantizedEmit, node: Node) -> Operand | Refusal:
    """Codes less zero point: from the codes, or straight from what was quantized."""
    graph = build.graph
    write = pairs_with(graph, node)
    dtype = code_type(graph, write) if write is not None else graph.dtype(node.inputs[0])
    if write is not None and dtype in RANGES:
        quotient, zero = _quotient(build, write)
        return build.rounded_steps(quotient, zero, dtype)
    if dtype not in RANGES and dtype != TensorProto.INT32:
        return Refusal("dequantize-linear", node.label, _no_codes(dtype))
    return build.steps(node.inputs[0], node.input(2), Layout.of(node), _shape(graph, node))


def _shape(graph: Graph, node: Node) -> tuple[Dim, ...] | None:
    """Shape of the codes; shape inference does not know it behind onnxruntime's own QuantizeLinear."""
    write = graph.producer(node.inputs[0])
    known = graph.shape(node.inputs[0])
    return known if known is not None or write is None or write.op not in QUANTIZE else graph.shape(write.inputs[0])


@rule("Cast", name="float-instead-of-codes")
def float_instead_of_codes(graph: Graph, node: Node) -> Outcome:
    """Whole numbers that go to a narrow type and back stay float in MNN."""
    source = whole_floats(graph, node.inputs[0]) if node.attr("to") in _FLOATS else None
    if source is None:
        return None
    build = QuantizedEmit(graph, node)
    value = build.result(source, node.attr("to"))
    return build.rewrite({node.outputs[0]: value}, "whole numbers stay float")


@rule(*sorted(_integral.MOVES), "Resize", "Concat", "Split", name="move-floats-not-codes")
def move_floats(graph: Graph, node: Node) -> Outcome:
    """Operators that only move codes move the floats they were cast from: MNN has few kernels for bytes, some wrong."""
    last = len(node.inputs) if node.op == "Concat" else 1
    sources = [whole_floats(graph, value) for value in node.inputs[:last]]
    kinds = {_cast_type(graph, value) for value in node.inputs[:last]}
    moves = node.op in ("Concat", "Split") or _integral.moves(node)
    if not moves or None in sources or len(kinds) != 1 or (node.op == "MaxPool" and any(node.outputs[1:])):
        return None
    build = QuantizedEmit(graph, node)
    ins = [*(value for value in sources if value), *node.inputs[last:]]
    first = build.op(node.op_type, *ins, outputs=len(node.outputs), **node.attrs)
    made = [first, *build.nodes[-1].output[1:]]
    kind = kinds.pop()
    outputs = {old: build.cast(new, kind) for old, new in zip(node.outputs, made, strict=True) if old}
    return build.rewrite(outputs, f"{node.op} of floats instead of codes")


def _cast_type(graph: Graph, value: str) -> int:
    """The type that a Cast makes; types of new values are not inferred yet."""
    node = graph.producer(value)
    return int(node.attr("to")) if node is not None and node.op == "Cast" else 0


def whole_floats(graph: Graph, value: str) -> str | None:
    """The float32 value that codes were cast from, when it holds whole numbers within their range."""
    node = graph.producer(value)
    if node is None or node.op != "Cast" or not _integral.is_float32(graph, node.inputs[0]):
        return None
    found, allowed = _integral.bounds(graph, node.inputs[0]), RANGES.get(node.attr("to"))
    inside = found is not None and allowed is not None and allowed[0] <= found[0] and found[1] <= allowed[1]
    return node.inputs[0] if inside else None


RULES = guarded(quantize, dequantize, float_instead_of_codes, move_floats)

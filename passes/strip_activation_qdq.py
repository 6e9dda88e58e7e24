"""The pass `strip-activation-qdq`: activations are no longer rounded to their quantized grid."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import onnx
from onnx import TensorProto

from graphkit import shapes
from graphkit.graph import Graph
from graphkit.node import Node, with_inputs
from graphkit.passes import _dequantize
from graphkit.passes._dequantize import DEQUANTIZE, QUANTIZE, RANGES, Layout, code_type, result_type, same_parameters
from graphkit.passes._emit import Emit
from graphkit.passes._float_lstm import FLOAT_LSTM
from graphkit.passes._quantized_params import guarded, unsound
from graphkit.passes.lowering._integral import MOVES
from graphkit.rewrite import Outcome, PassResult, Refusal, Rule, apply_rules

_NAME = "strip-activation-qdq"
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16)
_MOVES = MOVES - {"Relu"}  # of codes it cuts at zero, of numbers at the zero point
_DEPTH = 8


@dataclass(frozen=True)
class StripActivationQdq:
    """Take out QuantizeLinear → DequantizeLinear on activations: MNN then computes in float, not on a grid.

    This changes values on purpose, by up to half a step of the grid, and where values lay outside the quantized
    range by all that lies outside (`clip=true` keeps a Clip to the range). Pairs of equal scales and zero points go,
    also where operators that only move numbers stand between. The range of each is noted, so that it can be
    quantized again. Weights stay (see dequantize-weights). onnxruntime's DynamicQuantizeLSTM, which rounds at every
    step, becomes an LSTM with float weights.

    Refuses pairs that read with another scale than they wrote: they do more than round.
    """

    name: ClassVar[str] = _NAME
    summary: ClassVar[str] = "activations are no longer rounded: QuantizeLinear → DequantizeLinear goes; values change"
    changes_values: ClassVar[bool] = True

    clip: bool = field(default=False, metadata={"help": "keep a Clip to the quantized range"})

    def run(self, graph: Graph) -> PassResult:
        """Strip the graph and all graphs inside it."""
        shapes.infer(graph)
        ranges = _ranges(graph)
        result = apply_rules(graph, (*guarded(Rule(_NAME, DEQUANTIZE, self._strip), MOVED), FLOAT_LSTM))
        if not result.modified:
            return result
        left = {node.inputs[0] for inner in graph.walk() for op in QUANTIZE for node in inner.by_op(op)}
        notes = tuple(text for value, text in ranges.items() if value not in left)
        counters = {"stripped": len(notes), "float-lstm": result.counters.get("float-lstm", 0)}
        kept = {key: count for key, count in counters.items() if count}
        return PassResult(result.changes, result.refusals, kept, notes)

    def _strip(self, graph: Graph, node: Node) -> Outcome:
        write = graph.producer(node.inputs[0])
        if write is None or write.op not in QUANTIZE or _dequantize.constant(graph, write.inputs[0]) is not None:
            return None
        if not same_parameters(graph, write, node):
            reason = f"it reads with another scale or zero point than '{write.label}' wrote"
            return Refusal(_NAME, node.label, reason)
        source, to = write.inputs[0], result_type(graph, node)
        build = Emit(graph, node)
        value = source
        if self.clip:
            bounds = _range(graph, write)
            if bounds is None:
                return Refusal(_NAME, node.label, "its range is not known: scale or zero point are computed")
            value = _between(build, value, bounds, graph.dtype(source))
        value = build.cast(value, to) if to not in (0, graph.dtype(source)) else value
        return build.rewrite({node.outputs[0]: value}, f"'{source}' is not rounded any more")


def _ranges(graph: Graph) -> dict[str, str]:
    """A line for each quantized activation: its type and the numbers that it can hold."""
    lines: dict[str, str] = {}
    for inner in graph.walk():
        for op in QUANTIZE:
            for node in inner.by_op(op):
                if unsound(inner, node):
                    continue
                lines.setdefault(node.inputs[0], _line(inner, node))
    return lines


def _line(graph: Graph, node: Node) -> str:
    kind = TensorProto.DataType.Name(code_type(graph, node)).lower()
    bounds = _range(graph, node)
    if bounds is None:
        return f"'{node.inputs[0]}': {kind}, range not known"
    low, high = bounds
    if low.size == 1:
        return f"'{node.inputs[0]}': {kind}, range {float(low.flat[0]):g} … {float(high.flat[0]):g}"
    along = f"{low.size} ranges along axis {node.attr('axis', 1)}"
    return f"'{node.inputs[0]}': {kind}, {along}, widest {float(low.min()):g} … {float(high.max()):g}"


def _range(graph: Graph, node: Node) -> tuple[np.ndarray, np.ndarray] | None:
    """Least and largest numbers that the codes stand for, shaped as the scales; None when scales are computed."""
    scale, zero = graph.constant(node.inputs[1]), graph.constant(node.input(2)) if node.input(2) else None
    limits = RANGES.get(code_type(graph, node)) or _float_limits(code_type(graph, node))
    if scale is None or limits is None or (node.input(2) and zero is None):
        return None
    factors = scale.astype(np.float64)
    shift = np.zeros(()) if zero is None else zero.astype(np.float64)
    if not scale.size or (scale.shape != shift.shape and 1 not in (scale.size, shift.size)):
        return None
    return (limits[0] - shift) * factors, (limits[1] - shift) * factors


def _float_limits(dtype: int) -> tuple[float, float] | None:
    """Least and largest finite number of a float8 type."""
    if dtype in _FLOATS or dtype == TensorProto.UNDEFINED:
        return None
    every = np.arange(256, dtype=np.uint8).view(onnx.helper.tensor_dtype_to_np_dtype(dtype)).astype(np.float64)
    finite = every[np.isfinite(every)]
    return float(finite.min()), float(finite.max())


def _between(build: Emit, value: str, bounds: tuple[np.ndarray, np.ndarray], dtype: int) -> str:
    """The value cut to its range; Max and Min where every channel has its own."""
    low, high = bounds
    if low.size == 1:
        return build.clip(value, build.number(float(low.flat[0]), dtype), build.number(float(high.flat[0]), dtype))
    layout = Layout.of(build.near)
    shape = build.graph.shape(value)
    kind = onnx.helper.tensor_dtype_to_np_dtype(dtype)
    sizes = [-1 if i == layout.axis % len(shape) else 1 for i in range(len(shape))] if shape else [-1]
    edges = [build.const(edge.reshape(sizes).astype(kind), "edge") for edge in (low, high)]
    return build.op("Min", build.op("Max", value, edges[0]), edges[1])


def _move_up(graph: Graph, node: Node) -> Outcome:
    """DequantizeLinear behind an operator that only moves codes goes before it, next to its QuantizeLinear."""
    maker = graph.producer(node.inputs[0])
    if maker is None or not _is_move(maker) or not _same_scale(graph, node) or not _from_quantize(graph, maker):
        return None
    build = Emit(graph, node)
    floats = build.op(node.op_type, maker.inputs[0], *node.inputs[1:], domain=node.domain, **node.attrs)
    moved = with_inputs(maker.proto, [floats, *maker.inputs[1:]])
    moved.name = graph.new_name(f"{maker.label}/float")
    del moved.output[:]
    moved.output.append(graph.new_name(f"{moved.name}_out"))
    build.nodes.append(moved)
    return build.rewrite({node.outputs[0]: moved.output[0]}, f"{maker.op} on numbers, not on codes")


def _is_move(node: Node) -> bool:
    return node.op in _MOVES and not any(node.outputs[1:])


def _same_scale(graph: Graph, node: Node) -> bool:
    """True when there is one scale for the whole tensor."""
    shape = graph.shape(node.inputs[1])
    return shape is not None and all(dim == 1 for dim in shape)


def _from_quantize(graph: Graph, node: Node) -> bool:
    maker: Node | None = node
    for _ in range(_DEPTH):
        if maker is None or not _is_move(maker):
            break
        maker = graph.producer(maker.inputs[0])
    return maker is not None and maker.op in QUANTIZE


MOVED = Rule("numbers-not-codes", DEQUANTIZE, _move_up)

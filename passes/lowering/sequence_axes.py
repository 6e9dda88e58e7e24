"""Writes into a cache along its sequence axis, and sequences read backwards.

Semantics: ONNX Operators, TensorScatter (opset 24) and ReverseSequence (opset 10).
"""

from __future__ import annotations

import math

import numpy as np
from onnx import TensorProto

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.passes._emit import Emit
from graphkit.passes.lowering._tools import refuse, reshape, static_shape
from graphkit.rewrite import Outcome, rule


@rule("TensorScatter", name="tensor-scatter")
def tensor_scatter(graph: Graph, node: Node) -> Outcome:
    """TensorScatter, which MNN does not have: ScatterND of the rows that the write indices name."""
    cache, update, at = node.inputs[0], node.inputs[1], node.input(2)
    shape, new = static_shape(graph, cache), static_shape(graph, update)
    if shape is None or new is None:
        return refuse("tensor-scatter", node, "it needs static shapes of the cache and of the update")
    axis = node.attr("axis", -2) % len(shape)
    if axis == 0:
        return refuse("tensor-scatter", node, "its axis is the batch axis")
    build, length = Emit(graph, node), shape[axis]
    lead = shape[:axis]  # batch and what lies between it and the sequence
    steps = np.arange(new[axis], dtype=np.int64)
    starts = np.arange(math.prod(lead), dtype=np.int64).reshape(*lead, 1) * length
    places = build.const(steps, "steps")
    if at:
        first = reshape(build, build.cast(at, TensorProto.INT64), shape[0], *([1] * axis))
        places = build.op("Add", first, places)
        if node.attr("mode", "linear") == "circular":
            size = build.number(length, TensorProto.INT64)
            beyond = build.op("Greater", places, build.number(length - 1, TensorProto.INT64))
            places = build.op("Where", beyond, build.op("Sub", places, size), places)
    rows = reshape(build, build.op("Add", places, build.const(starts, "starts")), -1, 1)
    rest = shape[axis + 1 :]
    value = build.op("ScatterND", reshape(build, cache, -1, *rest), rows, reshape(build, update, -1, *rest))
    return build.rewrite(
        {node.outputs[0]: reshape(build, value, *shape)}, "ScatterND of rows in place of TensorScatter"
    )


@rule("ReverseSequence", name="reverse-sequence")
def reverse_sequence(graph: Graph, node: Node) -> Outcome:
    """Lengths of 0 and unsigned bytes, for which MNN computes no shape: length 1 leaves a sequence as well."""
    x, lengths, dtype = *node.inputs, graph.dtype(node.inputs[0])
    known = graph.constant(lengths)
    positive = bool((known > 0).all()) if known is not None else _is_held(graph, lengths)
    if positive and dtype != TensorProto.UINT8:
        return None
    build = Emit(graph, node)
    if not positive:
        one = build.number(1, TensorProto.INT64)
        lengths = build.op("Where", build.op("Greater", one, lengths), one, lengths)
    value = build.cast(x, TensorProto.INT32) if dtype == TensorProto.UINT8 else x
    value = build.op("ReverseSequence", value, lengths, **node.attrs)
    value = build.cast(value, dtype) if dtype == TensorProto.UINT8 else value
    return build.rewrite({node.outputs[0]: value}, "ReverseSequence in the form that MNN runs")


def _is_held(graph: Graph, lengths: str) -> bool:
    """True for lengths that this rule made at least 1."""
    maker = graph.producer(lengths)
    return maker is not None and maker.op == "Where" and graph.scalar(maker.inputs[1]) == 1


RULES = (tensor_scatter, reverse_sequence)

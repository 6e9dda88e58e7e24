"""Operators spelled so that MNN needs the fewest of its own; the values stay the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from onnx import TensorProto

from graphkit.graph import Graph, Node
from graphkit.passes.lowering.convolutions import conv_3d_rectified, conv_transpose_3d_bias
from graphkit.rewrite import Builder, Outcome, PassResult, apply_rules, rule

_TO_END = 2**31 - 1  # MNN computes shapes in 32 bits
_POOLED = (TensorProto.FLOAT, TensorProto.FLOAT16)  # ReduceMean takes integers and doubles too


def _indices(graph: Graph, node: Node) -> np.ndarray | None:
    """The constant indices of a Gather when they are consecutive, rank 0 or 1."""
    indices = graph.constant(node.inputs[1])
    if indices is None or indices.ndim > 1 or indices.size == 0:
        return None
    flat = indices.reshape(-1).astype(np.int64)
    return indices if np.array_equal(flat, np.arange(flat[0], flat[0] + flat.size)) else None


@rule("Gather", name="gather-of-shape")
def gather_of_shape(graph: Graph, node: Node) -> Outcome:
    """Shape → Gather of consecutive dims: Shape has `start` and `end` from opset 15 (ONNX Operators, Shape)."""
    shape = graph.producer(node.inputs[0])
    if shape is None or shape.op != "Shape" or graph.opset() < 15:
        return None
    indices, rank = _indices(graph, node), graph.rank(shape.inputs[0])
    if indices is None or rank is None:
        return None
    first, last = _bounds(shape, rank)
    start = int(indices.reshape(-1)[0])
    start = start + first if start >= 0 else start + last
    end = start + indices.size
    if not first <= start < end <= last:
        return None
    build = Builder(graph, node)
    value = build.op("Shape", shape.inputs[0], start=start, end=end)
    if indices.ndim == 0:
        value = build.op("Squeeze", value, build.ints(0))
    return build.rewrite({node.outputs[0]: value}, "Shape of some dims in place of Gather")


def _bounds(shape: Node, rank: int) -> tuple[int, int]:
    """The dims that a Shape node gives, as start and end within the rank."""
    start, end = shape.attr("start", 0), shape.attr("end", rank)
    start, end = (value + rank if value < 0 else value for value in (start, end))
    return min(max(start, 0), rank), min(max(end, 0), rank)


@rule("Gather", name="gather-to-slice")
def gather_to_slice(graph: Graph, node: Node) -> Outcome:
    """Gather of consecutive constant indices from a computed value: MNN makes 13 operators of it, 5 of Slice."""
    if graph.opset() < 13 or graph.is_constant(node.inputs[0]):
        return None
    indices = _indices(graph, node)
    axis = int(node.attr("axis", 0))
    rank = graph.rank(node.inputs[0])
    if indices is None or rank is None:
        return None
    first = int(indices.reshape(-1)[0])
    last = first + indices.size
    if first < 0 < last:
        return None
    axis = axis + rank if axis < 0 else axis
    build = Builder(graph, node)
    ends = build.ints(_TO_END if last == 0 else last)
    value = build.op("Slice", node.inputs[0], build.ints(first), ends, build.ints(axis))
    if indices.ndim == 0:
        value = build.op("Squeeze", value, build.ints(axis))
    return build.rewrite({node.outputs[0]: value}, "Slice in place of Gather")


@rule("ReduceMean", name="spatial-mean")
def spatial_mean(graph: Graph, node: Node) -> Outcome:
    """Mean over all spatial axes, dims kept: a pool stays in the packed layout of the convolutions around it."""
    rank = graph.rank(node.inputs[0])
    axes = node.attr("axes") if len(node.inputs) < 2 else graph.constant(node.inputs[1])
    if rank != 4 or axes is None or graph.dtype(node.inputs[0]) not in _POOLED or not node.attr("keepdims", 1):
        return None
    if sorted(int(axis) % rank for axis in axes) != [2, 3] or not _near_conv(graph, node):
        return None
    build = Builder(graph, node)
    value = build.op("GlobalAveragePool", node.inputs[0])
    return build.rewrite({node.outputs[0]: value}, "GlobalAveragePool in place of ReduceMean")


def _near_conv(graph: Graph, node: Node) -> bool:
    """True when a convolution reads the mean, or makes what it is taken of (through elementwise nodes)."""
    if any(user.op == "Conv" for user in graph.consumers(node.outputs[0])):
        return True
    maker, hops = graph.producer(node.inputs[0]), 0
    while maker is not None and maker.op not in ("Conv", "ConvTranspose") and maker.inputs and hops < 4:
        maker, hops = graph.producer(maker.inputs[0]), hops + 1
    return maker is not None and maker.op in ("Conv", "ConvTranspose")


# Fusions may have made the last two anew.
RULES = (gather_of_shape, gather_to_slice, spatial_mean, conv_3d_rectified, conv_transpose_3d_bias)


@dataclass(frozen=True)
class SpellForMnn:
    """Spell operators so that MNN needs fewer of its own; each form was chosen by MNN's operator count.

    Rewrites Gather of constant consecutive indices to Slice (13 → 5 MNN operators) or, on a Shape, to
    Shape with start and end (14 → 2, opset 15), and means over height and width beside convolutions to
    GlobalAveragePool (no change of layout). Takes out again what MNN loses of 3-D convolutions when other passes
    have fused it: the bias of ConvTranspose, and a Relu that is an output of the model. Leaves indices that are
    not constant or not consecutive, and values of unknown rank.
    """

    name: ClassVar[str] = "spell-for-mnn"
    summary: ClassVar[str] = "Gather, Shape and spatial means in the forms that cost MNN least"

    def run(self, graph: Graph) -> PassResult:
        """Rewrite the graph in place."""
        return apply_rules(graph, RULES)

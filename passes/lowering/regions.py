"""RoiAlign with the max mode, which MNN takes for the mean, and boxes by their centers, which MNN takes for corners.

Semantics: ONNX Operators, RoiAlign 10–22: a bin is the greatest of its samples' four weighted neighbours;
NonMaxSuppression 10 and 11: a box is [y1, x1, y2, x2], or [x, y, width, height] around its center.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.passes._emit import Emit
from graphkit.passes.lowering._tools import refuse, reshape, static_shape
from graphkit.rewrite import Outcome, rule

_DIMS = "its shapes must be static, of float32"


@dataclass(frozen=True)
class _Line:
    """The samples of all regions along one axis: lower and upper neighbour (int64), and their weights; [R, samples]."""

    places: tuple[str, str]
    weights: tuple[str, str]
    samples: int


@rule("RoiAlign", name="roi-align-max")
def roi_align_max(graph: Graph, node: Node) -> Outcome:
    """Max mode: every neighbour of every sample by one Gather, weighted, and the greatest of each bin."""
    if node.attr("mode", "avg") != "max":
        return None
    x, rois, batches = node.inputs
    shape, regions, ratio = static_shape(graph, x), static_shape(graph, rois), node.attr("sampling_ratio", 0)
    if shape is None or regions is None or graph.dtype(x) != TensorProto.FLOAT:
        return refuse("roi-align-max", node, _DIMS)
    if ratio < 1:
        return refuse("roi-align-max", node, "sampling_ratio 0 takes as many samples as each region is large")
    build, count = Emit(graph, node), regions[0]
    high, wide = node.attr("output_height", 1), node.attr("output_width", 1)
    half = graph.opset() >= 16 and node.attr("coordinate_transformation_mode", "half_pixel") == "half_pixel"
    corners = build.op("Mul", rois, build.number(node.attr("spatial_scale", 1.0)))
    corners = build.op("Sub", corners, build.number(0.5)) if half else corners
    left, top, right, bottom = build.split(corners, 1, [1, 1, 1, 1])
    across = _line(build, left, right, wide, ratio, shape[3], half)
    down = _line(build, top, bottom, high, ratio, shape[2], half)
    planes = build.op("Mul", build.cast(batches, TensorProto.INT64), build.number(shape[2], TensorProto.INT64))
    planes = reshape(build, planes, count, 1, 1)
    rows = reshape(build, build.op("Transpose", x, perm=[0, 2, 3, 1]), -1, shape[1])
    best = ""
    for row, of_row in zip(down.places, down.weights, strict=True):
        lines = build.op("Add", planes, reshape(build, row, count, down.samples, 1))
        lines = build.op("Mul", lines, build.number(shape[3], TensorProto.INT64))
        for column, of_column in zip(across.places, across.weights, strict=True):
            at = build.op("Add", lines, reshape(build, column, count, 1, across.samples))
            weights = build.op("Mul", reshape(build, of_row, count, down.samples, 1),
                               reshape(build, of_column, count, 1, across.samples))  # fmt: skip
            part = build.op("Mul", build.op("Gather", rows, at), build.unsqueeze(weights, 3))
            best = build.op("Max", best, part) if best else part
    bins = reshape(build, best, count * high, ratio, wide, ratio * shape[1])
    bins = build.reduce("ReduceMax", bins, [1], keepdims=False)
    bins = build.reduce("ReduceMax", reshape(build, bins, count, high * wide, ratio, shape[1]), [2], keepdims=False)
    value = reshape(build, build.op("Transpose", bins, perm=[0, 2, 1]), count, shape[1], high, wide)
    return build.rewrite({node.outputs[0]: value}, "RoiAlign (max) by Gather")


def _line(build: Emit, start: str, end: str, bins: int, ratio: int, size: int, half: bool) -> _Line:
    """Where the samples of `bins` bins lie between `start` and `end` ([R, 1]), held inside as ONNX does."""
    length = build.op("Sub", end, start)
    length = length if half else build.op("Max", length, build.number(1.0))
    parts = (np.arange(bins * ratio, dtype=np.float32)[None, :] + np.float32(0.5)) / np.float32(bins * ratio)
    at = build.op("Add", start, build.op("Mul", length, build.const(parts.astype(np.float32), "parts")))
    middle, reach = build.number((size - 1) / 2), build.number((size + 1) / 2)
    outside = build.op("Greater", build.op("Abs", build.op("Sub", at, middle)), reach)
    held = build.op("Min", build.op("Max", at, build.number(0.0)), build.number(size - 1.0))
    low = build.op("Floor", held)
    high = build.op("Min", build.op("Add", low, build.number(1.0)), build.number(size - 1.0))
    above = build.op("Sub", held, low)
    below = build.op("Sub", build.number(1.0), above)
    nothing = build.number(0.0)
    weights = [build.op("Where", outside, nothing, weight) for weight in (below, above)]
    places = [build.cast(place, TensorProto.INT64) for place in (low, high)]
    return _Line((places[0], places[1]), (weights[0], weights[1]), bins * ratio)


# [x, y, width, height] times this is [y1, x1, y2, x2].
_CORNERS = ((0, 1, 0, 1), (1, 0, 1, 0), (0, -0.5, 0, 0.5), (-0.5, 0, 0.5, 0))


@rule("NonMaxSuppression", name="boxes-by-corners")
def boxes_by_corners(graph: Graph, node: Node) -> Outcome:
    """center_point_box, which MNN ignores: corners computed by one MatMul."""
    if not node.attr("center_point_box", 0):
        return None
    emit = Emit(graph, node)
    corners = emit.op("MatMul", node.inputs[0], emit.const(np.array(_CORNERS, np.float32)))
    kept = emit.op("NonMaxSuppression", corners, *node.inputs[1:])
    return emit.rewrite({node.outputs[0]: kept}, "NonMaxSuppression of boxes by their corners")


RULES = (roi_align_max, boxes_by_corners)

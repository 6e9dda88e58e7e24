"""Operators of onnxruntime that ONNX has by now, or that only move data (its ContribOperators.md)."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.passes._emit import Emit
from graphkit.rewrite import Outcome, Rule, rule

_SINCE = {"Trilu": 14, "Pad": 11, "GatherND": 11}


@rule("com.microsoft::Trilu", "com.microsoft::Pad", "com.microsoft::GatherND", name="contrib-twin")
def contrib_twin(graph: Graph, node: Node) -> Outcome:
    """ONNX has the same operator from some opset on; further rules and passes know that one."""
    build, since = Emit(graph, node), _SINCE[node.op_type]
    if build.opset < since:
        return contrib_twin.refuse(node, f"ONNX has {node.op_type} from opset {since}, the model is {build.opset}")
    y = build.op(node.op_type, *node.inputs, **node.attrs)
    return build.rewrite({node.outputs[0]: y}, f"{node.op_type} of ONNX itself")


@rule("com.microsoft::Range", name="contrib-range")
def contrib_range(graph: Graph, node: Node) -> Outcome:
    """Range whose step may be left out, and whose bounds may have a shape of [1]."""
    build, dtype = Emit(graph, node), graph.dtype(node.inputs[0])
    ranks = [graph.rank(name) for name in node.inputs if name]
    if build.opset < 11 or not dtype or None in ranks:
        return contrib_range.refuse(node, "the type of the bounds is unknown, or the opset is below 11")
    bounds = [build.squeeze(name, 0) if rank else name for name, rank in zip(node.inputs, ranks, strict=False)]
    bounds = bounds if len(bounds) == 3 else [*bounds, build.number(1, dtype)]
    return build.rewrite({node.outputs[0]: build.op("Range", *bounds)}, "Range of ONNX itself")


@rule("com.microsoft::GridSample", name="contrib-grid-sample")
def contrib_grid_sample(graph: Graph, node: Node) -> Outcome:
    """GridSample of ONNX came with opset 16; its modes were renamed in 20."""
    build, mode = Emit(graph, node), node.attr("mode", "bilinear")
    if build.opset < 16:
        return contrib_grid_sample.refuse(node, f"ONNX has GridSample from opset 16, the model is {build.opset}")
    renamed = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode) if build.opset >= 20 else mode
    attrs = {"padding_mode": node.attr("padding_mode", "zeros"), "align_corners": node.attr("align_corners", 0)}
    y = build.op("GridSample", *node.inputs, mode=renamed, **attrs)
    return build.rewrite({node.outputs[0]: y}, "GridSample of ONNX itself")


@rule("com.microsoft::ExpandDims", name="expand-dims")
def expand_dims(graph: Graph, node: Node) -> Outcome:
    """Unsqueeze with one axis."""
    axis, rank, build = graph.scalar(node.inputs[1]), graph.rank(node.inputs[0]), Emit(graph, node)
    if axis is None or (axis < 0 and rank is None):
        return expand_dims.refuse(node, "the axis is not constant, or the rank is unknown")
    place = int(axis) if axis >= 0 else int(axis) + 1 + (rank or 0)
    return build.rewrite({node.outputs[0]: build.unsqueeze(node.inputs[0], place)}, "Unsqueeze")


@rule("com.microsoft::UnfoldTensor", name="unfold-tensor")
def unfold_tensor(graph: Graph, node: Node) -> Outcome:
    """All windows of one axis: a Gather of their indices, and the window as the last axis."""
    shape, build = graph.shape(node.inputs[0]), Emit(graph, node)
    size, step = int(node.attr("size")), int(node.attr("step", 1))
    axis = int(node.attr("dim", -1)) % len(shape) if shape else 0
    length = shape[axis] if shape else None
    if shape is None or not isinstance(length, int):
        return unfold_tensor.refuse(node, "the size of the unfolded axis is unknown")
    starts = np.arange(0, length - size + 1, step, dtype=np.int64)
    windows = build.const(starts[:, None] + np.arange(size, dtype=np.int64), "windows")
    y = build.op("Gather", node.inputs[0], windows, axis=axis)
    rank = len(shape)
    order = [i for i in range(rank + 1) if i != axis + 1]
    y = build.op("Transpose", y, perm=[*order, axis + 1]) if axis != rank - 1 else y
    return build.rewrite({node.outputs[0]: y}, "windows by Gather")


@rule("com.microsoft::TorchEmbedding", name="torch-embedding")
def torch_embedding(graph: Graph, node: Node) -> Outcome:
    """A lookup; what it says about gradients does not matter here."""
    build = Emit(graph, node)
    ids = node.inputs[1]
    ids = ids if graph.dtype(ids) == TensorProto.INT64 else build.cast(ids, TensorProto.INT64)
    return build.rewrite({node.outputs[0]: build.op("Gather", node.inputs[0], ids)}, "a lookup by Gather")


RULES: tuple[Rule, ...] = (
    contrib_twin,
    contrib_range,
    contrib_grid_sample,
    expand_dims,
    unfold_tensor,
    torch_embedding,
)

"""DeformConv and Col2Im, which MNN does not have, by operators that it runs fast.

Semantics: ONNX Operators, DeformConv 19–22 and Col2Im 18.
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


@rule("DeformConv", name="deform-conv")
def deform_conv(graph: Graph, node: Node) -> Outcome:
    """Every tap sampled by one GridSample (linear, zeros), then the weights as a MatMul."""
    shape, weights = static_shape(graph, node.inputs[0]), static_shape(graph, node.inputs[1])
    offsets = static_shape(graph, node.inputs[2])
    if shape is None or weights is None or offsets is None or len(shape) != 4:
        return refuse("deform-conv", node, "it needs static shapes and two spatial dims")
    if graph.dtype(node.inputs[0]) != TensorProto.FLOAT:
        return refuse("deform-conv", node, "it needs float32")
    build, deformed, group = Emit(graph, node), node.attr("offset_group", 1), node.attr("group", 1)
    batch, channels, taps, (high, wide) = shape[0], shape[1], weights[2] * weights[3], offsets[2:]
    columns = []
    for index in range(deformed):
        per, first = channels // deformed, index * (channels // deformed)
        part = node.inputs[0] if deformed == 1 else build.slice(node.inputs[0], 1, first, first + per)
        grid = _grid(build, node, index, shape, weights, offsets)
        sampled = build.op("GridSample", part, grid, mode="linear" if build.opset >= 20 else "bilinear",
                           padding_mode="zeros", align_corners=0)  # fmt: skip
        sampled = reshape(build, sampled, batch, per, taps, high * wide)
        if node.input(4):
            mask = build.slice(node.inputs[4], 1, index * taps, (index + 1) * taps)
            sampled = build.op("Mul", sampled, reshape(build, mask, batch, 1, taps, high * wide))
        columns.append(sampled)
    value = columns[0] if deformed == 1 else build.op("Concat", *columns, axis=1)
    value = reshape(build, value, batch, group, channels // group * taps, high * wide)
    kernel = reshape(build, node.inputs[1], group, weights[0] // group, weights[1] * taps)
    value = reshape(build, build.op("MatMul", kernel, value), batch, weights[0], high, wide)
    if node.input(3):
        value = build.op("Add", value, reshape(build, node.inputs[3], weights[0], 1, 1))
    return build.rewrite({node.outputs[0]: value}, "GridSample and MatMul in place of DeformConv")


def _grid(
    build: Emit, node: Node, index: int, shape: tuple[int, ...], weights: tuple[int, ...], offsets: tuple[int, ...]
) -> str:
    """Where the taps of one offset group lie, as a grid for GridSample: [N, taps, h·w, (x, y)]."""
    strides, steps, pads = node.attr("strides", [1, 1]), node.attr("dilations", [1, 1]), node.attr("pads", [0] * 4)
    taps, (high, wide) = weights[2] * weights[3], offsets[2:]
    rows, columns = np.meshgrid(np.arange(weights[2]) * steps[0], np.arange(weights[3]) * steps[1], indexing="ij")
    down, along = np.meshgrid(np.arange(high) * strides[0] - pads[0], np.arange(wide) * strides[1] - pads[1],
                              indexing="ij")  # fmt: skip
    base = np.stack([rows.reshape(-1, 1) + down.reshape(1, -1), columns.reshape(-1, 1) + along.reshape(1, -1)], 1)
    moved = build.slice(node.inputs[2], 1, index * 2 * taps, (index + 1) * 2 * taps)
    at = reshape(build, moved, shape[0], taps, 2, high * wide)
    at = build.op("Add", at, build.const(base.astype(np.float32), "taps"))
    sizes = np.array(shape[2:], np.float32).reshape(2, 1)
    at = build.op("Mul", at, build.const(2 / sizes, "scale"))
    at = build.op("Transpose", build.op("Add", at, build.const(1 / sizes - 1, "shift")), perm=[0, 1, 3, 2])
    return build.op("Gather", at, build.ints(1, 0), axis=3)


@rule("Col2Im", name="col2im")
def col2im(graph: Graph, node: Node) -> Outcome:
    """Blocks added up in an image: a transposed convolution whose weights are the identity."""
    shape, image, block = graph.shape(node.inputs[0]), graph.constant(node.inputs[1]), node.inputs[2]
    kernel, rows = graph.constant(block), shape[1] if shape is not None else None
    if image is None or kernel is None or not isinstance(rows, int) or not 1 <= kernel.size <= 3:
        return refuse("col2im", node, "it needs static sizes and one to three spatial dims")
    count = kernel.size
    strides, steps = node.attr("strides", [1] * count), node.attr("dilations", [1] * count)
    pads = node.attr("pads", [0] * (2 * count))
    if count == 3 and max(steps) > 1:
        return refuse("col2im", node, "onnxruntime and the standard differ on dilations in three dims")
    sizes, taps = [int(size) for size in kernel.reshape(-1)], int(kernel.prod())
    wanted = [int(size) for size in image.reshape(-1)]
    room = [wanted[i] + pads[i] + pads[i + count] - (sizes[i] - 1) * steps[i] - 1 for i in range(count)]
    blocks = [room[i] // strides[i] + 1 for i in range(count)]
    channels = rows // taps
    build, dtype = Emit(graph, node), graph.dtype(node.inputs[0])
    value = build.cast(node.inputs[0], TensorProto.FLOAT) if dtype != TensorProto.FLOAT else node.inputs[0]
    full = [(size - 1) * step + 1 for size, step in zip(sizes, steps, strict=True)]
    weights = np.zeros((taps, 1, *full), np.float32)
    marks = np.unravel_index(np.arange(taps), sizes)
    weights[(np.arange(taps), 0, *(mark * step for mark, step in zip(marks, steps, strict=True)))] = 1
    value = reshape(build, value, -1, taps, *blocks)
    value = build.op("ConvTranspose", value, build.const(weights, "identity"), strides=strides, pads=pads, group=1,
                     dilations=[1] * count, kernel_shape=full,
                     output_padding=[room[i] % strides[i] for i in range(count)])  # fmt: skip
    value = reshape(build, value, -1, channels, *wanted)
    value = build.cast(value, dtype) if dtype != TensorProto.FLOAT else value
    return build.rewrite({node.outputs[0]: value}, f"ConvTranspose in place of Col2Im ({math.prod(blocks)} blocks)")


RULES = (deform_conv, col2im)

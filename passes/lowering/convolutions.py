"""Convolutions that MNN refuses or computes wrong: computed weights in 3-D, dilations in 3-D, paddings, groups.

MNN 3.6.1 takes computed weights in one and two dims, drops dilations and the bias of a transposed one in three, reads
SAME_LOWER as SAME_UPPER and `output_shape` wrong, and mixes the groups of a transposed convolution with computed
weights or in three dims. Semantics: ONNX Operators, Conv, ConvTranspose and Col2Im.
"""

from __future__ import annotations

import math

import numpy as np
from onnx import TensorProto

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.passes._emit import Emit
from graphkit.passes.lowering._tools import add, concat, pad_amounts, refuse, reshape, static_shape
from graphkit.rewrite import Outcome, rule

_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16)
_RELU6 = 6.0  # the upper bound at which MNN fuses a Clip


@rule("Conv", name="conv-same-lower")
def conv_same_lower(graph: Graph, node: Node) -> Outcome:
    """SAME_LOWER of sizes that are not known, which MNN takes for SAME_UPPER: a Pad with computed amounts."""
    shape, weights = graph.shape(node.inputs[0]), static_shape(graph, node.inputs[1])
    if node.attr("auto_pad", "NOTSET") != "SAME_LOWER":
        return None
    if shape is None or weights is None or graph.opset() < 11:
        return refuse("conv-same-lower", node, "the shape of its weights is not known")
    build, count = Emit(graph, node), len(weights) - 2
    strides, dilations = node.attr("strides", [1] * count), node.attr("dilations", [1] * count)
    begins, ends = [build.ints(0, 0)], [build.ints(0, 0)]
    for axis in range(count):
        reach = (weights[axis + 2] - 1) * dilations[axis] + 1
        total = _same_total(build, node.inputs[0], axis + 2, strides[axis], reach)
        half = build.op("Div", total, build.ints(2))
        begins.append(build.op("Sub", total, half))
        ends.append(half)
    padded = build.op("Pad", node.inputs[0], concat(build, *begins, *ends))
    attrs = {key: value for key, value in node.attrs.items() if key not in ("auto_pad", "pads")}
    value = build.op("Conv", padded, *node.inputs[1:], **attrs, pads=[0] * (2 * count))
    return build.rewrite({node.outputs[0]: value}, "Pad and Conv in place of SAME_LOWER")


def _same_total(build: Emit, x: str, axis: int, stride: int, reach: int) -> str:
    """max((⌈size/stride⌉ − 1)·stride + reach − size, 0), as a vector of one element."""
    size = build.dim(x, axis)
    last = build.op("Div", build.op("Add", size, build.ints(stride - 1)), build.ints(stride))
    needed = build.op("Add", build.op("Mul", last, build.ints(stride)), build.ints(reach - stride))
    short, none = build.op("Sub", needed, size), build.ints(0)
    return build.op("Where", build.op("Greater", short, none), short, none)  # Max takes integers from opset 12 on


@rule("Conv", "ConvTranspose", name="conv-computed-bias")
def conv_computed_bias(graph: Graph, node: Node) -> Outcome:
    """A computed bias beside constant weights, which MNN refuses or drops: an Add behind the convolution."""
    bias, rank = node.input(2), graph.rank(node.inputs[1])
    if not bias or graph.is_constant(bias) or not graph.is_constant(node.inputs[1]) or rank is None:
        return None
    build = Emit(graph, node)
    value = build.op(node.op_type, *node.inputs[:2], **node.attrs)
    value = add(build, value, build.unsqueeze(bias, *range(1, rank - 1)))
    return build.rewrite({node.outputs[0]: value}, f"{node.op_type} with its computed bias behind it")


@rule("Conv", "ConvTranspose", name="conv-3d-dilations")
def conv_3d_dilations(graph: Graph, node: Node) -> Outcome:
    """Dilations in three dims, which MNN drops: zeros between the weights."""
    weights = graph.constant(node.inputs[1])
    if weights is None or weights.ndim != 5 or all(step == 1 for step in node.attr("dilations", [1])):
        return None
    steps, sizes = node.attr("dilations"), weights.shape[2:]
    spread = [(size - 1) * step + 1 for size, step in zip(sizes, steps, strict=True)]
    full = np.zeros((*weights.shape[:2], *spread), weights.dtype)
    full[:, :, :: steps[0], :: steps[1], :: steps[2]] = weights
    build = Emit(graph, node)
    attrs = node.attrs | {"dilations": [1] * 3, "kernel_shape": spread}
    value = build.op(node.op_type, node.inputs[0], build.const(full, "weights"), *node.inputs[2:], **attrs)
    return build.rewrite({node.outputs[0]: value}, f"3-D {node.op_type} with its dilation in the weights")


@rule("Conv", name="conv-3d-computed")
def conv_3d_computed(graph: Graph, node: Node) -> Outcome:
    """Weights that are computed, which MNN refuses in three dims: a sum of 2-D convolutions over the depth."""
    shape, weights = static_shape(graph, node.inputs[0]), static_shape(graph, node.inputs[1])
    if graph.rank(node.inputs[1]) != 5 or graph.is_constant(node.inputs[1]):
        return None
    if shape is None or weights is None or node.attr("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return refuse("conv-3d-computed", node, "computed weights in three dims need static shapes")
    build = Emit(graph, node)
    strides, steps = node.attr("strides", [1] * 3), node.attr("dilations", [1] * 3)
    pads = node.attr("pads", [0] * 6) if node.attr("auto_pad", "NOTSET") == "NOTSET" else [0] * 6
    x = pad_amounts(build, node.inputs[0], [0, 0, pads[0], 0, 0], [0, 0, pads[3], 0, 0])
    depth = (shape[2] + pads[0] + pads[3] - (weights[2] - 1) * steps[0] - 1) // strides[0] + 1
    planes, total = build.op("Transpose", x, perm=[0, 2, 1, 3, 4]), ""
    for tap in range(weights[2]):
        start = tap * steps[0]
        part = build.slice(planes, 1, start, start + (depth - 1) * strides[0] + 1, strides[0])
        part = reshape(build, part, shape[0] * depth, *shape[1:2], *shape[3:])
        kernel = reshape(build, build.slice(node.inputs[1], 2, tap, tap + 1), *weights[:2], *weights[3:])
        bias = [node.input(2)] if node.input(2) and not total else []
        done = build.op("Conv", part, kernel, *bias, strides=strides[1:], dilations=steps[1:],
                        group=node.attr("group", 1), pads=[*pads[1:3], *pads[4:6]],
                        kernel_shape=list(weights[3:]))  # fmt: skip
        total = add(build, total, done) if total else done
    sizes = [
        (shape[i + 2] + pads[i] + pads[i + 3] - (weights[i + 2] - 1) * steps[i] - 1) // strides[i] + 1 for i in (1, 2)
    ]
    value = reshape(build, total, shape[0], depth, weights[0], *sizes)
    value = build.op("Transpose", value, perm=[0, 2, 1, 3, 4])
    return build.rewrite({node.outputs[0]: value}, "3-D convolution as a sum of 2-D ones")


@rule("ConvTranspose", name="conv-transpose-pads")
def conv_transpose_pads(graph: Graph, node: Node) -> Outcome:
    """`output_shape` and SAME_*, which MNN reads wrong, as explicit pads (and what is missing as output_padding)."""
    shape, weights = graph.shape(node.inputs[0]), static_shape(graph, node.inputs[1])
    mode, wanted = node.attr("auto_pad", "NOTSET"), node.attr("output_shape")
    if not mode.startswith("SAME") and not wanted:
        return None
    if shape is None or weights is None:
        return refuse("conv-transpose-pads", node, "the shape of its input or of its weights is not known")
    count = len(weights) - 2
    strides, steps = node.attr("strides", [1] * count), node.attr("dilations", [1] * count)
    extra, begins, ends = list(node.attr("output_padding", [0] * count)), [], []
    for axis in range(count):
        size = shape[axis + 2]
        if not isinstance(size, int):
            return refuse("conv-transpose-pads", node, f"the size of axis {axis + 2} is not known")
        result = wanted[-count:][axis] if wanted else size * strides[axis]
        total = (size - 1) * strides[axis] + extra[axis] + (weights[axis + 2] - 1) * steps[axis] + 1 - result
        extra[axis] += max(-total, 0)
        half = max(total, 0) // 2
        other = max(total, 0) - half
        begins.append(half if mode == "SAME_UPPER" else other)
        ends.append(other if mode == "SAME_UPPER" else half)
    build = Emit(graph, node)
    attrs = {key: value for key, value in node.attrs.items() if key not in ("auto_pad", "output_shape")}
    attrs |= {"pads": [*begins, *ends], "output_padding": extra}
    value = build.op("ConvTranspose", *node.inputs, **attrs)
    return build.rewrite({node.outputs[0]: value}, "ConvTranspose with explicit pads")


@rule("ConvTranspose", name="conv-transpose-groups")
def conv_transpose_groups(graph: Graph, node: Node) -> Outcome:
    """Groups with computed weights or in three dims, which MNN mixes up: one ConvTranspose for each group."""
    group, weights = node.attr("group", 1), static_shape(graph, node.inputs[1])
    if group == 1 or (graph.is_constant(node.inputs[1]) and graph.rank(node.inputs[1]) != 5):
        return None
    if weights is None:
        return refuse("conv-transpose-groups", node, "the shape of its computed weights is not known")
    build, per = Emit(graph, node), weights[0] // group
    parts = build.split(node.inputs[0], 1, [per] * group)
    kernels = build.split(node.inputs[1], 0, [per] * group)
    attrs = node.attrs | {"group": 1}
    done = [build.op("ConvTranspose", x, w, **attrs) for x, w in zip(parts, kernels, strict=True)]
    value = build.op("Concat", *done, axis=1)
    if node.input(2):
        value = build.op("Add", value, reshape(build, node.inputs[2], -1, *([1] * (len(weights) - 2))))
    return build.rewrite({node.outputs[0]: value}, "ConvTranspose group by group")


@rule("ConvTranspose", name="conv-transpose-3d-bias")
def conv_transpose_3d_bias(graph: Graph, node: Node) -> Outcome:
    """A bias in three dims, which MNN drops: an Add."""
    if not node.input(2) or graph.rank(node.inputs[1]) != 5 or node.attr("group", 1) != 1:
        return None
    build = Emit(graph, node)
    value = build.op("ConvTranspose", *node.inputs[:2], **node.attrs)
    value = add(build, value, reshape(build, node.inputs[2], -1, 1, 1, 1))
    return build.rewrite({node.outputs[0]: value}, "ConvTranspose with its bias added after")


@rule("Relu", "Clip", name="conv-3d-rectified")
def conv_3d_rectified(graph: Graph, node: Node) -> Outcome:
    """An output of the model that MNN fuses into a 3-D convolution and then does not find: by Max and Min."""
    maker = graph.producer(node.inputs[0])
    if maker is None or maker.op not in ("Conv", "ConvTranspose") or graph.rank(maker.inputs[1]) != 5:
        return None
    if node.outputs[0] not in graph.outputs or graph.dtype(node.outputs[0]) not in _FLOATS or graph.opset() < 8:
        return None
    build, dtype = Emit(graph, node), graph.dtype(node.outputs[0])
    if node.op == "Relu":
        return build.rewrite({node.outputs[0]: build.op("Max", node.inputs[0], build.number(0, dtype))}, "Max for Relu")
    low, high = _limits(graph, node)
    if low != 0 or high != _RELU6:
        return None
    value = build.op("Min", build.op("Max", node.inputs[0], build.number(0, dtype)), build.number(_RELU6, dtype))
    return build.rewrite({node.outputs[0]: value}, "Max and Min for Clip")


def _limits(graph: Graph, node: Node) -> tuple[float | None, float | None]:
    """The bounds of a Clip where they are known."""
    if graph.opset() < 11:
        return node.attr("min"), node.attr("max")
    low, high = (graph.scalar(node.input(i)) if node.input(i) else None for i in (1, 2))
    return low, high


@rule("ConvTranspose", name="conv-transpose-3d-computed")
def conv_transpose_3d_computed(graph: Graph, node: Node) -> Outcome:
    """Weights that are computed, which MNN refuses in three dims: a Conv of the spread input with turned weights."""
    shape, weights = static_shape(graph, node.inputs[0]), static_shape(graph, node.inputs[1])
    if graph.rank(node.inputs[1]) != 5 or graph.is_constant(node.inputs[1]) or node.attr("group", 1) != 1:
        return None
    if shape is None or weights is None or node.attr("output_shape") or node.attr("auto_pad", "NOTSET") != "NOTSET":
        return refuse("conv-transpose-3d-computed", node, "computed weights in three dims need static shapes")
    build = Emit(graph, node)
    strides, steps = node.attr("strides", [1] * 3), node.attr("dilations", [1] * 3)
    pads, extra = node.attr("pads", [0] * 6), node.attr("output_padding", [0] * 3)
    reach = [(size - 1) * step for size, step in zip(weights[2:], steps, strict=True)]
    around = [reach[i] - pads[i] for i in range(3)] + [reach[i] - pads[i + 3] + extra[i] for i in range(3)]
    if min(around) < 0:
        return refuse("conv-transpose-3d-computed", node, "it cuts more than its kernel adds")
    x = node.inputs[0]
    for axis, stride in enumerate(strides, 2):
        x = _spread(build, x, axis, stride, shape)
        shape = tuple((size - 1) * stride + 1 if i == axis else size for i, size in enumerate(shape))
    kernel = build.op("Transpose", node.inputs[1], perm=[1, 0, 2, 3, 4])
    for axis in (2, 3, 4):
        turned = np.arange(weights[axis], dtype=np.int64)[::-1].copy()
        kernel = build.op("Gather", kernel, build.const(turned, "turned"), axis=axis) if len(turned) > 1 else kernel
    value = build.op("Conv", x, kernel, *node.inputs[2:], dilations=steps, pads=around, strides=[1] * 3,
                     kernel_shape=list(weights[2:]))  # fmt: skip
    return build.rewrite({node.outputs[0]: value}, "Conv with turned weights in place of 3-D ConvTranspose")


def _spread(build: Emit, x: str, axis: int, stride: int, shape: tuple[int, ...]) -> str:
    """Zeros between the elements of an axis."""
    if stride == 1:
        return x
    inner = math.prod(shape[axis + 1 :])
    value = reshape(build, x, math.prod(shape[:axis]), shape[axis], 1, inner)
    value = pad_amounts(build, value, [0, 0, 0, 0], [0, 0, stride - 1, 0])
    value = reshape(build, value, *shape[:axis], shape[axis] * stride, *shape[axis + 1 :])
    return build.slice(value, axis, 0, (shape[axis] - 1) * stride + 1)


RULES = (
    conv_same_lower, conv_computed_bias, conv_3d_dilations, conv_3d_computed, conv_3d_rectified, conv_transpose_pads,
    conv_transpose_groups, conv_transpose_3d_computed, conv_transpose_3d_bias,
)  # fmt: skip

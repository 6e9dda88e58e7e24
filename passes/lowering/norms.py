"""Normalizations of ONNX that MNN lacks or gets wrong, as the ONNX Operators specification defines them."""

from __future__ import annotations

import numpy as np
import onnx

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.passes import _match
from graphkit.passes._emit import Emit
from graphkit.passes.lowering import contrib_norms
from graphkit.passes.lowering._forms import Floats, group_norm, per_channel, rms_norm, used
from graphkit.passes.lowering._numbers import is_zero
from graphkit.rewrite import Outcome, Refusal, Rule, rule


def _refuse(name: str, node: Node, reason: str) -> Refusal:
    return Refusal(name, node.label, reason)


def _normalized(graph: Graph, node: Node) -> tuple[int, ...] | None:
    """The axes that LayerNormalization and its kind work on, negative; None without a rank."""
    axis, rank = int(node.attr("axis", -1)), graph.rank(node.inputs[0])
    if axis >= 0 and rank is None:
        return None
    return tuple(range(axis - (rank or 0) if axis >= 0 else axis, 0))


@rule("LayerNormalization", name="layernorm-scale")
def layernorm_scale(graph: Graph, node: Node) -> Outcome:
    """Scale and bias that are broadcast: MNN reads past their end, so they follow as a Mul and an Add."""
    axes, shape = _normalized(graph, node), graph.shape(node.inputs[0])
    if axes is None or shape is None or used(graph, node, 1) or used(graph, node, 2):
        return None
    wanted = shape[axes[0] :]
    factors = [name for name in node.inputs[1:3] if name]
    if all(_fits(graph, name, wanted) for name in factors):
        return None
    if not all(isinstance(dim, int) and dim for dim in wanted):
        return _refuse("layernorm-scale", node, "scale or bias are broadcast over axes of unknown size")
    build = Emit(graph, node)
    at = Floats(build, node.inputs[0])
    if not at.outside:
        return _refuse("layernorm-scale", node, "the element type is unknown")
    x = at.up(node.inputs[0])
    dtype = onnx.helper.tensor_dtype_to_np_dtype(at.dtype)
    ones = build.const(np.ones([int(dim or 0) for dim in wanted], dtype))
    y = build.op("LayerNormalization", x, ones, axis=axes[0], epsilon=node.attr("epsilon", 1e-5))
    for op, name in zip(("Mul", "Add"), node.inputs[1:3], strict=False):
        y = build.op(op, y, at.up(name)) if name else y
    return build.rewrite({node.outputs[0]: at.down(y)}, "LayerNormalization with its broadcast scale behind it")


def _fits(graph: Graph, name: str, wanted: tuple[int | str | None, ...]) -> bool:
    """True for a factor in the shape of the normalized axes; sizes that are not known may be those."""
    shape = graph.shape(name)
    if shape is None:
        return True
    if len(shape) != len(wanted):
        return False
    return all(
        a == b or (a != 1 and not (isinstance(a, int) and isinstance(b, int)))
        for a, b in zip(shape, wanted, strict=True)
    )


@rule("RMSNormalization", "SimplifiedLayerNormalization", name="rms-normalization")
def rms_normalization(graph: Graph, node: Node) -> Outcome:
    """MNN has neither; it fuses x / √(mean(x²) + ε) over the last axis."""
    axes, build = _normalized(graph, node), Emit(graph, node)
    at = Floats(build, node.inputs[0])
    if axes is None or not at.outside:
        return _refuse("rms-normalization", node, "the rank or the element type of the input is unknown")
    if used(graph, node, 1):
        return _refuse("rms-normalization", node, "the saved inverse deviation is wanted, which is for training")
    y = rms_norm(at, at.up(node.inputs[0]), at.up(node.inputs[1]), node.attr("epsilon", 1e-5), axes)
    return build.rewrite({node.outputs[0]: at.down(y)}, f"{node.op_type} spelled out")


@rule("Mul", name="norm-factor")
def norm_factor(graph: Graph, node: Node) -> Outcome:
    """RMSNorm · constant: MNN makes it one operator whatever the constant's shape, and reads past its end."""
    for result, factor in (node.inputs, node.inputs[::-1]):
        array, divide = graph.constant(factor), graph.producer(result)
        if array is None or divide is None:
            continue
        place = _norm_numerator(graph, divide)
        if place is None or _along_axes(graph, divide.inputs[place[0]], place[1], array.shape):
            continue
        build, inputs = Emit(graph, node), list(divide.inputs)
        inputs[place[0]] = build.op("Mul", inputs[place[0]], factor)
        value = build.op(divide.op_type, *inputs)
        return build.rewrite({node.outputs[0]: value}, "the factor of an RMSNorm goes before the division")
    return None


def _norm_numerator(graph: Graph, divide: Node) -> tuple[int, Node] | None:
    """In x / √(mean + ε), or x · (1 / √…): which input x is, and the node of the mean; None for other things."""
    if divide.op not in ("Div", "Mul"):
        return None
    for index in (0,) if divide.op == "Div" else (0, 1):
        root = graph.producer(divide.inputs[1 - index])
        if divide.op == "Mul" and root is not None and root.op in ("Reciprocal", "Div"):
            root = graph.producer(root.inputs[-1])
        add = graph.producer(root.inputs[0]) if root is not None and root.op in ("Sqrt", "Pow") else None
        made = [graph.producer(name) for name in add.inputs] if add is not None and add.op == "Add" else []
        mean = next((item for item in made if item is not None and item.op == "ReduceMean"), None)
        value = graph.producer(divide.inputs[index])
        if mean is not None and not (value is not None and value.op == "Sub"):
            return index, mean
    return None


def _along_axes(graph: Graph, x: str, mean: Node, factor: tuple[int, ...]) -> bool:
    """True when a factor has all of the normalized axes and no other ones."""
    shape = graph.shape(x)
    axes = None if shape is None else _match.axes_of(graph, mean, len(shape))
    if shape is None or axes is None or len(factor) > len(shape):
        return False
    whole = (1,) * (len(shape) - len(factor)) + factor
    normalized = {axis + len(shape) for axis in axes}
    return all(
        size == shape[i] or (size > 1 and not isinstance(shape[i], int)) if i in normalized else size == 1
        for i, size in enumerate(whole)
    )


@rule("GroupNormalization", name="group-normalization")
def group_normalization(graph: Graph, node: Node) -> Outcome:
    """MNN lacks it: InstanceNormalization of [N, groups, rest]; scale per channel (opset 21) or per group (18)."""
    x, scale, bias = node.inputs
    rank, build = graph.rank(x), Emit(graph, node)
    at = Floats(build, x)
    if rank is None or not at.outside:
        return _refuse("group-normalization", node, "the rank or the element type of the input is unknown")
    groups, epsilon = node.attr("num_groups"), node.attr("epsilon", 1e-5)
    if build.opset >= 21:
        y = group_norm(at, at.up(x), groups, epsilon)
        y = build.op("Mul", y, per_channel(build, at.up(scale), rank))
        y = build.op("Add", y, per_channel(build, at.up(bias), rank))
    else:
        x = at.up(x)
        grouped = build.op("Reshape", x, build.ints(0, groups, -1))
        y = build.op("InstanceNormalization", grouped, at.up(scale), at.up(bias), epsilon=epsilon)
        y = build.op("Reshape", y, build.op("Shape", x))
    return build.rewrite({node.outputs[0]: at.down(y)}, "GroupNormalization by InstanceNormalization")


@rule("LpNormalization", name="lp-normalization")
def lp_normalization(graph: Graph, node: Node) -> Outcome:
    """MNN divides by a norm of 0 and gives NaN, where the standard has 0."""
    x, p, build = node.inputs[0], node.attr("p", 2), Emit(graph, node)
    at = Floats(build, x)
    if not at.outside or p not in (1, 2):
        return _refuse("lp-normalization", node, "the element type is unknown" if not at.outside else f"norm {p}")
    x = at.up(x)
    axes = [node.attr("axis", -1)]
    if p == 1:
        norm = build.reduce("ReduceSum", build.op("Abs", x), axes)
    else:
        norm = build.op("Sqrt", build.reduce("ReduceSum", build.op("Mul", x, x), axes))
    divisor = build.op("Where", is_zero(build, norm, at.dtype), at.number(1), norm)
    return build.rewrite({node.outputs[0]: at.down(build.op("Div", x, divisor))}, f"L{p} norm that may be 0")


@rule("BatchNormalization", name="batch-normalization")
def batch_normalization(graph: Graph, node: Node) -> Outcome:
    """In training mode, with computed statistics or per element: MNN crashes or takes it for something else."""
    training = bool(node.attr("training_mode", 0))
    spatial = bool(node.attr("spatial", 1))
    if not training and spatial and all(graph.is_constant(name) for name in node.inputs[1:]):
        return None
    x, rank, build = node.inputs[0], graph.rank(node.inputs[0]), Emit(graph, node)
    at = Floats(build, x)
    if rank is None or rank < 2 or not at.outside:
        return _refuse("batch-normalization", node, "the rank or the element type of the input is unknown")
    if not training and any(used(graph, node, index) for index in range(1, len(node.outputs))):
        return _refuse("batch-normalization", node, "running statistics are wanted below opset 14")
    x, (scale, bias, mean, variance) = at.up(x), map(at.up, node.inputs[1:5])
    outputs = {}
    if training:
        mean, variance = batch = _batch_statistics(build, at, x, rank)
        outputs = _running_statistics(build, at, graph, node, batch)
    shape = rank if spatial else 0
    root = build.op("Sqrt", build.op("Add", variance, at.number(node.attr("epsilon", 1e-5))))
    factor = build.op("Div", scale, root)
    centred = build.op("Sub", x, per_channel(build, mean, shape))
    y = build.op("Mul", centred, per_channel(build, factor, shape))
    y = build.op("Add", y, per_channel(build, bias, shape))
    return build.rewrite({node.outputs[0]: at.down(y), **outputs}, "BatchNormalization spelled out")


def _batch_statistics(build: Emit, at: Floats, x: str, rank: int) -> tuple[str, str]:
    """Mean and population variance of each channel."""
    axes = [axis for axis in range(rank) if axis != 1]
    mean = build.reduce("ReduceMean", x, axes)
    centred = build.op("Sub", x, mean)
    variance = build.reduce("ReduceMean", build.op("Mul", centred, centred), axes, keepdims=False)
    return build.squeeze(mean, *axes), variance


def _running_statistics(build: Emit, at: Floats, graph: Graph, node: Node, batch: tuple[str, str]) -> dict[str, str]:
    """running · momentum + batch · (1 − momentum), for those that are wanted."""
    momentum, outputs = node.attr("momentum", 0.9), {}
    for index, (value, old) in enumerate(zip(batch, node.inputs[3:5], strict=True), 1):
        if used(graph, node, index):
            kept = build.op("Mul", at.up(old), at.number(momentum))
            added = build.op("Mul", value, at.number(1 - momentum))
            wide = build.op("Add", kept, added)
            outputs[node.outputs[index]] = build.cast(wide, graph.dtype(old)) if at.up(old) != old else wide
    return outputs


RULES: tuple[Rule, ...] = (
    layernorm_scale,
    rms_normalization,
    norm_factor,
    group_normalization,
    lp_normalization,
    batch_normalization,
    *contrib_norms.RULES,
)

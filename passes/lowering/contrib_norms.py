"""onnxruntime's fused normalizations (its ContribOperators.md), in operators that MNN has."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.passes._emit import Emit
from graphkit.passes.lowering._forms import Floats, group_norm, layer_norm, per_channel, rms_norm, swish, used
from graphkit.rewrite import Outcome, Rule, rule


@rule(
    "com.microsoft::SkipLayerNormalization",
    "com.microsoft::SkipSimplifiedLayerNormalization",
    name="skip-layer-normalization",
)
def skip_layer_normalization(graph: Graph, node: Node) -> Outcome:
    """MNN has no fused residual norms: the sum of input, skip and bias, then the norm over the last axis."""
    build, simplified = Emit(graph, node), node.op_type != "SkipLayerNormalization"
    at = Floats(build, *node.inputs)
    if not at.outside:
        return skip_layer_normalization.refuse(node, "the element type is unknown")
    if used(graph, node, 1) or used(graph, node, 2):
        return skip_layer_normalization.refuse(node, "saved mean and inverse deviation are for training")
    gamma, beta, bias = node.inputs[2], "" if simplified else node.input(3), node.input(3 if simplified else 4)
    total = build.op("Add", at.up(node.inputs[0]), at.up(node.inputs[1]))
    total = build.op("Add", total, at.up(bias)) if bias else total
    epsilon = node.attr("epsilon", 1e-12)
    if simplified:
        y = rms_norm(at, total, at.up(gamma), epsilon)
    else:
        y = layer_norm(at, total, at.up(gamma), at.up(beta) if beta else "", epsilon)
    outputs = {node.outputs[0]: at.down(y)} if node.outputs[0] else {}
    if used(graph, node, 3):
        outputs[node.outputs[3]] = at.down(total)
    return build.rewrite(outputs, f"{node.op_type} as a sum and a norm")


@rule("com.microsoft::EmbedLayerNormalization", name="embed-layer-normalization")
def embed_layer_normalization(graph: Graph, node: Node) -> Outcome:
    """BERT's embedding layer: three lookups, their sum, LayerNormalization, and the lengths of the mask."""
    build = Emit(graph, node)
    ids, segments, words, places, kinds, gamma, beta = node.inputs[:7]
    at = Floats(build, words, gamma)
    if not at.outside or (build.opset < 10 and not node.input(8)):
        reason = "the element type of the embeddings is unknown" if not at.outside else "opset below 10"
        return embed_layer_normalization.refuse(node, reason)
    total = build.op("Add", build.op("Gather", words, ids), _positions(build, ids, places, node.input(8)))
    if segments and kinds:
        total = build.op("Add", total, build.op("Gather", kinds, segments))
    y = layer_norm(at, at.up(total), at.up(gamma), at.up(beta), node.attr("epsilon", 1e-12))
    outputs = {node.outputs[0]: at.down(y)}
    if used(graph, node, 1):
        outputs[node.outputs[1]] = _lengths(build, ids, node.input(7))
    if used(graph, node, 2):
        outputs[node.outputs[2]] = total
    return build.rewrite(outputs, "EmbedLayerNormalization as lookups and a norm")


def _positions(build: Emit, ids: str, table: str, positions: str) -> str:
    """Rows of the position table: those asked for, else the first ones, as many as there are words."""
    if positions:
        return build.op("Gather", table, positions)
    return build.op("Slice", table, build.ints(0), build.dim(ids, 1), build.ints(0))


def _lengths(build: Emit, ids: str, mask: str) -> str:
    """How many words of each row the mask keeps (int32); 0 without a mask."""
    if mask:
        return build.reduce("ReduceSum", mask, [1], keepdims=False)
    zero = build.number(0, TensorProto.INT32)
    return build.op("Mul", build.reduce("ReduceSum", ids, [1], keepdims=False), zero)


@rule("com.microsoft::GroupNorm", "com.microsoft::SkipGroupNorm", name="group-norm")
def contrib_group_norm(graph: Graph, node: Node) -> Outcome:
    """MNN has no fused group norms: InstanceNormalization of [N, groups, rest], scale, bias and SiLU behind it."""
    build, skip = Emit(graph, node), node.op_type == "SkipGroupNorm"
    at, rank = Floats(build, node.inputs[0]), graph.rank(node.inputs[0])
    if not at.outside or rank is None:
        return contrib_group_norm.refuse(node, "the rank or the element type of the input is unknown")
    last = bool(node.attr("channels_last", 1))
    x = at.up(node.inputs[0])
    if skip:
        total = _skip_sum(build, at, node, rank, last)
        if total is None:
            return contrib_group_norm.refuse(node, "the rank of 'skip' is unknown")
        x = total
    y = build.op("Transpose", x, perm=[0, rank - 1, *range(1, rank - 1)]) if last else x
    y = group_norm(at, y, node.attr("groups"), node.attr("epsilon", 1e-5))
    y = build.op("Transpose", y, perm=[0, *range(2, rank), 1]) if last else y
    shape = 0 if last else rank
    y = build.op("Mul", y, per_channel(build, at.up(node.inputs[1]), shape))
    y = build.op("Add", y, per_channel(build, at.up(node.inputs[2]), shape))
    y = swish(at, y) if node.attr("activation", 0) else y
    outputs = {node.outputs[0]: at.down(y)}
    if used(graph, node, 1):
        outputs[node.outputs[1]] = at.down(x)
    return build.rewrite(outputs, f"{node.op_type} by InstanceNormalization")


def _skip_sum(build: Emit, at: Floats, node: Node, rank: int, last: bool) -> str | None:
    """x + skip + bias; a skip of [N, C] is the same everywhere in the image."""
    skip_rank = build.graph.rank(node.inputs[3])
    if skip_rank not in (2, rank):
        return None
    skip = at.up(node.inputs[3])
    if skip_rank != rank:
        skip = build.unsqueeze(skip, *(range(1, rank - 1) if last else range(2, rank)))
    total = build.op("Add", at.up(node.inputs[0]), skip)
    if not node.input(4):
        return total
    return build.op("Add", total, per_channel(build, at.up(node.inputs[4]), 0 if last else rank))


@rule("com.microsoft::GatedRMSNorm", name="gated-rms-norm")
def gated_rms_norm(graph: Graph, node: Node) -> Outcome:
    """x / √(mean(x²) + ε) · scale · act(gate), over groups as long as the scale."""
    build = Emit(graph, node)
    x, scale, gate = node.inputs
    at, shape, width = Floats(build, *node.inputs), graph.shape(x), graph.shape(scale)
    size = width[0] if width else None
    if not at.outside or shape is None or not isinstance(size, int):
        return gated_rms_norm.refuse(node, "the shape of the input or the scale is unknown")
    wide = at.up(x)
    apart = shape[-1] != size
    grouped = build.op("Reshape", wide, build.ints(*([0] * (len(shape) - 1)), -1, size)) if apart else wide
    y = rms_norm(at, grouped, at.up(scale), node.attr("epsilon", 1e-5))
    y = build.op("Reshape", y, build.op("Shape", wide)) if apart else y
    gate = at.up(gate)
    act = build.op("Sigmoid", gate) if node.attr("activation", "silu") == "sigmoid" else swish(at, gate)
    return build.rewrite({node.outputs[0]: at.down(build.op("Mul", y, act))}, "GatedRMSNorm spelled out")


@rule("com.microsoft::BranchwiseRMSNorm", name="branchwise-rms-norm")
def branchwise_rms_norm(graph: Graph, node: Node) -> Outcome:
    """x / √(mean(x²) + ε) over the last axis of each branch, and a scale per branch or for all."""
    build = Emit(graph, node)
    x, branches = node.inputs[0], node.attr("num_branches", 0)
    at, shape = Floats(build, x), graph.shape(x)
    if not at.outside or shape is None:
        return branchwise_rms_norm.refuse(node, "the shape or the element type of the input is unknown")
    wide = at.up(x)
    lead = [0] * (len(shape) - 1)
    grouped = build.op("Reshape", wide, build.ints(*lead, branches, -1)) if branches else wide
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(at.dtype))
    scale = node.input(1) and at.up(node.input(1))
    if scale and graph.rank(node.input(1)) == 1 and not _last_is(graph, node, branches):
        count = branches or shape[-2]
        if not isinstance(count, int):
            return branchwise_rms_norm.refuse(node, "the number of branches is unknown")
        scale = build.op("Reshape", scale, build.ints(count, -1))
    y = rms_norm(at, grouped, scale or build.const(np.ones(1, dtype)), node.attr("epsilon", 1e-5))
    y = build.op("Reshape", y, build.op("Shape", wide)) if branches else y
    return build.rewrite({node.outputs[0]: at.down(y)}, "BranchwiseRMSNorm spelled out")


def _last_is(graph: Graph, node: Node, branches: int) -> bool:
    """True when a vector of scales is as long as one branch."""
    scale, shape = graph.shape(node.input(1)) or (None,), graph.shape(node.inputs[0]) or (None,)
    length = shape[-1] // branches if branches and isinstance(shape[-1], int) else shape[-1]
    return scale[0] == length


RULES: tuple[Rule, ...] = (
    skip_layer_normalization,
    embed_layer_normalization,
    contrib_group_norm,
    gated_rms_norm,
    branchwise_rms_norm,
)

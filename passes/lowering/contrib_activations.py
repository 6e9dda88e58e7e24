"""onnxruntime's fused activations (its ContribOperators.md), in operators that MNN has."""

from __future__ import annotations

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.passes._emit import Emit
from graphkit.passes.lowering._forms import Floats, gelu_erf, gelu_tanh, swish, used
from graphkit.rewrite import Outcome, Rule, rule


@rule("com.microsoft::Gelu", "com.microsoft::BiasGelu", "com.microsoft::FastGelu", name="contrib-gelu")
def contrib_gelu(graph: Graph, node: Node) -> Outcome:
    """A Gelu of x + bias: by erf, or FastGelu by tanh."""
    build = Emit(graph, node)
    at = Floats(build, *node.inputs)
    if not at.outside:
        return contrib_gelu.refuse(node, "the element type is unknown")
    x = at.up(node.inputs[0])
    x = build.op("Add", x, at.up(node.input(1))) if node.input(1) else x
    form = gelu_tanh if node.op_type == "FastGelu" else gelu_erf
    return build.rewrite({node.outputs[0]: at.down(form(at, x))}, f"{node.op_type} spelled out")


@rule("com.microsoft::QuickGelu", name="quick-gelu")
def quick_gelu(graph: Graph, node: Node) -> Outcome:
    """x · sigmoid(α x), α being 1.702 by default."""
    build = Emit(graph, node)
    at = Floats(build, node.inputs[0])
    if not at.outside:
        return quick_gelu.refuse(node, "the element type is unknown")
    y = swish(at, at.up(node.inputs[0]), node.attr("alpha", 1.702))
    return build.rewrite({node.outputs[0]: at.down(y)}, "QuickGelu by Sigmoid")


@rule("com.microsoft::ScaledSiLU", name="scaled-silu")
def scaled_silu(graph: Graph, node: Node) -> Outcome:
    """z · sigmoid(z) of z = scale · x."""
    build = Emit(graph, node)
    at = Floats(build, node.inputs[0])
    if not at.outside:
        return scaled_silu.refuse(node, "the element type is unknown")
    scale = node.input(1) and build.cast(node.input(1), at.dtype)
    z = build.op("Mul", at.up(node.inputs[0]), scale or at.number(node.attr("alpha", 1.0)))
    return build.rewrite({node.outputs[0]: at.down(swish(at, z))}, "ScaledSiLU by Sigmoid")


@rule("com.microsoft::SwiGLU", name="swiglu")
def swiglu(graph: Graph, node: Node) -> Outcome:
    """G · sigmoid(α G) · (L + β) of two halves, both clamped where there is a limit."""
    build, up = Emit(graph, node), node.input(1)
    at, shape = Floats(build, *node.inputs), graph.shape(node.inputs[0])
    if not at.outside or (not up and (shape is None or not isinstance(shape[-1], int))):
        return swiglu.refuse(node, "the element type or the size of the last axis is unknown")
    gate, linear = at.up(node.inputs[0]), up and at.up(up)
    if not up and shape is not None:
        half = int(shape[-1] or 0) // 2
        gate, linear = build.split(gate, len(shape) - 1, [half, half])
    limit = node.attr("limit", 0.0)
    if limit > 0:
        gate = build.op("Min", gate, at.number(limit))
        linear = build.clip(linear, at.number(-limit), at.number(limit))
    y = swish(at, gate, node.attr("activation_alpha", 1.0))
    beta = node.attr("activation_beta", 0.0)
    linear = build.op("Add", linear, at.number(beta)) if beta else linear
    return build.rewrite({node.outputs[0]: at.down(build.op("Mul", y, linear))}, "SwiGLU spelled out")


@rule("com.microsoft::BiasSplitGelu", name="bias-split-gelu")
def bias_split_gelu(graph: Graph, node: Node) -> Outcome:
    """Left half times Gelu of the right half, of x + bias."""
    build, shape = Emit(graph, node), graph.shape(node.inputs[1])
    at = Floats(build, *node.inputs)
    if not at.outside or shape is None or not isinstance(shape[-1], int):
        return bias_split_gelu.refuse(node, "the element type or the size of the bias is unknown")
    total, half = build.op("Add", at.up(node.inputs[0]), at.up(node.inputs[1])), shape[-1] // 2
    left, right = build.split(total, 2, [half, half])
    return build.rewrite({node.outputs[0]: at.down(build.op("Mul", left, gelu_erf(at, right)))}, "BiasSplitGelu")


@rule("com.microsoft::BiasAdd", name="bias-add")
def bias_add(graph: Graph, node: Node) -> Outcome:
    """x + bias + skip."""
    build = Emit(graph, node)
    total = build.op("Add", build.op("Add", node.inputs[0], node.inputs[1]), node.inputs[2])
    return build.rewrite({node.outputs[0]: total}, "BiasAdd as two Adds")


@rule("com.microsoft::BiasDropout", "com.microsoft::BitmaskBiasDropout", name="bias-dropout")
def bias_dropout(graph: Graph, node: Node) -> Outcome:
    """x + bias + residual: without training nothing is dropped."""
    training, build = node.input(4), Emit(graph, node)
    if training and graph.scalar(training) is None:
        return bias_dropout.refuse(node, "whether it trains is known at run time only")
    if training and graph.scalar(training) and graph.scalar(node.input(3)) != 0:
        return bias_dropout.refuse(node, "in training mode its result is random")
    if used(graph, node, 1):
        return bias_dropout.refuse(node, "the mask of what was dropped is wanted, which is for training")
    total = build.op("Add", node.inputs[0], node.inputs[1])
    total = build.op("Add", total, node.input(2)) if node.input(2) else total
    return build.rewrite({node.outputs[0]: total}, "BiasDropout as a sum")


@rule("com.microsoft::BiasSoftmax", name="bias-softmax")
def bias_softmax(graph: Graph, node: Node) -> Outcome:
    """Softmax over all axes from `axis` on of data + bias; the bias repeats outside (or inside) of its batch."""
    x, bias = node.inputs
    shape, bias_shape, build = graph.shape(x), graph.shape(bias), Emit(graph, node)
    if shape is None or bias_shape is None:
        return bias_softmax.refuse(node, "the rank of the data or the bias is unknown")
    rank, axis = len(shape), int(node.attr("axis", 1)) % max(len(shape), 1)
    if len(bias_shape) != rank or axis != rank - 1:
        return bias_softmax.refuse(node, f"a bias of rank {len(bias_shape)}, or an axis that is not the last one")
    y = build.softmax(build.op("Add", x, bias), axis, rank)
    return build.rewrite({node.outputs[0]: y}, "BiasSoftmax as an Add and a Softmax")


RULES: tuple[Rule, ...] = (
    contrib_gelu,
    quick_gelu,
    scaled_silu,
    swiglu,
    bias_split_gelu,
    bias_add,
    bias_dropout,
    bias_softmax,
)

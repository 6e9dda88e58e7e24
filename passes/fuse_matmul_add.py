"""Bias, scale and shift around a MatMul by a constant weight → into weight and bias."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.passes import _gelu, _linear, _match
from graphkit.passes._linear import PRODUCTS, Linear
from graphkit.passes.fuse_conv_bn import affine_of
from graphkit.rewrite import Builder, Outcome, PassResult, Refusal, apply_rules, rule

_VIEWS = ("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten")
_MAX_VIEWS = 6


@dataclass(frozen=True)
class FuseMatmulAdd:
    """Fold arithmetic around MatMul and Gemm by a constant weight into the weight and one bias.

    Rewrites, for y = x·W + b with constant W [K, N] and b [N]: Mul, Div, Add and Sub of y by a constant of
    one number or N numbers (MNN: two operators less for each); Mul and Div of x by one number, or of y by
    one after Reshapes, Transposes and a MatMul with something else (attention's 1/√d goes into the query);
    several constant Adds in a row into one. With x of rank 2, MatMul and Add become Gemm, and alpha and beta
    of a Gemm go into its weights. With more axes it stays MatMul and Add: MNN merges these itself, and
    Reshape, Gemm, Reshape, as other tools write it, would cost more.

    Refuses values that something else uses too, to scale a weight that other nodes share (it would be stored
    twice), constants that do not fit the last axis, and weights that would overflow their type.
    """

    name: ClassVar[str] = "fuse-matmul-add"
    summary: ClassVar[str] = "bias, scale and shift around MatMul go into its weight and bias; Gemm at rank 2"

    def run(self, graph: Graph) -> PassResult:
        """Rewrite the graph in place."""
        return apply_rules(graph, (_behind, _through_views, _in_front, _gemm_factors))


@rule("Add", "Sub", "Mul", "Div", name="matmul-affine")
def _behind(graph: Graph, node: Node) -> Outcome:
    for index, value in enumerate(node.inputs):
        other = node.inputs[1 - index]
        layer = _linear.read_product(graph, value) if graph.is_constant(other) else None
        constant = graph.constant(other) if layer is not None else None
        if layer is None or constant is None:
            continue
        rank = 2 if layer.op_type == "Gemm" else graph.rank(layer.output)
        vector = _linear.per_channel(constant, rank, -1, layer.channels)
        if vector is None:
            return Refusal("matmul-affine", node.label, "the constant does not fit the last axis of the product")
        affine = affine_of(node.op_type, vector.astype(np.float64), constant_first=index == 1)
        return affine and _fold(graph, node, layer, rank, *affine)
    return None


def _fold(
    graph: Graph,
    node: Node,
    layer: Linear,
    rank: int | None,
    factor: np.ndarray | None,
    shift: np.ndarray | None,
) -> Outcome:
    is_first_bias = layer.op_type == "MatMul" and layer.bias is None and factor is None
    if is_first_bias and node.op_type == "Add" and rank != 2:
        return None  # MatMul and Add is what it should be
    name = "matmul-affine"
    if graph.sole_consumer(layer.output) is not node:
        reason = f"'{layer.output}' is used elsewhere too"
        return None if _gelu.belongs_to_gelu(graph, node) else Refusal(name, node.label, reason)
    keep_weight = factor is None and not _has_factors(layer.nodes[0])
    if not keep_weight and _linear.is_shared(graph, layer):
        return Refusal(name, node.label, f"the weight '{layer.weight_name}' is shared with other nodes")
    folded = layer.scaled(factor, shift)
    if folded is None:
        return Refusal(name, node.label, f"the weights of '{layer.nodes[0].label}' would not be finite")
    build = Builder(graph, layer.nodes[0])
    y = _write(build, folded, keep_weight=keep_weight, rank=rank)
    return build.rewrite({node.outputs[0]: y}, f"{node.op_type} into {layer.op_type}")


def _write(build: Builder, layer: Linear, *, keep_weight: bool, rank: int | None) -> str:
    """The layer's nodes; an unchanged weight keeps its name, and large ones their place in the file."""
    if not keep_weight:
        return _linear.write(build, layer, as_gemm=rank == 2)
    bias = build.const(np.asarray(layer.bias), "bias")
    if layer.op_type == "MatMul" and rank != 2:
        return build.op("Add", build.op("MatMul", layer.x, layer.weight_name), bias)
    attrs = {} if layer.op_type == "MatMul" else layer.nodes[0].attrs
    return build.op("Gemm", layer.x, layer.weight_name, bias, **attrs)


@rule("Mul", "Div", name="matmul-scaled-later")
def _through_views(graph: Graph, node: Node) -> Outcome:
    """Take one number that the product is scaled by further on, such as attention's 1/√d, into the weight."""
    scaled = _match.with_scalar(graph, node)
    if scaled is None or (node.op_type == "Div" and not (scaled[2] and scaled[1])):
        return None
    layer = _layer_behind(graph, scaled[0], node, _MAX_VIEWS)
    if layer is None or _linear.is_shared(graph, layer):
        return None
    number = scaled[1] if node.op_type == "Mul" else 1 / scaled[1]
    folded = layer.scaled(np.full(layer.channels, number), None)
    if folded is None:
        return None
    build = Builder(graph, layer.nodes[0])
    y = _linear.write(build, folded, as_gemm=graph.rank(layer.output) == 2)
    what = f"{node.op_type} further on into {layer.op_type}"
    return build.rewrite({layer.output: y, node.outputs[0]: scaled[0]}, what)


def _layer_behind(graph: Graph, value: str, user: Node, steps: int) -> Linear | None:
    """The layer that a value is a view of, or a factor of a product of views; only `user` may use it."""
    node = graph.producer(value)
    if node is None or not steps or graph.sole_consumer(value) is not user:
        return None
    layer = _linear.read_product(graph, value)
    if layer is not None:
        return layer
    if _match.is_op(node, *_VIEWS):
        return _layer_behind(graph, node.inputs[0], node, steps - 1)
    if _match.is_op(node, "MatMul"):
        found = (_layer_behind(graph, factor, node, steps - 1) for factor in node.inputs)
        return next((layer for layer in found if layer is not None), None)
    return None


@rule(*PRODUCTS, name="matmul-scaled-input")
def _in_front(graph: Graph, node: Node) -> Outcome:
    """Take one number that x is multiplied or divided by into the weight."""
    scale = _match.made_by(graph, node.inputs[0], "Mul", "Div")
    scaled = _match.with_scalar(graph, scale) if scale is not None else None
    layer = _linear.read(graph, node) if scaled is not None else None
    if scale is None or scaled is None or not isinstance(layer, Linear):
        return None
    x, number, position = scaled
    if scale.op_type == "Div":
        if position == 0 or not number:
            return None
        number = 1 / number
    name = "matmul-scaled-input"
    if graph.sole_consumer(scale.outputs[0]) is not node:
        return None  # the scaled value is there anyway
    if _gelu.belongs_to_gelu(graph, scale):
        return None
    if _linear.is_shared(graph, layer):
        return Refusal(name, node.label, f"the weight '{layer.weight_name}' is shared with other nodes")
    folded = layer.weight_scaled(number)
    if folded is None:
        return Refusal(name, node.label, f"the weights of '{node.label}' would not be finite")
    build = Builder(graph, node)
    y = _linear.write(build, folded.of(x))
    return build.rewrite({node.outputs[0]: y}, f"{scale.op_type} of the input into {node.op_type}")


def _has_factors(node: Node) -> bool:
    return node.op_type == "Gemm" and (node.attr("alpha", 1.0) != 1.0 or node.attr("beta", 1.0) != 1.0)


@rule("Gemm", name="gemm-factors")
def _gemm_factors(graph: Graph, node: Node) -> Outcome:
    """Take alpha and beta into the constants (MNN: two operators less)."""
    layer = _linear.read(graph, node) if _has_factors(node) else None
    if not isinstance(layer, Linear):
        return None
    if node.attr("alpha", 1.0) != 1.0 and _linear.is_shared(graph, layer):
        return Refusal("gemm-factors", node.label, f"the weight '{layer.weight_name}' is shared with other nodes")
    build = Builder(graph, node)
    return build.rewrite({node.outputs[0]: _linear.write(build, layer)}, "alpha and beta into the weights")

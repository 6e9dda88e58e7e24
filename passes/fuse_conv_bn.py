"""BatchNormalization and per-channel Mul, Add, Sub, Div behind a layer → into the layer's weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.passes import _gelu, _linear, _match
from graphkit.passes._linear import CONVOLUTIONS, PRODUCTS, Linear
from graphkit.rewrite import Builder, Outcome, PassResult, Refusal, apply_rules, rule

_ARITHMETIC = ("Mul", "Div", "Add", "Sub")


@dataclass(frozen=True)
class FuseConvBn:
    """Fold what scales or shifts the channels of a layer into its weights and bias.

    Rewrites BatchNormalization (in inference) behind Conv, ConvTranspose, Gemm and a MatMul of rank 2,
    grouped ones too, and Mul, Div, Add and Sub by constants with one number a channel behind Conv and
    ConvTranspose. Computed in float64, so the result is closer to the model than MNN's own folding. A weight
    that other nodes use stays as it is for them; this node gets its own copy.

    Refuses BatchNormalization in training mode or with its other outputs in use, weights, biases and
    statistics that are not constant, layers whose output something else uses too, constants that are not one
    number a channel, and weights that would overflow their type.
    """

    name: ClassVar[str] = "fuse-conv-bn"
    summary: ClassVar[str] = "BatchNormalization and per-channel arithmetic go into the weights in front"

    def run(self, graph: Graph) -> PassResult:
        """Rewrite the graph in place."""
        return apply_rules(graph, (_batch_norm, _arithmetic))


@rule("BatchNormalization", name="conv-bn")
def _batch_norm(graph: Graph, node: Node) -> Outcome:
    producer = _match.made_by(graph, node.inputs[0], *CONVOLUTIONS, *PRODUCTS)
    if producer is None:
        return None
    layer = _layer(graph, producer, node)
    if isinstance(layer, str):
        return Refusal("conv-bn", node.label, layer)
    reason = _why_not_inference(graph, node)
    if reason is not None:
        return Refusal("conv-bn", node.label, reason)
    statistics = [graph.constant(value) for value in node.inputs[1:5]]
    if any(array is None or array.shape != (layer.channels,) for array in statistics):
        return Refusal("conv-bn", node.label, "scale, bias, mean and variance are not constant, one a channel")
    scale, bias, mean, variance = (np.asarray(array, np.float64) for array in statistics)
    with np.errstate(invalid="ignore", divide="ignore"):
        factor = scale / np.sqrt(variance + node.attr("epsilon", 1e-5))
        shift = bias - mean * factor
    return _fold(graph, node, layer, factor, shift, f"BatchNormalization into {layer.op_type}")


def _why_not_inference(graph: Graph, node: Node) -> str | None:
    if node.attr("training_mode", 0):
        return "BatchNormalization is in training mode"
    if any(graph.is_used(out) for out in node.outputs[1:] if out):
        return "the statistics that BatchNormalization puts out are used"
    return None if node.attr("spatial", 1) else "BatchNormalization is not per channel (spatial = 0)"


@rule(*_ARITHMETIC, name="conv-affine")
def _arithmetic(graph: Graph, node: Node) -> Outcome:
    for index, value in enumerate(node.inputs):
        producer = _match.made_by(graph, value, *CONVOLUTIONS)
        constant = graph.constant(node.inputs[1 - index]) if producer is not None else None
        if producer is None or constant is None:
            continue
        layer = _layer(graph, producer, node)
        if isinstance(layer, str):
            return None if _gelu.belongs_to_gelu(graph, node) else Refusal("conv-affine", node.label, layer)
        vector = _linear.per_channel(constant, layer.weight.ndim, 1, layer.channels)
        if vector is None:
            return Refusal("conv-affine", node.label, "the constant is not one number a channel")
        affine = affine_of(node.op_type, vector.astype(np.float64), constant_first=index == 1)
        return affine and _fold(graph, node, layer, *affine, f"{node.op_type} into {layer.op_type}")
    return None


def affine_of(
    op_type: str, vector: np.ndarray, *, constant_first: bool
) -> tuple[np.ndarray | None, np.ndarray | None] | None:
    """Factor and shift of an operator with one constant operand; None for constant / y: not affine."""
    if op_type == "Mul":
        return vector, None
    if op_type == "Add":
        return None, vector
    if op_type == "Sub":
        return (-np.ones_like(vector), vector) if constant_first else (None, -vector)
    if constant_first or not vector.all():
        return None
    return 1 / vector, None


def _layer(graph: Graph, producer: Node, node: Node) -> Linear | str:
    layer = _linear.read(graph, producer)
    if layer is None or isinstance(layer, str):
        return layer or "no layer"
    if graph.sole_consumer(layer.output) is not node:
        return f"the output of '{producer.label}' is used elsewhere too"
    if layer.op_type == "MatMul" and graph.rank(layer.output) != 2:
        return f"the output of '{producer.label}' is not known to have rank 2"
    return layer


def _fold(
    graph: Graph,
    node: Node,
    layer: Linear,
    factor: np.ndarray | None,
    shift: np.ndarray | None,
    what: str,
) -> Outcome:
    folded = layer.scaled(factor, shift)
    if folded is None:
        rule_name = "conv-bn" if node.op_type == "BatchNormalization" else "conv-affine"
        reason = f"the weights of '{layer.nodes[0].label}' would not be finite"
        return Refusal(rule_name, node.label, reason)
    build = Builder(graph, layer.nodes[0])
    return build.rewrite({node.outputs[0]: _linear.write(build, folded, as_gemm=True)}, what)

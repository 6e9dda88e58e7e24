"""x · sigmoid(k·x) between two products by constant weights → SiLU, the factor k folded into the weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.passes import _linear, _match
from graphkit.passes._linear import PRODUCTS, Linear
from graphkit.rewrite import Builder, Outcome, PassResult, Refusal, apply_rules, rule

_NAME = "quick-gelu"


@dataclass(frozen=True)
class FuseSilu:
    """Turn the quick Gelu of CLIP, x·sigmoid(1.702·x), into SiLU by folding the factor into weights nearby.

    With u = k·x, x·sigmoid(k·x) = u·sigmoid(u) / k: the layer in front is scaled by k, the one behind by 1/k.
    One node less, and one MNN operator instead of four, for MNN fuses Mul(u, Sigmoid(u)) only. Equal up to
    rounding. SiLU itself stays Sigmoid and Mul: MNN 3.6 refuses Swish, the operator of opset 24.

    Refuses when a MatMul or Gemm by a constant weight is missing on a side (a bias may follow the first),
    when their weights are shared with other nodes, and when a value inside is used elsewhere.
    """

    name: ClassVar[str] = "fuse-silu"
    summary: ClassVar[str] = "x·sigmoid(k·x) between two products becomes SiLU, k goes into their weights"

    def run(self, graph: Graph) -> PassResult:
        """Rewrite the graph in place."""
        return apply_rules(graph, (_quick_gelu,))


@rule("Sigmoid", name=_NAME)
def _quick_gelu(graph: Graph, node: Node) -> Outcome:
    scale = _match.made_by(graph, node.inputs[0], "Mul")
    scaled = _match.with_scalar(graph, scale) if scale is not None else None
    end = _match.next_op(graph, node.outputs[0], "Mul")
    if scale is None or scaled is None or end is None or set(end.inputs) != {node.outputs[0], scaled[0]}:
        return None
    x, factor, _ = scaled
    if factor <= 0 or factor == 1:
        return None
    inside = _match.used_outside(graph, (scale, node, end), end.outputs)
    if inside is not None or graph.use_count(x) != 2:
        return Refusal(_NAME, node.label, f"'{inside or x}' is used elsewhere too")
    layers = _layers(graph, x, end.outputs[0])
    if isinstance(layers, str):
        return Refusal(_NAME, node.label, layers)
    return _rewrite(graph, node, layers, factor)


def _layers(graph: Graph, x: str, y: str) -> tuple[Linear, Linear] | str:
    """The layers in front of and behind the function; a reason when one cannot take the factor."""
    front = _linear.read_product(graph, x)
    after = _match.next_op(graph, y, *PRODUCTS)
    back = _linear.read(graph, after) if after is not None and after.inputs[0] == y else None
    if front is None or not isinstance(back, Linear):
        side = "in front" if front is None else "behind"
        return f"no MatMul or Gemm by a constant weight {side} can take the factor"
    for layer in (front, back):
        if _linear.is_shared(graph, layer):
            return f"the weight '{layer.weight_name}' is shared with other nodes"
    return front, back


def _rewrite(graph: Graph, node: Node, layers: tuple[Linear, Linear], factor: float) -> Outcome:
    front, back = layers
    scaled = front.scaled(np.full(front.channels, factor), None)
    divided = back.weight_scaled(1 / factor)
    if scaled is None or divided is None:
        return Refusal(_NAME, node.label, "the weights would not be finite")
    first = Builder(graph, front.nodes[0])
    u = _linear.write(first, scaled, as_gemm=graph.rank(front.output) == 2)
    build = Builder(graph, back.nodes[0])
    silu = build.op("Mul", u, build.op("Sigmoid", u))
    build.nodes[:0], build.constants = first.nodes, {**first.constants, **build.constants}
    y = _linear.write(build, divided.of(silu))
    return build.rewrite({front.output: u, back.output: y}, f"x·sigmoid({factor:g}·x) to SiLU")

"""Layers that are linear in constant weights, and what scaling or shifting their output does to the weights.

A layer computes y = x·W + b with one output channel per row or column of W; a · y + c with one a and c a
channel is the same layer with other weights: W' = W · a, b' = b · a + c. Computed in float64, then cast.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.passes import _match
from graphkit.rewrite import Builder

CONVOLUTIONS = ("Conv", "ConvTranspose")
PRODUCTS = ("Gemm", "MatMul")


@dataclass(frozen=True)
class Linear:
    """A layer: its nodes (the last one makes `output`), weight and per-channel bias (None when it has none).

    `op_type` is Conv, ConvTranspose, Gemm or MatMul; `channels` the number of output channels, `group` the
    number of groups of a convolution. A MatMul's bias comes from an Add, which is then one of `nodes`.
    """

    op_type: str
    x: str
    weight_name: str
    weight: np.ndarray
    bias: np.ndarray | None
    channels: int
    output: str
    nodes: tuple[Node, ...]
    group: int = 1
    transposed: bool = False

    @property
    def dtype(self) -> np.dtype[Any]:
        """numpy dtype of the weights."""
        return self.weight.dtype

    def scaled(self, factor: np.ndarray | None, shift: np.ndarray | None) -> Linear | None:
        """The layer that computes `factor · y + shift` (of shape [channels] each); None if that overflows."""
        weight, bias = self.weight, self.bias
        with np.errstate(over="ignore", invalid="ignore"):
            if factor is not None:
                weight = (weight.astype(np.float64) * self._by_channel(factor)).astype(self.dtype)
                bias = None if bias is None else bias.astype(np.float64) * factor
            if shift is not None:
                bias = shift if bias is None else bias.astype(np.float64) + shift
            bias = None if bias is None else np.asarray(bias, np.float64).astype(self.dtype)
        made = [array for array in (weight, bias) if array is not None and array is not self.weight]
        return replace(self, weight=weight, bias=bias) if _match.all_finite(*made) else None

    def weight_scaled(self, factor: float) -> Linear | None:
        """The layer whose input is multiplied by a number first; the bias stays. None when that overflows."""
        scaled = replace(self, bias=None).scaled(np.full(self.channels, factor), None)
        return None if scaled is None else replace(scaled, bias=self.bias)

    def of(self, x: str) -> Linear:
        """The same layer on another input."""
        return replace(self, x=x)

    def _by_channel(self, factor: np.ndarray) -> np.ndarray:
        """Factors in a shape that multiplies the weight channel by channel."""
        factor, shape = factor.astype(np.float64), self.weight.shape
        if self.op_type == "Conv" or self.transposed:
            return factor.reshape(-1, *[1] * (len(shape) - 1))
        if self.op_type == "ConvTranspose":  # [in, out per group, …], the groups along the first axis
            rows = np.repeat(factor.reshape(self.group, -1), shape[0] // self.group, axis=0)
            return rows.reshape(*rows.shape, *[1] * (len(shape) - 2))
        return factor


def read(graph: Graph, node: Node) -> Linear | str | None:
    """The layer that a node is, a reason when its weights are not constant, None for other operators."""
    if node.domain or node.op_type not in (*CONVOLUTIONS, *PRODUCTS):
        return None
    weight = graph.constant(node.input(1))
    if weight is None or graph.dtype(node.input(1)) not in _match.FLOATS:
        return f"the weight of '{node.label}' is not a constant of floating point"
    if node.op_type == "MatMul":
        return _matmul(node, weight)
    bias = graph.constant(node.input(2)) if node.input(2) else None
    if node.input(2) and bias is None:
        return f"the bias of '{node.label}' is not constant"
    if weight.ndim < 2:
        return f"the weight of '{node.label}' has {weight.ndim} axes"
    return _gemm(node, weight, bias) if node.op_type == "Gemm" else _convolution(node, weight, bias)


def _matmul(node: Node, weight: np.ndarray) -> Linear | str:
    if weight.ndim != 2:
        return f"the weight of '{node.label}' has {weight.ndim} axes, not 2"
    x, name = node.inputs
    return Linear("MatMul", x, name, weight, None, weight.shape[1], node.outputs[0], (node,))


def _convolution(node: Node, weight: np.ndarray, bias: np.ndarray | None) -> Linear | str:
    group = node.attr("group", 1)
    channels = weight.shape[0] if node.op_type == "Conv" else weight.shape[1] * group
    if bias is not None and bias.shape != (channels,):
        return f"the bias of '{node.label}' is not one number a channel"
    x, name = node.inputs[:2]
    return Linear(node.op_type, x, name, weight, bias, channels, node.outputs[0], (node,), group)


def _gemm(node: Node, weight: np.ndarray, bias: np.ndarray | None) -> Linear | str:
    """alpha and beta are folded into what is read."""
    transposed = bool(node.attr("transB", 0))
    channels = weight.shape[0 if transposed else 1]
    alpha, beta = node.attr("alpha", 1.0), node.attr("beta", 1.0)
    if bias is not None:
        vector = per_channel(bias, 2, 1, channels)
        if vector is None:
            return f"the bias of '{node.label}' is not one number a channel"
        bias = vector if beta == 1.0 else (vector * np.float64(beta)).astype(weight.dtype)
    if alpha != 1.0:
        weight = (weight * np.float64(alpha)).astype(weight.dtype)
    x, name = node.inputs[:2]
    output, nodes = node.outputs[0], (node,)
    return Linear("Gemm", x, name, weight, bias, channels, output, nodes, transposed=transposed)


def is_shared(graph: Graph, layer: Linear) -> bool:
    """True when something else reads the weight too, or it is a graph output; in constant time."""
    return graph.sole_consumer(layer.weight_name) is None


def per_channel(array: np.ndarray | None, rank: int | None, axis: int, channels: int) -> np.ndarray | None:
    """A constant as one number a channel, for a value of this rank with its channels at `axis`.

    None when it differs along another axis or would add axes to the value. With the rank unknown, `axis` must
    be −1, and only a constant of rank 0 or 1 will do.
    """
    if array is None or array.ndim > (1 if rank is None else rank):
        return None
    shape = (1,) * ((rank or 1) - array.ndim) + array.shape
    at = axis % len(shape)
    if any(dim != 1 for index, dim in enumerate(shape) if index != at) or shape[at] not in (1, channels):
        return None
    return np.broadcast_to(array.reshape(-1), (channels,))


def read_product(graph: Graph, value: str) -> Linear | None:
    """The product that makes a value, an Add of a constant bias behind a MatMul included."""
    node = _match.made_by(graph, value, *PRODUCTS, "Add")
    if node is None:
        return None
    if node.op_type != "Add":
        layer = read(graph, node)
        return layer if isinstance(layer, Linear) else None
    operands = _match.with_constant(graph, node)
    product = _match.made_by(graph, operands[0], "MatMul") if operands is not None else None
    layer = read(graph, product) if product is not None else None
    if operands is None or not isinstance(layer, Linear) or graph.sole_consumer(layer.output) is not node:
        return None
    rank = graph.rank(layer.output)
    bias = per_channel(graph.constant(operands[1]), rank, -1, layer.channels)
    if bias is None:
        return None
    return replace(layer, bias=bias, output=node.outputs[0], nodes=(*layer.nodes, node))


def write(build: Builder, layer: Linear, *, as_gemm: bool = False) -> str:
    """Add the nodes of a layer with new weights; returns its output. `as_gemm`: a MatMul becomes a Gemm."""
    node = layer.nodes[0]
    weight = build.const(layer.weight, "weight")
    biases = [] if layer.bias is None else [build.const(layer.bias, "bias")]
    if layer.op_type == "MatMul" and as_gemm and biases:
        return build.op("Gemm", layer.x, weight, *biases)
    if layer.op_type == "MatMul":
        y = build.op("MatMul", layer.x, weight)
        return build.op("Add", y, *biases) if biases else y
    attrs = {key: value for key, value in node.attrs.items() if key not in ("alpha", "beta")}
    return build.op(layer.op_type, layer.x, weight, *biases, **attrs)

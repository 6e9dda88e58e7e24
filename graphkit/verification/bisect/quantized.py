"""What quantized weights may add to the error of one layer that is given right inputs.

Rounding moves each weight by up to half a step, evenly spread: the variance of an output element is the layer applied
to the squared inputs with step²/12 as weights. The step follows from the reference's own weights (largest magnitude of
the row or block over the largest code), not from the scales in the file: a wrong scale there stays a fault.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import ModelProto, NodeProto, TensorProto

from graphkit.graph import Graph, Node
from graphkit.mnn.document.files import Document
from graphkit.mnn.document.summary import summarize
from graphkit.model import Model
from graphkit.runtime import Session
from graphkit.verification.bisect.alignment import Alignment, region
from graphkit.verification.bisect.references import References

Array = npt.NDArray[Any]

_SIGMAS = 8.0  # the largest of a million elements is at 5; clipped weights are further off than half a step
_LINEAR = frozenset({"Conv", "ConvTranspose", "MatMul", "Gemm"})
_ACTIVATIONS = 2e-2  # of the largest value, where MNN quantizes what it reads, too (memory mode low, ConvInt8)


@dataclass(frozen=True)
class Scheme:
    """bits of a code; block: input channels that share a scale, 0 when an output channel has one; activations: what
    the operator reads is quantized, too."""

    bits: int
    block: int = 0
    activations: bool = False


def schemes(document: Document, mnn_memory: int = 0) -> dict[tuple[str, str], Scheme]:
    """The quantized operators of a file, by the names of graph and operator."""
    found = {}
    for layer in summarize(document).quantized:
        block = int(layer.sharing.removeprefix("block ")) if layer.sharing.startswith("block ") else 0
        found[layer.graph, layer.name] = Scheme(layer.bits, block, layer.activations or mnn_memory == 2)
    return found


def carriers(
    graph: Graph, alignments: Iterable[Alignment], found: Mapping[str, Scheme]
) -> dict[str, tuple[Node, tuple[Node, ...]]]:
    """The node with the weights of each quantized operator, and the nodes between it and the operator's value."""
    known = {item.tensors[0] for item in alignments}
    made = {}
    for item in alignments:
        if item.op.name not in found:
            continue
        nodes = region(graph, item.tensors[0], known - {item.tensors[0]}).nodes
        linear = [node for node in nodes if node.op in _LINEAR and len(node.inputs) > 1]
        linear = [
            node for node in linear if graph.is_constant(node.inputs[1]) and not graph.is_constant(node.inputs[0])
        ]
        if linear:
            made[item.op.name] = (linear[-1], nodes[nodes.index(linear[-1]) + 1 :])
    return made


def allowances(
    graph: Graph,
    layers: Mapping[str, tuple[Node, tuple[Node, ...]]],
    found: Mapping[str, Scheme],
    references: References,
    ends: Mapping[str, str],
) -> dict[str, float]:
    """What rounding may add, relative to the largest value of each operator's tensor (`ends`, by operator)."""
    made = {}
    for name, (node, behind) in layers.items():
        data = references.get_array(node.inputs[0])
        weight = graph.constant(node.inputs[1])
        if data is None or weight is None or weight.ndim < 2:
            continue
        sigma = _sigma(graph, node, np.asarray(data), np.asarray(weight), found[name])
        gain = float(np.prod([_gain(graph, other) for other in behind]))
        largest = float(np.abs(references.array(ends[name]).astype(np.float64)).max(initial=0))
        extra = _ACTIVATIONS if found[name].activations else 0.0
        made[name] = _SIGMAS * sigma * gain / max(largest, 1e-30) + extra
    return made


def _sigma(graph: Graph, node: Node, data: Array, weight: Array, scheme: Scheme) -> float:
    """The largest standard deviation of an output element."""
    outputs, inputs = _axes(node)
    steps = _steps(weight, outputs, inputs, scheme)
    proto = NodeProto.FromString(node.proto.SerializeToString())
    del proto.input[:], proto.output[:]
    proto.input.extend(["x", "w"])
    proto.output.append("y")
    model = ModelProto(ir_version=8)
    model.opset_import.add(version=graph.opset())
    model.graph.name = "variance"
    model.graph.node.append(proto)
    for name, array in (("x", data), ("w", weight)):
        info = onnx.helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * array.ndim)
        model.graph.input.append(info)
    model.graph.output.append(onnx.ValueInfoProto(name="y"))
    squares = {"x": np.square(data.astype(np.float32)), "w": (np.square(steps) / 12).astype(np.float32)}
    with Session(Model.from_proto(model)) as session:
        variance = session.run(squares)["y"]
    return float(np.sqrt(np.abs(variance).max(initial=0)))


def _axes(node: Node) -> tuple[int, int]:
    """The axes of output and input channels in a weight."""
    if node.op == "Conv":
        return 0, 1
    if node.op == "ConvTranspose":
        return 1, 0
    return (0, 1) if node.op == "Gemm" and node.attr("transB", 0) else (1, 0)


def _steps(weight: Array, outputs: int, inputs: int, scheme: Scheme) -> Array:
    """The step of each weight: of its output channel, or of its block of input channels."""
    sizes = np.abs(weight.astype(np.float64))
    most = float(2 ** (scheme.bits - 1) - 1)
    width = weight.shape[inputs]
    if not scheme.block or width % scheme.block:
        others = tuple(axis for axis in range(weight.ndim) if axis != outputs)
        return np.broadcast_to(sizes.max(axis=others, keepdims=True), weight.shape) / most
    moved = np.moveaxis(sizes, (outputs, inputs), (0, 1))
    cut = moved.reshape(moved.shape[0], width // scheme.block, -1).max(axis=2)
    full = np.repeat(cut, scheme.block, axis=1).reshape(*moved.shape[:2], *([1] * (moved.ndim - 2)))
    return np.moveaxis(np.broadcast_to(full, moved.shape), (0, 1), (outputs, inputs)) / most


def _gain(graph: Graph, node: Node) -> float:
    """By how much a node behind the layer, which MNN folds into it, can widen an error."""
    if node.op == "BatchNormalization":
        scale, variance = graph.constant(node.inputs[1]), graph.constant(node.inputs[4])
        if scale is None or variance is None:
            return 1.0
        return float((np.abs(scale) / np.sqrt(variance + float(node.attr("epsilon", 1e-5)))).max(initial=0))
    if node.op in ("Mul", "Div"):
        factor = next((graph.constant(name) for name in node.inputs if graph.is_constant(name)), None)
        if factor is not None and factor.size:
            sizes = np.abs(factor.astype(np.float64))
            return float(sizes.max() if node.op == "Mul" else 1 / max(sizes.min(), 1e-30))
    return 1.0

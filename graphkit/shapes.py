"""Shape inference on the graph: ONNX's own, with data propagation, on what can be trusted only.

Shapes that a file declares for inner values and outputs are left out: exporters and editors leave wrong ones
behind, and a shape that is believed is folded into the model for good.
"""

from __future__ import annotations

import onnx
from onnx import GraphProto, ModelProto, ValueInfoProto

from graphkit.graph import Graph
from graphkit.node import TensorType, type_of_info


def infer(graph: Graph) -> int:
    """Infer types of all values of a root graph and its subgraphs; returns how many values have one.

    Weights are not read: shape inference sees constants below 4 KiB only, which all shapes and axes are.
    Source of the method: onnx.shape_inference with `data_prop` (ONNX docs/ShapeInference.md).
    """
    proto = graph.to_model().proto
    _forget(proto.graph)
    try:
        inferred = onnx.shape_inference.infer_shapes(
            proto, check_type=False, strict_mode=False, data_prop=True
        )
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError):
        # An operator that inference chokes on must not keep the others from their passes: then nothing is known.
        return 0
    return _take(graph, inferred.graph)


def _forget(proto: GraphProto) -> None:
    del proto.value_info[:]
    for info in proto.output:
        if info.type.HasField("tensor_type"):
            info.type.tensor_type.ClearField("shape")
    for node in proto.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                _forget(attribute.g)


def _take(graph: Graph, proto: GraphProto) -> int:
    infos = {info.name: info for info in (*proto.value_info, *proto.output)}
    known = {name: info for name, info in infos.items() if name in graph._producer and _has_type(info)}
    graph.set_inferred(known)
    count = len(known)
    with_subgraphs = [node for node in graph.nodes if node.subgraphs]
    if not with_subgraphs:
        return count
    by_output = {node.output[0]: node for node in proto.node if node.output}
    for node in with_subgraphs:
        inner = by_output.get(node.outputs[0])
        for attribute in inner.attribute if inner is not None else ():
            if attribute.name in node.subgraphs:
                count += _take(node.subgraphs[attribute.name], attribute.g)
    return count


def _has_type(info: ValueInfoProto) -> bool:
    type_ = type_of_info(info)
    return type_ is not None and bool(type_.dtype or type_.shape is not None)


def output_types(proto: ModelProto) -> dict[str, TensorType]:
    """Declared types of the outputs that are tensors."""
    types = {info.name: type_of_info(info) for info in proto.graph.output}
    return {name: type_ for name, type_ in types.items() if type_ is not None}

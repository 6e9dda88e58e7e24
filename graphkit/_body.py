"""Writing graphs back to protobufs, snapshots, and the structural check."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar, cast

from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, ValueInfoProto

from graphkit.errors import ModelError
from graphkit.node import Node, TensorType, type_proto
from graphkit.weights import Weight

if TYPE_CHECKING:
    from graphkit.graph import Graph
    from graphkit.model import Model

_Value = TypeVar("_Value")


# -- writing ----------------------------------------------------------------------------------------------

FREE_INITIALIZERS = 4  # first IR version in which an initializer need not be a graph input


def write_model(graph: Graph) -> ModelProto:
    """The whole model as a protobuf; header fields as they were read, operator sets as they are now."""
    source = graph.model.proto
    model = ModelProto()
    for field, value in source.ListFields():
        if field.name in ("graph", "functions", "opset_import"):
            continue
        if field.is_repeated:
            getattr(model, field.name).extend(value)
        elif field.message_type is not None:
            getattr(model, field.name).CopyFrom(value)
        else:
            setattr(model, field.name, text(value))
    if any(name not in graph.input_infos for name in graph.initializers):
        model.ir_version = max(model.ir_version, FREE_INITIALIZERS)
    for domain, version in graph.opsets.items():
        model.opset_import.add(domain=domain, version=version)
    fill_proto(graph, model.graph)
    model.functions.extend(write_function(function) for function in graph.functions.values())
    return model


def text(value: _Value) -> _Value:
    """The value; if it is a string of the file that is not UTF-8 (protobuf gives bytes then), as UTF-8."""
    return cast(_Value, value.decode("utf-8", "replace")) if isinstance(value, bytes) else value


def write_graph(graph: Graph) -> GraphProto:
    """One graph as a protobuf."""
    proto = GraphProto()
    fill_proto(graph, proto)
    return proto


def fill_proto(graph: Graph, proto: GraphProto) -> None:
    """Write a graph into an empty protobuf."""
    proto.name = graph.name
    if graph.doc is not None:
        if graph.doc.doc_string:
            proto.doc_string = text(graph.doc.doc_string)
        proto.metadata_props.extend(graph.doc.metadata_props)
        proto.quantization_annotation.extend(
            note for note in graph.doc.quantization_annotation if graph.defines(note.tensor_name)
        )
    proto.node.extend(write_node(node) for node in graph.nodes)
    proto.input.extend(graph.input_infos.values())
    proto.output.extend(graph.output_infos.values())
    proto.initializer.extend(weight.proto for weight in graph.initializers.values())
    inner = graph._producer.keys() - graph.output_infos.keys()
    proto.value_info.extend(
        info for name, info in graph.declared.items() if name in inner and name not in graph.inferred
    )
    for name, type_ in graph.inferred.items():
        if name in inner:
            proto.value_info.add(name=name).type.CopyFrom(type_proto(type_))


def write_function(graph: Graph) -> FunctionProto:
    """A local function as a protobuf."""
    proto = FunctionProto()
    proto.CopyFrom(cast(FunctionProto, graph.function))
    del proto.node[:], proto.opset_import[:], proto.value_info[:]
    proto.node.extend(write_node(node) for node in graph.nodes)
    for domain, version in graph.opsets.items():
        proto.opset_import.add(domain=domain, version=version)
    source = cast(FunctionProto, graph.function)
    proto.value_info.extend(info for info in source.value_info if graph.defines(info.name))
    return proto


def write_node(node: Node) -> NodeProto:
    """A node as a protobuf, with its subgraphs as they are now."""
    if not node.subgraphs:
        return node.proto
    proto = NodeProto()
    proto.CopyFrom(node.proto)
    for attribute in proto.attribute:
        if attribute.type == AttributeProto.GRAPH:
            attribute.g.Clear()
            fill_proto(node.subgraphs[attribute.name], attribute.g)
        elif attribute.type == AttributeProto.GRAPHS:
            for index, inner in enumerate(attribute.graphs):
                inner.Clear()
                fill_proto(node.subgraphs[f"{attribute.name}[{index}]"], inner)
    return proto


# -- snapshots --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Snapshot:
    """State of a root graph; nodes without subgraphs and weights are shared with it."""

    model: Model
    opsets: dict[str, int]
    nodes: list[NodeProto]
    inputs: dict[str, ValueInfoProto]
    outputs: dict[str, ValueInfoProto]
    initializers: dict[str, Weight]
    inferred: dict[str, TensorType]
    declared: dict[str, ValueInfoProto]
    functions: list[FunctionProto]
    name: str
    doc: GraphProto | None
    inner: list[dict[str, TensorType]]  # inferred types of the subgraphs, outer ones first


def snapshot(graph: Graph) -> Snapshot:
    """Take a snapshot of a root graph."""
    return Snapshot(
        model=graph.model,
        opsets=dict(graph.opsets),
        nodes=[write_node(node) for node in graph.nodes],
        inputs=dict(graph.input_infos),
        outputs=dict(graph.output_infos),
        initializers=dict(graph.initializers),
        inferred=dict(graph.inferred),
        declared=dict(graph.declared),
        functions=[write_function(function) for function in graph.functions.values()],
        name=graph.name,
        doc=graph.doc,
        inner=[inner.inferred.copy() for inner in graph.walk() if inner is not graph],
    )


# -- structure --------------------------------------------------------------------------------------------


def find_problem(graph: Graph) -> str | None:
    """The first structural problem of a graph and the graphs inside it, in words; None when all is well."""
    known = {*graph.input_infos, *graph.initializers}
    outer = graph.parent
    for node in graph.nodes:
        for value in node.inputs:
            if value and value not in known and not (outer and outer.sees(value)):
                state = "used before it is made" if value in graph._producer else "not defined"
                return f"node '{node.label}' reads value '{value}', which is {state}"
        for sub in node.subgraphs.values():
            for value in sub.captures():
                if value not in known and not (outer and outer.sees(value)):
                    return f"a subgraph of node '{node.label}' reads value '{value}', which is not defined there"
            if problem := find_problem(sub):
                return problem
        known.update(node.outputs)
    for value in graph.output_infos:
        if value not in known and not (outer and outer.sees(value)):
            return f"graph output '{value}' is not made by any node"
    return None


def sort(graph: Graph) -> None:
    """Put nodes after what they use, otherwise in the order they have (Kahn's algorithm).

    Raises ModelError when nodes depend on one another in a circle.
    """
    nodes = list(graph.nodes)
    rank = {node: index for index, node in enumerate(nodes)}
    waits = {
        node: {p for value in graph.values_used_by(node) if (p := graph.producer(value)) is not None} for node in nodes
    }
    followers: dict[Node, list[Node]] = {}
    for node, needed in waits.items():
        for producer in needed:
            followers.setdefault(producer, []).append(node)
    ready = [rank[node] for node, needed in waits.items() if not needed]
    heapq.heapify(ready)
    order = []
    while ready:
        node = nodes[heapq.heappop(ready)]
        order.append(node)
        for follower in followers.get(node, ()):
            waits[follower].discard(node)
            if not waits[follower]:
                heapq.heappush(ready, rank[follower])
    if len(order) < len(nodes):
        stuck = next(node for node in nodes if waits[node])
        raise ModelError("the graph has a cycle", node=stuck.label)
    graph.reorder(order)

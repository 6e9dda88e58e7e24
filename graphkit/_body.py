"""Reading graphs out of protobufs and writing them back, snapshots, and the structural check."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np
import onnx
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, ValueInfoProto

from graphkit.errors import ModelError
from graphkit.node import Node, normal_domain
from graphkit.weights import Weight, WeightStore

if TYPE_CHECKING:
    from graphkit.graph import Graph
    from graphkit.model import Model


# -- reading ----------------------------------------------------------------------------------------------


def read_model(graph: Graph, proto: ModelProto) -> None:
    """Fill the root graph from a model; sorts nodes that stand before what they use."""
    _clear(graph)
    graph.opsets = {normal_domain(opset.domain): opset.version for opset in proto.opset_import}
    read_graph(graph, proto.graph)
    if find_problem(graph):
        sort(graph)
        if problem := find_problem(graph):
            raise ModelError(problem, file=graph.model.path)
    for inner in list(graph.walk())[1:]:
        unshadow(inner)
    graph.functions = {
        (f.domain, f.name, getattr(f, "overload", "")): read_function(graph, f) for f in proto.functions
    }


def _clear(graph: Graph) -> None:
    type(graph).__init__(graph, graph.model, gate=graph.gate)


def read_graph(graph: Graph, proto: GraphProto) -> None:
    """Fill an empty graph from a GraphProto."""
    graph.name = proto.name
    graph.doc = proto
    graph.input_infos = {info.name: info for info in proto.input}
    graph.output_infos = {info.name: info for info in proto.output}
    graph.declared = {info.name: info for info in proto.value_info}
    store = graph.store
    graph.initializers = {tensor.name: Weight(tensor, store) for tensor in proto.initializer}
    for node in proto.node:
        graph.insert(node)


def read_function(root: Graph, proto: FunctionProto) -> Graph:
    """Index a local function; its inputs and outputs have names only."""
    graph = type(root)(root.model)
    graph.is_function, graph.function, graph.name = True, proto, proto.name
    graph.opsets = {normal_domain(opset.domain): opset.version for opset in proto.opset_import}
    graph.input_infos = {name: ValueInfoProto(name=name) for name in proto.input}
    graph.output_infos = {name: ValueInfoProto(name=name) for name in proto.output}
    for node in proto.node:
        graph.insert(node)
    return graph


def read_subgraphs(node: Node, graph: Graph) -> None:
    """Index the graph attributes of a node that is about to join `graph`."""
    for attribute in node.proto.attribute:
        if attribute.type == AttributeProto.GRAPH:
            node.subgraphs[attribute.name] = _read_subgraph(node, graph, attribute.g)
        elif attribute.type == AttributeProto.GRAPHS:
            for index, proto in enumerate(attribute.graphs):
                node.subgraphs[f"{attribute.name}[{index}]"] = _read_subgraph(node, graph, proto)


def _read_subgraph(node: Node, graph: Graph, proto: GraphProto) -> Graph:
    sub = type(graph)(graph.model)
    read_graph(sub, proto)  # without a parent: the parent counts the captures when it links the node
    sub.parent, sub.owner = graph, node
    return sub


def unshadow(graph: Graph) -> None:
    """Rename what this subgraph defines under a name that an outer graph defines too."""
    mine = [*graph.input_infos, *graph.initializers, *graph._producer]
    outer = graph.parent
    while outer is not None:
        for name in mine:
            if outer.defines(name) and graph.defines(name):
                graph.rename(name, graph.new_name(name))
        outer = outer.parent


# -- writing ----------------------------------------------------------------------------------------------


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
            setattr(model, field.name, value)
    for domain, version in graph.opsets.items():
        model.opset_import.add(domain=domain, version=version)
    model.graph.CopyFrom(write_graph(graph))
    model.functions.extend(write_function(function) for function in graph.functions.values())
    return model


def write_graph(graph: Graph) -> GraphProto:
    """One graph as a protobuf."""
    proto = GraphProto(name=graph.name)
    if graph.doc is not None:
        proto.doc_string = graph.doc.doc_string
        proto.metadata_props.extend(graph.doc.metadata_props)
        proto.quantization_annotation.extend(graph.doc.quantization_annotation)
        proto.sparse_initializer.extend(graph.doc.sparse_initializer)
    proto.node.extend(write_node(node) for node in graph.nodes)
    proto.input.extend(graph.input_infos.values())
    proto.output.extend(graph.output_infos.values())
    proto.initializer.extend(weight.proto for weight in graph.initializers.values())
    infos = {**graph.declared, **graph.inferred}
    proto.value_info.extend(
        info for name, info in infos.items() if name in graph._producer and name not in graph.output_infos
    )
    return proto


def write_function(graph: Graph) -> FunctionProto:
    """A local function as a protobuf."""
    proto = FunctionProto()
    proto.CopyFrom(cast(FunctionProto, graph.function))
    del proto.node[:]
    proto.node.extend(write_node(node) for node in graph.nodes)
    return proto


def write_node(node: Node) -> NodeProto:
    """A node as a protobuf, with its subgraphs as they are now."""
    if not node.subgraphs:
        return node.proto
    proto = NodeProto()
    proto.CopyFrom(node.proto)
    for attribute in proto.attribute:
        if attribute.type == AttributeProto.GRAPH:
            attribute.g.CopyFrom(write_graph(node.subgraphs[attribute.name]))
        elif attribute.type == AttributeProto.GRAPHS:
            for index, inner in enumerate(attribute.graphs):
                inner.CopyFrom(write_graph(node.subgraphs[f"{attribute.name}[{index}]"]))
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
    inferred: dict[str, ValueInfoProto]
    declared: dict[str, ValueInfoProto]
    functions: list[FunctionProto]


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
    )


def restore(graph: Graph, state: Snapshot) -> None:
    """Put a root graph back into the state of a snapshot."""
    name, doc = graph.name, graph.doc
    graph.model = state.model
    _clear(graph)
    graph.name, graph.doc = name, doc
    graph.opsets = dict(state.opsets)
    graph.input_infos, graph.output_infos = dict(state.inputs), dict(state.outputs)
    graph.initializers = dict(state.initializers)
    graph.inferred, graph.declared = dict(state.inferred), dict(state.declared)
    for proto in state.nodes:
        graph.insert(proto)
    graph.functions = {
        (f.domain, f.name, getattr(f, "overload", "")): read_function(graph, f) for f in state.functions
    }


# -- structure --------------------------------------------------------------------------------------------


def find_problem(graph: Graph) -> str | None:
    """The first structural problem of a graph and the graphs inside it, in words; None when all is well."""
    known = {*graph.input_infos, *graph.initializers}
    outer = graph.parent
    for node in graph.nodes:
        for value in node.inputs:
            if value and value not in known and not _defined_outside(value, outer):
                state = "used before it is made" if value in graph._producer else "not defined"
                return f"node '{node.label}' reads value '{value}', which is {state}"
        for sub in node.subgraphs.values():
            for value in sub.captures():
                if value not in known and not _defined_outside(value, outer):
                    return (
                        f"a subgraph of node '{node.label}' reads value '{value}', which is not defined there"
                    )
            if problem := find_problem(sub):
                return problem
        known.update(node.outputs)
    for value in graph.output_infos:
        if value not in known and not _defined_outside(value, outer):
            return f"graph output '{value}' is not made by any node"
    return None


def _defined_outside(value: str, outer: Graph | None) -> bool:
    while outer is not None:
        if outer.defines(value):
            return True
        outer = outer.parent
    return False


def sort(graph: Graph) -> None:
    """Put nodes after what they use, otherwise in the order they have. Cycles are left for the check to name."""
    nodes = list(graph.nodes)
    rank = {node: index for index, node in enumerate(nodes)}
    waits = {
        node: {p for value in graph.values_used_by(node) if (p := graph.producer(value)) is not None}
        for node in nodes
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
    if len(order) == len(nodes):
        for node in order:
            graph._unlink(node)
            graph._link(node, None)


# -- constants --------------------------------------------------------------------------------------------


def constant_proto(weight: Weight) -> NodeProto:
    """A Constant node that makes the value of `weight` under its name."""
    proto = NodeProto(op_type="Constant", output=[weight.name], name=f"{weight.name}/Constant")
    attribute = proto.attribute.add(name="value", type=AttributeProto.TENSOR)
    attribute.t.CopyFrom(weight.proto)
    return proto


def constant_node_value(node: Node, store: WeightStore) -> np.ndarray | None:
    """Value of a Constant node of any attribute form, None for other nodes and sparse values."""
    if node.op_type != "Constant" or node.domain:
        return None
    if node._value is None and node.proto.attribute:
        node._value = _decode_constant(node.proto.attribute[0], store)
    return cast("np.ndarray | None", node._value)


def _decode_constant(attribute: AttributeProto, store: WeightStore) -> np.ndarray | None:
    name = attribute.name
    if name == "value":
        return Weight(attribute.t, store).array()
    value = onnx.helper.get_attribute_value(attribute)
    dtypes = {
        "value_int": np.int64,
        "value_ints": np.int64,
        "value_float": np.float32,
        "value_floats": np.float32,
    }
    if name in dtypes:
        return np.array(list(value) if name.endswith("s") else value, dtype=dtypes[name])
    if name in ("value_string", "value_strings"):
        return np.array(list(value) if name.endswith("s") else value, dtype=object)
    return None

"""Reading graphs out of protobufs and snapshots, and making them sound on the way."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, TypeVar

from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, ValueInfoProto

from graphkit._body import Snapshot, find_problem, sort, text
from graphkit.errors import GraphkitError, ModelError
from graphkit.model import one_line
from graphkit.node import Node, normal_domain, renamed_info
from graphkit.weights import Weight, dense_weight

if TYPE_CHECKING:
    from graphkit.graph import Graph


class _HasName(Protocol):
    @property
    def name(self) -> str: ...


_Named = TypeVar("_Named", bound=_HasName)


def read_model(graph: Graph, proto: ModelProto) -> None:
    """Fill the root graph from a model; sorts nodes that stand before what they use.

    Raises ModelError for graphs that are not valid: values undefined or defined twice, cycles, damaged names.
    """
    clear(graph)
    graph.opsets = {normal_domain(text(opset.domain)): opset.version for opset in proto.opset_import}
    try:
        _by_name(proto.graph.output, "graph output")
        with collector_paused():
            read_graph(graph, proto.graph)
            settle(graph)
            graph.functions = {function_key(f): read_function(graph, f) for f in proto.functions}
            for function in graph.functions.values():
                settle(function)
    except GraphkitError as error:
        problem = one_line(error)
        problem.file = str(graph.model.path or "model")
        raise problem from error


def clear(graph: Graph) -> None:
    """Empty a root graph; nodes that were in it are dead afterwards."""
    for inner in (graph, *graph.functions.values()):
        for node in inner.nodes:
            node.alive = False
    type(graph).__init__(graph, graph.model, gate=graph.gate)


@contextmanager
def collector_paused() -> Iterator[None]:
    """Do without the garbage collector: it would look through all nodes again and again and find nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            if not gc.get_freeze_count():  # count what was made as old already, as a look through it would
                gc.freeze()
                gc.unfreeze()
            gc.enable()


def read_graph(graph: Graph, proto: GraphProto) -> None:
    """Fill an empty graph from a GraphProto."""
    graph.name = text(proto.name)
    graph.doc = proto
    graph.input_infos = _by_name(proto.input, "graph input")
    graph.declared = {info.name: info for info in proto.value_info}
    store = graph.store
    weights = [Weight(tensor, store) for tensor in proto.initializer]
    weights.extend(dense_weight(sparse, store) for sparse in proto.sparse_initializer)
    graph.initializers = _by_name(weights, "initializer")
    graph.fill(proto.node)
    graph.output_infos = {info.name: info for info in proto.output}
    if len(graph.output_infos) != len(proto.output):
        _read_repeated_outputs(graph, proto)


def _by_name(items: Iterable[_Named], what: str) -> dict[str, _Named]:
    table: dict[str, _Named] = {}
    for item in items:
        if item.name in table:
            raise ModelError(f"{what} '{item.name}' is listed twice")
        table[item.name] = item
    return table


def _read_repeated_outputs(graph: Graph, proto: GraphProto) -> None:
    """Give a value that is several outputs of a subgraph an Identity for each but the first."""
    graph.output_infos = {}
    for index, info in enumerate(proto.output):
        name = info.name
        if name in graph.output_infos:
            name = f"{info.name}_output_{index}"
            while graph.defines(name) or graph.is_used(name):
                name += "_"
            graph.insert(NodeProto(op_type="Identity", input=[info.name], output=[name], name=name))
        graph.output_infos[name] = renamed_info(info, info.name, name)


def function_key(proto: FunctionProto) -> tuple[str, str, str]:
    """What tells local functions apart: domain, name, overload."""
    return proto.domain, proto.name, getattr(proto, "overload", "")


def read_function(root: Graph, proto: FunctionProto) -> Graph:
    """Index a local function; its inputs and outputs have names only. Its gate is that of the root."""

    def gate(node: str, what: str) -> bool:
        return root.gate(node, what)  # the one it has then, not the one it has now

    graph = type(root)(root.model, gate=gate)
    graph.is_function, graph.function, graph.name = True, proto, proto.name
    graph.opsets = {normal_domain(opset.domain): opset.version for opset in proto.opset_import}
    graph.input_infos = _by_name([ValueInfoProto(name=name) for name in proto.input], "function input")
    graph.fill(proto.node)
    graph.output_infos = _by_name([ValueInfoProto(name=name) for name in proto.output], "function output")
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
    read_graph(sub, proto)  # without a parent: the parent counts the captures when the node joins it
    sub.parent, sub.owner = graph, node
    return sub


def settle(graph: Graph) -> None:
    """Make a graph that was just read sound: nodes in order, no inner name hides an outer one."""
    graphs = list(graph.walk())
    for inner in graphs:
        _check_names(inner)
    if find_problem(graph):
        for inner in graphs:
            sort(inner)
        if problem := find_problem(graph):
            raise ModelError(problem)
    for inner in graphs[1:]:
        unshadow(inner)


def _check_names(graph: Graph) -> None:
    if set(map(type, graph.all_names())) - {str}:
        damaged = next(name for name in graph.all_names() if not isinstance(name, str))
        raise ModelError(f"the name {damaged!r} is not valid UTF-8")


def unshadow(graph: Graph) -> None:
    """Rename what this subgraph defines under a name that an outer graph defines too."""
    outer = graph.parent
    assert outer is not None
    for name in [*graph.input_infos, *graph.initializers, *graph._producer]:
        if outer.sees(name) and graph.defines(name):
            graph.rename(name, graph.new_name(name))


def restore(graph: Graph, state: Snapshot) -> None:
    """Put a root graph back into the state of a snapshot."""
    graph.model = state.model
    clear(graph)
    graph.name, graph.doc = state.name, state.doc
    graph.opsets = dict(state.opsets)
    graph.input_infos, graph.output_infos = dict(state.inputs), dict(state.outputs)
    graph.initializers = dict(state.initializers)
    graph.inferred, graph.declared = dict(state.inferred), dict(state.declared)
    with collector_paused():
        graph.fill(state.nodes)
        graph.functions = {function_key(f): read_function(graph, f) for f in state.functions}
    subgraphs = (inner for inner in graph.walk() if inner is not graph)
    for inner, inferred in zip(subgraphs, state.inner, strict=True):
        inner.inferred = inferred.copy()

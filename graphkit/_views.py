"""The graph as other libraries see it: onnx-graphsurgeon for plugin authors, networkx for algorithms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onnx import ModelProto

from graphkit.errors import UsageError

if TYPE_CHECKING:
    import networkx

    from graphkit.graph import Graph
    from graphkit.node import Node


def _graphsurgeon() -> Any:
    try:
        import onnx_graphsurgeon
    except ImportError as error:
        raise UsageError(
            "this pass needs onnx-graphsurgeon, which is not installed",
            hint="pip install 'graphkit-mnn[graphsurgeon]'",
        ) from error
    return onnx_graphsurgeon


def to_graphsurgeon(model: ModelProto) -> Any:
    """Import a self-contained model into onnx-graphsurgeon."""
    return _graphsurgeon().import_onnx(model)


def from_graphsurgeon(graph: Any, header: ModelProto) -> ModelProto:
    """Export an onnx-graphsurgeon graph; metadata and IR version are those of `header`.

    Nodes may be in any order: they are sorted when they are read.
    """
    model: ModelProto = _graphsurgeon().export_onnx(graph, do_type_check=False)
    model.ir_version = max(header.ir_version, 4)
    del model.metadata_props[:]
    model.metadata_props.extend(header.metadata_props)
    return model


def to_networkx(graph: Graph) -> networkx.MultiDiGraph[Node]:
    """Nodes as keys; an edge (maker, user, key=value name) for every value that a node uses."""
    import networkx

    result: networkx.MultiDiGraph[Node] = networkx.MultiDiGraph()
    for node in graph.nodes:
        result.add_node(node, op=node.op, label=node.label)
    for node in graph.nodes:
        for value in sorted(graph.values_used_by(node)):
            producer = graph.producer(value)
            if producer is not None:
                result.add_edge(producer, node, key=value)
    return result

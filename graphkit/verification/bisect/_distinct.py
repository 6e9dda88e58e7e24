"""Node names that come up once: onnxruntime takes no model in which two nodes of a graph have one name."""

from __future__ import annotations

from onnx import GraphProto, ModelProto

from graphkit.model import Model, walk_graphs


def distinct(model: Model) -> Model:
    """The model with `#2` and so on behind names that came before in the same graph; the same model if there are none.

    Weights are shared.
    """
    if not any(_repeats(graph) for graph in walk_graphs(model.proto.graph)):
        return model
    proto = ModelProto()
    proto.CopyFrom(model.proto)
    for graph in walk_graphs(proto.graph):
        _rename(graph)
    return Model(proto, model.store, model.path)


def _repeats(graph: GraphProto) -> bool:
    names = [node.name for node in graph.node if node.name]
    return len(names) > len(set(names))


def _rename(graph: GraphProto) -> None:
    taken = {node.name for node in graph.node}
    seen: set[str] = set()
    for node in graph.node:
        if node.name in seen:
            number = 2
            while f"{node.name}#{number}" in taken:
                number += 1
            node.name = f"{node.name}#{number}"
            taken.add(node.name)
        if node.name:
            seen.add(node.name)

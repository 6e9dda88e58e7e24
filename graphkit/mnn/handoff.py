"""The last touches on a graph before MNNConvert gets it: what its file format cannot say otherwise."""

from __future__ import annotations

from onnx import NodeProto

from graphkit.graph import Graph
from graphkit.model import Model
from graphkit.weights import renamed_weight


def ready(model: Model) -> Model:
    """The model with every output made by a node: MNN has no outputs that are constants, and runs Identity right.

    An output that is an input of the model stays as it is: there the names are the same.
    """
    graph = Graph.of(model)
    constants = [name for name in graph.outputs if name in graph.initializers and name not in graph.input_infos]
    if not constants:
        return model
    for output in constants:
        value = graph.new_name(f"{output}/value")
        graph.put_initializer(value, renamed_weight(graph.initializers[output], value))
        graph.replace_all_uses(output, value)
        graph.remove_initializer(output)
        name = graph.new_name(f"{output}/Identity")
        graph.insert(NodeProto(op_type="Identity", name=name, input=[value], output=[output]))
    return graph.to_model()

"""The last touches on a graph before MNNConvert gets it: what its file format cannot say otherwise."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import NodeProto, TensorProto

from graphkit._wire import MAX_MESSAGE
from graphkit.graph import Graph
from graphkit.model import Model
from graphkit.weights import renamed_weight


def ready(model: Model) -> Model:
    """The model with every output made by a node: MNN has no outputs that are constants, and runs Identity right.

    An output that is an input of the model stays as it is: there the names are the same. RoiAlign before operator
    set 16 gets the attribute that names its coordinates: MNN reads it in every set and assumes what came with 16.
    """
    graph = Graph.of(model)
    named = _name_coordinates(graph)
    constants = [name for name in graph.outputs if name in graph.initializers and name not in graph.input_infos]
    if not constants and not named:
        return model
    for output in constants:
        value = graph.new_name(f"{output}/value")
        graph.put_initializer(value, renamed_weight(graph.initializers[output], value))
        graph.replace_all_uses(output, value)
        graph.remove_initializer(output)
        name = graph.new_name(f"{output}/Identity")
        graph.insert(NodeProto(op_type="Identity", name=name, input=[value], output=[output]))
    return graph.to_model()


def _name_coordinates(graph: Graph) -> bool:
    """Say `output_half_pixel` at each RoiAlign of an older operator set; True when there was one."""
    if graph.opset() >= 16:
        return False
    old = [node for inner in graph.walk() for node in inner.nodes if node.op == "RoiAlign"]
    for node in old:
        made = NodeProto.FromString(node.proto.SerializeToString())
        made.attribute.append(onnx.helper.make_attribute("coordinate_transformation_mode", "output_half_pixel"))
        node.graph.replace_node(node, made)
    return bool(old)


def write(model: Model, path: Path) -> None:
    """Write the file that MNNConvert reads: it takes float16 weights in a file of their own for something else."""
    weights = list(model.weights()) if model.external else []
    halves = any(weight.data_type == TensorProto.FLOAT16 for weight in weights)
    fits = sum(weight.nbytes for weight in weights) + model.proto.ByteSize() < MAX_MESSAGE
    model.save(path, external=False if halves and fits else None)

"""The last touches on a graph before MNNConvert gets it: what its file format cannot say otherwise."""

from __future__ import annotations

import copy
from pathlib import Path

import onnx
from onnx import NodeProto, TensorProto, numpy_helper

from graphkit._wire import MAX_MESSAGE
from graphkit.graph import Graph
from graphkit.model import Model, tensors
from graphkit.weights import renamed_weight

_TYPED = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data")


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


def _raw(model: Model) -> Model:
    """The model with the values of all tensors, but for text, as raw bytes."""
    if not any(map(_typed, tensors(model.proto))):
        return model
    proto = copy.deepcopy(model.proto)
    for tensor in filter(_typed, tensors(proto)):
        raw = numpy_helper.from_array(numpy_helper.to_array(tensor)).raw_data
        for field in _TYPED:
            tensor.ClearField(field)
        tensor.raw_data = raw
    return Model(proto, model.store, model.path)


def _typed(tensor: TensorProto) -> bool:
    return any(len(getattr(tensor, field)) for field in _TYPED)


def write(model: Model, path: Path) -> None:
    """Write the file that MNNConvert reads.

    It takes float16 weights in a file of their own for something else, and numbers in the typed fields of a tensor
    (int32_data, …) for bytes: int8 and bool are wrong, 16 bits, uint32 and bfloat16 end it (MNN 3.6.1). As raw bytes
    all are right.
    """
    model = _raw(model)
    weights = list(model.weights()) if model.external else []
    halves = any(weight.data_type == TensorProto.FLOAT16 for weight in weights)
    fits = sum(weight.nbytes for weight in weights) + model.proto.ByteSize() < MAX_MESSAGE
    model.save(path, external=False if halves and fits else None)

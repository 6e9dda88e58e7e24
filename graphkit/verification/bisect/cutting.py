"""Cutting a region out of a model: a model of its own that reads what the region reads and makes what it makes.

Sizes stay as dynamic as they are in the whole model, for MNN's converter treats known and unknown sizes differently;
weights are shared with the whole model. A region in the body of an If, Loop or Scan is cut out of the body: what it
takes from outside becomes an input or, where constant, an initializer.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

from graphkit import _body
from graphkit.errors import ModelError, UsageError
from graphkit.graph import Graph
from graphkit.model import Model
from graphkit.node import TensorType, make_info
from graphkit.verification.bisect.regions import Region, between

Array = npt.NDArray[Any]
Values = Mapping[str, Array]

_THROUGH = "graphkit/through"
_FLOAT, _DOUBLE = TensorProto.FLOAT, TensorProto.DOUBLE


def cut(region: Region, values: Values, *, expose: Sequence[str] = (), fold: Collection[str] = ()) -> Model:
    """The region as a model, with its outputs and, in front of them, the inner values of `expose` as outputs.

    values: reference tensors by name; of its inputs all must be there (their types and ranks are read from them where
    inference knows none). fold: inputs that become constants. Raises UsageError when a value is not there, ModelError
    for a region without nodes.
    """
    if not region.nodes:
        raise ModelError("the region has no nodes", file=region.graph.model.path or "model")
    graph, root = region.graph, region.graph.root
    proto = ModelProto()
    proto.ir_version = max(root.model.proto.ir_version, _body.FREE_INITIALIZERS)
    for domain, version in root.opsets.items():
        proto.opset_import.add(domain=domain, version=version)
    proto.functions.extend(_body.write_function(function) for function in root.functions.values())
    body = proto.graph
    body.name = "region"
    body.node.extend(_body.write_node(node) for node in region.nodes)
    _bring_constants(region, body)
    body.input.extend(_input(graph, name, values) for name in region.inputs if name not in fold)
    folded = [name for name in region.inputs if name in fold]
    body.initializer.extend(onnx.numpy_helper.from_array(_value(name, values), name) for name in folded)
    wanted = dict.fromkeys((*expose, *region.outputs))
    body.output.extend(_output(graph, name, values) for name in wanted)
    if not body.input:
        _pass_through(body)
    inner = region.made - wanted.keys()
    body.value_info.extend(info for name, info in graph.declared.items() if name in inner)
    return Model(proto, root.store, root.model.path)


def feeds_of(region: Region, values: Values, *, fold: Collection[str] = ()) -> dict[str, Array]:
    """What the cut region reads, from the reference. fold: as in `cut`. Raises UsageError when a value is missing."""
    found = {name: _value(name, values) for name in region.inputs if name not in fold}
    return found or {_THROUGH: np.zeros(1, np.float32)}


def _value(name: str, values: Values) -> Array:
    if name not in values:
        raise UsageError(
            f"there is no reference for '{name}'", tensor=name, hint="it may be in a branch that did not run"
        )
    return np.asarray(values[name])


def _pass_through(body: GraphProto) -> None:
    """An input that is handed to an output: MNN runs no model without inputs."""
    output = f"{_THROUGH}/Neg"
    body.node.add(op_type="Neg", name=output, input=[_THROUGH], output=[output])
    body.input.append(onnx.helper.make_tensor_value_info(_THROUGH, _FLOAT, [1]))
    body.output.append(onnx.helper.make_tensor_value_info(output, _FLOAT, [1]))


def _bring_constants(region: Region, body: GraphProto) -> None:
    """Weights, and values of Constant nodes of graphs around this one, as initializers."""
    graph, made = region.graph, region.made
    needed = dict.fromkeys(name for node in region.nodes for name in sorted(graph.values_used_by(node)))
    for name in needed:
        if name in made or not graph.is_constant(name):
            continue
        weight = graph.weight(name)
        if weight is not None:
            body.initializer.append(weight.proto)
            continue
        array = graph.constant(name)
        if array is not None:
            body.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))


def _input(graph: Graph, name: str, values: Values) -> ValueInfoProto:
    known = graph.type(name)
    if known is not None and known.dtype and known.shape is not None:
        return make_info(name, known)
    array = _value(name, values)
    dtype = known.dtype if known is not None and known.dtype else onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    return make_info(name, TensorType(dtype, (None,) * array.ndim))


def _output(graph: Graph, name: str, values: Values) -> ValueInfoProto:
    known = graph.type(name)
    if known is not None and known.dtype:
        return make_info(name, known)
    if name in values:
        array = np.asarray(values[name])
        dtype = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        return make_info(name, TensorType(dtype, (None,) * array.ndim))
    return graph.output_infos.get(name) or ValueInfoProto(name=name)


def body_region(body: Graph) -> Region:
    """Everything that computes the outputs of the body of an If, Loop or Scan."""
    outputs = [name for name in body.outputs if body.producer(name) is not None]
    return between(body, outputs)


def doubled(model: Model) -> Model:
    """The model with float64 in place of float32 everywhere, feeds and weights included.

    Raises ModelError for one too large for a message.
    """
    proto = model.materialized()
    _double_graph(proto.graph)
    return Model.from_proto(proto)


def doubled_feeds(feeds: Values) -> dict[str, Array]:
    """Float32 feeds as float64."""
    return {name: array.astype(np.float64) if array.dtype == np.float32 else array for name, array in feeds.items()}


def _double_graph(graph: GraphProto) -> None:
    for index, tensor in enumerate(graph.initializer):
        if tensor.data_type == _FLOAT:
            graph.initializer[index].CopyFrom(_double_tensor(tensor))
    for info in (*graph.input, *graph.output, *graph.value_info):
        if info.type.tensor_type.elem_type == _FLOAT:
            info.type.tensor_type.elem_type = _DOUBLE
    for node in graph.node:
        _double_node(node)


def _double_node(node: NodeProto) -> None:
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            _double_graph(attribute.g)
        elif attribute.type == AttributeProto.TENSOR and attribute.t.data_type == _FLOAT:
            attribute.t.CopyFrom(_double_tensor(attribute.t))
        elif attribute.name in ("to", "dtype") and attribute.i == _FLOAT:
            attribute.i = _DOUBLE
    if node.op_type == "ConstantOfShape" and not node.attribute:
        node.attribute.append(onnx.helper.make_attribute("value", onnx.numpy_helper.from_array(np.zeros(1))))
    if node.op_type == "Constant":
        _double_constant(node)


def _double_constant(node: NodeProto) -> None:
    """Constants that are attributes of floats make float32 tensors."""
    found = {attribute.name: attribute for attribute in node.attribute}
    for name in ("value_float", "value_floats"):
        if name in found:
            array = np.array(onnx.helper.get_attribute_value(found[name]), np.float64)
            del node.attribute[:]
            node.attribute.append(onnx.helper.make_attribute("value", onnx.numpy_helper.from_array(array)))


def _double_tensor(tensor: TensorProto) -> TensorProto:
    return onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor).astype(np.float64), tensor.name)

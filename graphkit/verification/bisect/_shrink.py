"""Smaller and plainer versions of a model that may show the same: fixed sizes, shorter dimensions, nothing unused."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
from onnx import GraphProto, ModelProto

from graphkit.graph import Graph
from graphkit.model import Model, inner_graphs, walk_nodes
from graphkit.node import TensorType, make_info
from graphkit.proof import Feeds
from graphkit.verification.bisect._cuts import Piece
from graphkit.verification.bisect._fresh import replaced
from graphkit.verification.bisect._values import Array

_LISTED = 64  # elements of a constant that may be a list of sizes


def cleaned(model: Model) -> Model:
    """The model without texts, declared inner shapes, unused weights, functions and operator sets."""
    proto = ModelProto()
    proto.CopyFrom(model.proto)
    for field in ("doc_string", "producer_name", "producer_version", "domain", "model_version", "metadata_props"):
        proto.ClearField(field)
    _clean_graph(proto.graph)
    graph = Graph.of(Model(proto, model.store))
    for name in [name for name in graph.initializers if not graph.is_used(name)]:
        if name not in graph.input_infos:
            graph.remove_initializer(name)
    made = graph.to_model().proto
    _drop_functions(made)
    _drop_opsets(made)
    return Model(made, model.store)


def _clean_graph(graph: GraphProto) -> None:
    for field in ("doc_string", "value_info", "metadata_props", "quantization_annotation"):
        graph.ClearField(field)
    for node in graph.node:
        node.ClearField("doc_string")
        node.ClearField("metadata_props")
        for attribute in node.attribute:
            attribute.ClearField("doc_string")
        for inner in inner_graphs(node):
            _clean_graph(inner)


def _drop_functions(proto: ModelProto) -> None:
    """Take out local functions that nothing calls."""
    called = {(node.domain, node.op_type) for node in walk_nodes(proto.graph.node)}
    kept: list[onnx.FunctionProto] = []
    waiting = [f for f in proto.functions if (f.domain, f.name) in called]
    while waiting:
        function = waiting.pop()
        if function in kept:
            continue
        kept.append(function)
        inner = {(node.domain, node.op_type) for node in function.node}
        waiting += [f for f in proto.functions if (f.domain, f.name) in inner]
    keys = {(f.domain, f.name, f.overload) for f in kept}
    ordered = [f for f in proto.functions if (f.domain, f.name, f.overload) in keys]
    del proto.functions[:]
    proto.functions.extend(ordered)


def _drop_opsets(proto: ModelProto) -> None:
    used = {node.domain for node in walk_nodes(proto.graph.node)}
    used |= {node.domain for function in proto.functions for node in function.node}
    kept = [opset for opset in proto.opset_import if opset.domain in used or opset.domain in ("", "ai.onnx")]
    del proto.opset_import[:]
    proto.opset_import.extend(kept)


def made_static(model: Model, feeds: Feeds) -> Model:
    """The model with the sizes of the feeds declared for its inputs, and none for its outputs."""
    graph = Graph.of(model)
    proto = ModelProto()
    proto.CopyFrom(model.proto)
    for info in proto.graph.input:
        if info.name in feeds:
            info.CopyFrom(make_info(info.name, TensorType(graph.dtype(info.name), np.shape(feeds[info.name]))))
    for info in proto.graph.output:
        info.type.tensor_type.ClearField("shape")
    proto.graph.ClearField("value_info")
    return Model(proto, model.store)


def declare_outputs(model: Model, made: Feeds) -> None:
    """Declare the shapes of outputs that have none: as they came out, or only their rank where sizes may vary."""
    fixed = is_static(model)
    for info in model.proto.graph.output:
        if info.name in made and not info.type.tensor_type.HasField("shape"):
            array = np.asarray(made[info.name])
            code = info.type.tensor_type.elem_type or onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
            info.CopyFrom(make_info(info.name, TensorType(code, array.shape if fixed else (None,) * array.ndim)))


def is_static(model: Model) -> bool:
    """True when every input declares every size."""
    graph = Graph.of(model)
    types = [graph.type(name) for name in graph.inputs if name not in graph.initializers]
    return all(type_ is not None and type_.static for type_ in types)


def sizes(feeds: Feeds) -> list[int]:
    """Sizes over 1 that inputs have, those that would save most elements first."""
    saved: Counter[int] = Counter()
    for array in feeds.values():
        for size in set(np.shape(array)):
            if size > 1:
                saved[size] += np.size(array)
    return [size for size, _ in sorted(saved.items(), key=lambda item: (-item[1], -item[0]))]


def resized(model: Model, feeds: Feeds, old: int, new: int, *, weights: bool) -> Piece:
    """The model with every dimension of one size cut to another: of the feeds and, with `weights`, of the weights and
    of the sizes that constants list.

    Whether that makes sense only a run can tell. Declared shapes of inputs become those of the feeds.
    """
    cut = {name: _cut(np.asarray(array), old, new) for name, array in feeds.items()}
    if weights:
        model = replaced(model, lambda name, array: _other(array, old, new))
    return made_static(model, cut) if is_static(model) else (_loosened(model, cut)), cut


def _other(array: Array, old: int, new: int) -> Array | None:
    """A constant with another size; None when that is no change."""
    if array.dtype == np.int64 and array.ndim <= 1 and array.size <= _LISTED:
        return np.where(array == old, new, array) if (array == old).any() else None
    return _cut(array, old, new) if old in array.shape else None


def _cut(array: Array, old: int, new: int) -> Array:
    """The first elements along every axis of the old size."""
    return np.ascontiguousarray(array[tuple(slice(new) if size == old else slice(None) for size in array.shape)])


def _loosened(model: Model, feeds: Feeds) -> Model:
    """The model with declared input sizes that differ from the feeds' made to agree; dynamic ones stay dynamic."""
    graph = Graph.of(model)
    proto = ModelProto()
    proto.CopyFrom(model.proto)
    for info in proto.graph.input:
        shape = graph.shape(info.name)
        if info.name in feeds and shape is not None:
            fed = np.shape(feeds[info.name])
            dims = tuple(size if isinstance(dim, int) else dim for dim, size in zip(shape, fed, strict=True))
            info.CopyFrom(make_info(info.name, TensorType(graph.dtype(info.name), dims)))
    for info in proto.graph.output:
        info.type.tensor_type.ClearField("shape")
    proto.graph.ClearField("value_info")
    return Model(proto, model.store)

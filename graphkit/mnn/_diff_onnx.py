"""An .onnx model in the form in which models are compared."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, ValueInfoProto

from graphkit.mnn._diff_types import Body, Item, Side
from graphkit.mnn._onnx_quantized import QuantizedWeight, as_text, quantized_weights
from graphkit.mnn.document.stored import Pieces, StoredArray
from graphkit.mnn.document.tree import Array
from graphkit.model import Model
from graphkit.node import normal_domain, type_of_info
from graphkit.weights import Weight, WeightStore, dense_weight

_LONG = 256  # bytes of a text attribute above which its hash stands for it


def side_of(model: Model) -> Side:
    """A model to compare; weights are read when they are compared."""
    proto, store = model.proto, model.store
    facts: dict[str, Any] = {"ir_version": proto.ir_version}
    facts |= {f"opset[{as_text(item.domain) or 'ai.onnx'}]": item.version for item in proto.opset_import}
    for name in ("producer_name", "producer_version", "domain", "model_version"):
        if value := getattr(proto, name):
            facts[name] = value if isinstance(value, int) else as_text(value)
    facts |= {f"metadata[{as_text(item.key)}]": as_text(item.value) for item in proto.metadata_props}
    bodies = {"": _body(proto.graph, store)}
    for function in proto.functions:
        name = _joined(function.domain, function.name, function.overload)
        bodies[f"function {name}"] = _function(function, store)
    quiet = {
        "texts for people (doc_string)": (proto.doc_string, proto.graph.doc_string),
        "the name of the graph": proto.graph.name,
        "where weights are kept": model.external,
    }
    return Side(facts, quiet, bodies, lambda: [buffer.view.obj for buffer in store.buffers])


def _body(graph: GraphProto, store: WeightStore, by_place: bool = False) -> Body:
    weights = {tensor.name: Weight(tensor, store) for tensor in graph.initializer}
    arrays = {as_text(name): stored(weight) for name, weight in weights.items()}
    arrays |= {as_text(sparse.values.name): _sparse(sparse, store) for sparse in graph.sparse_initializer}
    for found in quantized_weights(graph.node, weights):
        arrays[as_text(found.name)] = _coded(found)
    return Body(
        [_item(node, store) for node in graph.node],
        {name: _port(info) for info in graph.input if (name := as_text(info.name)) not in arrays},
        {as_text(info.name): _port(info) for info in graph.output},
        arrays,
        {as_text(info.name): text for info in graph.value_info if (text := _type(info))},
        by_place,
    )


def _function(function: Any, store: WeightStore) -> Body:
    items = [_item(node, store) for node in function.node]
    return Body(items, _ports(function.input), _ports(function.output), by_place=True)


def _ports(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    return {as_text(name): {} for name in names}


def _joined(*names: str | bytes) -> str:
    return "::".join(filter(None, map(as_text, names)))


def _port(info: ValueInfoProto) -> dict[str, Any]:
    kind = type_of_info(info)
    if kind is None:
        return {"type": info.type.WhichOneof("value") or "unknown"}
    dims = None if kind.shape is None else tuple("?" if dim is None else _dim(dim) for dim in kind.shape)
    return {"dtype": _dtype(kind.dtype), "shape": dims}


def _dim(dim: int | str | bytes) -> int | str:
    return dim if isinstance(dim, int) else as_text(dim)


def _type(info: ValueInfoProto) -> str:
    kind = type_of_info(info)
    return "" if kind is None or kind.shape is None else str(kind)


def _dtype(number: int) -> str:
    known = number in TensorProto.DataType.values()
    return TensorProto.DataType.Name(number).lower() if known else f"type {number}"


def _item(node: NodeProto, store: WeightStore) -> Item:
    kind = _joined(normal_domain(node.domain), node.op_type, node.overload)
    item = Item(as_text(node.name), kind, tuple(map(as_text, node.input)), tuple(map(as_text, node.output)))
    for attribute in node.attribute:
        _attribute(item, attribute, store)
    if node.doc_string or node.metadata_props:
        item.quiet = (node.doc_string, sorted((prop.key, prop.value) for prop in node.metadata_props))
    return item


def _attribute(item: Item, attribute: AttributeProto, store: WeightStore) -> None:
    """Put one attribute where it belongs: fields, arrays or graphs."""
    name, kind = as_text(attribute.name), attribute.type
    if attribute.ref_attr_name:
        item.fields[name] = f"the function's {as_text(attribute.ref_attr_name)}"
    elif kind in _READ:
        item.fields[name] = _READ[kind](attribute)
    elif kind in (AttributeProto.TENSOR, AttributeProto.TENSORS):
        tensors = [attribute.t] if kind == AttributeProto.TENSOR else list(attribute.tensors)
        for number, tensor in enumerate(tensors):
            field = name if kind == AttributeProto.TENSOR else f"{name}[{number}]"
            item.arrays[field] = stored(Weight(tensor, store))
    elif kind in (AttributeProto.GRAPH, AttributeProto.GRAPHS):
        graphs = [attribute.g] if kind == AttributeProto.GRAPH else list(attribute.graphs)
        for number, graph in enumerate(graphs):
            item.bodies[name if kind == AttributeProto.GRAPH else f"{name}[{number}]"] = _body(
                graph, store, by_place=True
            )
    else:
        item.fields[name] = _digest(str(attribute).encode())


def _text(data: bytes) -> str:
    return _digest(data) if len(data) > _LONG else data.decode("utf-8", "backslashreplace")


def _digest(data: bytes) -> str:
    return f"{len(data)} bytes, SHA-256 {hashlib.sha256(data).hexdigest()[:16]}"


def _float(value: float) -> float:
    return float(str(np.float32(value)))  # 0.1, not 0.10000000149011612


_READ: Mapping[int, Callable[[AttributeProto], Any]] = {
    AttributeProto.FLOAT: lambda attribute: _float(attribute.f),
    AttributeProto.INT: lambda attribute: int(attribute.i),
    AttributeProto.STRING: lambda attribute: _text(attribute.s),
    AttributeProto.FLOATS: lambda attribute: tuple(map(_float, attribute.floats)),
    AttributeProto.INTS: lambda attribute: tuple(attribute.ints),
    AttributeProto.STRINGS: lambda attribute: tuple(map(_text, attribute.strings)),
}


def stored(weight: Weight) -> StoredArray:
    """A tensor as an array to compare."""
    return StoredArray(
        "",
        "weights",
        _dtype(weight.data_type),
        weight.dims,
        weight.nbytes,
        partial(_parts, weight),
        weight.array,
        external=weight.ref is not None and weight.ref.buffer != 0,
    )


def _parts(weight: Weight) -> list[Array]:
    if weight.ref is not None:
        return [np.frombuffer(weight.store.read(weight.ref), np.uint8)]
    array = weight.array()
    return [array if array.dtype.kind in "OUS" else np.ascontiguousarray(array).reshape(-1).view(np.uint8)]


def _coded(found: QuantizedWeight) -> StoredArray:
    """A quantized weight: its values are what the operator makes of it."""
    plain = stored(found.weight)
    return StoredArray(
        "",
        "weights",
        plain.dtype,
        plain.shape,
        plain.nbytes,
        plain.parts,
        partial(_pieces, found),
        plain.external,
        found.scheme,
    )


def _pieces(found: QuantizedWeight) -> Array | Pieces:
    pieces = found.pieces()
    return found.weight.array() if pieces is None else pieces


def _sparse(sparse: Any, store: WeightStore) -> StoredArray:
    dims = tuple(sparse.dims)

    def values() -> Array:
        array: Array = dense_weight(sparse, store).array()
        return array

    parts = [Weight(sparse.values, store), Weight(sparse.indices, store)]
    return StoredArray(
        "",
        "weights",
        f"sparse {_dtype(sparse.values.data_type)}",
        dims,
        sum(part.nbytes for part in parts),
        lambda: [array for part in parts for array in _parts(part)],
        values,
    )

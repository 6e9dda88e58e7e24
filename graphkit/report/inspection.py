"""What is in a model file, read without running it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphkit.errors import ModelError

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

    from graphkit.mnn._onnx_quantized import QuantizedWeight
    from graphkit.model import Model
    from graphkit.weights import Weight


def inspect(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Describe an .onnx or .mnn file in JSON's types. Raises ModelError when it cannot be read."""
    path = Path(path)
    if path.is_dir():
        raise ModelError("is a directory, not a model file", file=path, hint="name the model file inside it")
    if path.suffix.lower() == ".mnn":
        from graphkit.report.inspection_mnn import inspect_mnn

        return inspect_mnn(path)
    return _onnx(path)


def _onnx(path: Path) -> dict[str, Any]:
    from graphkit.model import Model

    model = Model.load(path)
    proto = model.proto
    nodes = list(_nodes(proto))
    weights = {tensor.name for tensor in proto.graph.initializer}
    quantized = list(_quantized(model))
    return {
        "file": str(path),
        "format": "onnx",
        "ir_version": proto.ir_version,
        "opsets": {_text(item.domain) or "ai.onnx": item.version for item in proto.opset_import},
        "producer": " ".join(filter(None, map(_text, (proto.producer_name, proto.producer_version)))),
        "version": str(proto.model_version) if proto.model_version else "",
        "bytes": path.stat().st_size,
        "inputs": [_value(info) for info in proto.graph.input if info.name not in weights],
        "outputs": [_value(info) for info in proto.graph.output],
        "nodes": len(nodes),
        "ops": dict(Counter(_op(node) for node in nodes).most_common()),
        "functions": [f"{_text(item.domain)}::{_text(item.name)}" for item in proto.functions],
        "weights": _weights(model, nodes, quantized),
        "quantized": [_layer(found) for found in quantized],
        "external": [_external(file, path) for file in model.store.files()[1:]],
        "metadata": {_text(item.key): _text(item.value) for item in proto.metadata_props},
    }


def _external(file: Path, model: Path) -> dict[str, Any]:
    """A data file by its place beside the model, as the model names it."""
    return {"file": os.path.relpath(file.absolute(), model.absolute().parent), "bytes": file.stat().st_size}


def _op(node: NodeProto) -> str:
    kind = _text(node.op_type)
    return f"{_text(node.domain)}::{kind}" if node.domain not in ("", "ai.onnx") else kind


def _text(name: str | bytes) -> str:
    from graphkit.mnn._onnx_quantized import as_text

    return as_text(name)


def _nodes(proto: ModelProto) -> Iterator[NodeProto]:
    from graphkit.model import walk_nodes

    yield from walk_nodes(proto.graph.node)
    for function in proto.functions:
        yield from walk_nodes(function.node)


def _value(info: ValueInfoProto) -> dict[str, Any]:
    from graphkit.node import type_of_info

    kind = type_of_info(info)
    if kind is None:
        return {"name": _text(info.name), "dtype": info.type.WhichOneof("value") or "unknown", "shape": None}
    shape = None if kind.shape is None else [_text(dim) if isinstance(dim, str | bytes) else dim for dim in kind.shape]
    return {"name": _text(info.name), "dtype": _dtype(kind.dtype), "shape": shape}


def _dtype(number: int) -> str:
    from onnx import TensorProto

    known = number in TensorProto.DataType.values()
    return TensorProto.DataType.Name(number).lower() if known else f"type {number}"


def _quantized(model: Model) -> Iterator[QuantizedWeight]:
    """Quantized constants, of the graph and of the graphs inside it."""
    from graphkit.mnn._onnx_quantized import quantized_weights
    from graphkit.weights import Weight

    seen: set[int] = set()
    for graph, tensors in list(_scopes(model.proto.graph, {})):  # all at once: they are told apart by their identity
        weights = {name: Weight(tensor, model.store) for name, tensor in tensors.items()}
        for found in quantized_weights(graph.node, weights):
            if id(tensors[found.name]) not in seen:
                seen.add(id(tensors[found.name]))
                yield found


def _scopes(graph: GraphProto, outer: dict[str, TensorProto]) -> Iterator[tuple[GraphProto, dict[str, TensorProto]]]:
    """Each graph with the constants that its nodes can read."""
    from graphkit.model import inner_graphs

    known = outer | dict(_constants(graph))
    yield graph, known
    for node in graph.node:
        for inner in inner_graphs(node):
            yield from _scopes(inner, known)


def _constants(graph: GraphProto) -> Iterator[tuple[str, TensorProto]]:
    yield from ((tensor.name, tensor) for tensor in graph.initializer)
    for node in graph.node:
        yield from ((node.output[0], tensor) for tensor in _held(node) if node.op_type == "Constant" and node.output)


def _held(node: NodeProto) -> Iterator[TensorProto]:
    """The tensors that are attributes of a node."""
    for attribute in node.attribute:
        yield from (attribute.t,) if attribute.HasField("t") else ()
        yield from attribute.tensors


def _layer(found: QuantizedWeight) -> dict[str, Any]:
    from graphkit.mnn._onnx_quantized import node_text

    scheme, parts = found.scheme, (found.weight, found.scale, found.zero)
    return {
        "name": node_text(found.node),
        "type": found.node.op_type,
        "weight": _text(found.name),
        "bits": scheme.bits,
        "sharing": scheme.sharing,
        "symmetry": scheme.symmetry,
        "scales": scheme.scales,
        "weights": found.weight.nbytes * 8 // scheme.bits,
        "nbytes": sum(part.nbytes for part in parts if part is not None),
    }


def _weights(model: Model, nodes: list[NodeProto], quantized: list[QuantizedWeight]) -> dict[str, Any]:
    """Tensors and bytes in all, by what they are, by element type, and by the operator that reads them first."""
    users: dict[str, str] = {}
    for node in nodes:
        for name in node.input:
            users.setdefault(name, _op(node))
    kinds = {found.scale.name: "quantization scales" for found in quantized}
    kinds |= {found.zero.name: "quantization scales" for found in quantized if found.zero is not None}
    kinds |= {found.name: "quantized weights" for found in quantized}
    total = Counter[str]()
    groups: dict[str, dict[str, Counter[str]]] = {"by_kind": {}, "by_dtype": {}, "by_operator": {}}
    for name, reader, weight in _tensors(model, nodes, users):
        dtype = _dtype(weight.data_type)
        kind = kinds.get(name) or ("weights" if _is_float(dtype) and reader != "Constant" else "constants")
        named = zip(groups.values(), (kind, dtype, reader), strict=True)
        for counter in (total, *(group.setdefault(name, Counter()) for group, name in named)):
            counter["tensors"] += 1
            counter["bytes"] += weight.nbytes
    return {
        "tensors": total["tensors"],
        "bytes": total["bytes"],
        **{title: _by_bytes(group) for title, group in groups.items()},
    }


def _tensors(model: Model, nodes: list[NodeProto], users: dict[str, str]) -> Iterator[tuple[str, str, Weight]]:
    """Each constant tensor: its name, the operator that reads it first, and itself."""
    from graphkit.weights import Weight

    for graph, _ in _scopes(model.proto.graph, {}):
        for tensor in graph.initializer:
            yield tensor.name, users.get(tensor.name, "Constant"), Weight(tensor, model.store)
    for node in nodes:
        name = node.output[0] if node.output and node.op_type == "Constant" else ""
        yield from ((name, "Constant", Weight(tensor, model.store)) for tensor in _held(node))


def _is_float(dtype: str) -> bool:
    return dtype.startswith(("float", "bfloat", "double"))


def _by_bytes(groups: dict[str, Counter[str]]) -> dict[str, dict[str, int]]:
    ordered = sorted(groups.items(), key=lambda item: -item[1]["bytes"])
    return {name: {"tensors": group["tensors"], "bytes": group["bytes"]} for name, group in ordered}

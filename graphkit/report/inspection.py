"""What is in a model file, read without running it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphkit.errors import ModelError

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto

    from graphkit.model import Model


def inspect(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Describe an .onnx or .mnn file in JSON's types. Raises ModelError when it cannot be read."""
    path = Path(path)
    if path.is_dir():
        raise ModelError("is a directory, not a model file", file=path, hint="name the model file inside it")
    return _mnn(path) if path.suffix.lower() == ".mnn" else _onnx(path)


def _mnn(path: Path) -> dict[str, Any]:
    from graphkit.mnn.fileinfo import read_file_info

    info = read_file_info(path)
    weights = path.with_name(path.name + ".weight")
    return {
        "file": str(path),
        "format": "mnn",
        "version": info.version,
        "bytes": path.stat().st_size,
        "inputs": [
            {
                "name": item.name,
                "dtype": item.dtype,
                "shape": [None if size < 0 else size for size in item.shape],
                "layout": item.layout,
            }
            for item in info.inputs
        ],
        "outputs": [{"name": name} for name in info.outputs],
        "nodes": info.op_total,
        "ops": info.op_counts,
        "subgraphs": {name: len(ops) for name, ops in info.subgraphs.items()},
        "external": [_external(weights, path)] if weights.is_file() else [],
    }


def _onnx(path: Path) -> dict[str, Any]:
    from graphkit.model import Model

    model = Model.load(path)
    proto = model.proto
    nodes = list(_nodes(proto))
    weights = {tensor.name for tensor in proto.graph.initializer}
    return {
        "file": str(path),
        "format": "onnx",
        "ir_version": proto.ir_version,
        "opsets": {item.domain or "ai.onnx": item.version for item in proto.opset_import},
        "producer": " ".join(filter(None, (proto.producer_name, proto.producer_version))),
        "version": str(proto.model_version) if proto.model_version else "",
        "bytes": path.stat().st_size,
        "inputs": [_value(info) for info in proto.graph.input if info.name not in weights],
        "outputs": [_value(info) for info in proto.graph.output],
        "nodes": len(nodes),
        "ops": dict(Counter(_op(node) for node in nodes).most_common()),
        "functions": [f"{item.domain}::{item.name}" for item in proto.functions],
        "weights": _weights(model, nodes),
        "external": [_external(file, path) for file in model.store.files()[1:]],
        "metadata": {item.key: item.value for item in proto.metadata_props},
    }


def _external(file: Path, model: Path) -> dict[str, Any]:
    """A data file by its place beside the model, as the model names it."""
    return {"file": os.path.relpath(file.absolute(), model.absolute().parent), "bytes": file.stat().st_size}


def _op(node: NodeProto) -> str:
    return f"{node.domain}::{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type


def _nodes(proto: ModelProto) -> Iterator[NodeProto]:
    yield from graph_nodes(proto.graph)
    for function in proto.functions:
        for node in function.node:
            yield from _with_inner(node)


def graph_nodes(graph: GraphProto) -> Iterator[NodeProto]:
    """All nodes of a graph and of the graphs inside it, outer ones first."""
    for node in graph.node:
        yield from _with_inner(node)


def _with_inner(node: NodeProto) -> Iterator[NodeProto]:
    yield node
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield from graph_nodes(attribute.g)
        for graph in attribute.graphs:
            yield from graph_nodes(graph)


def _value(info: ValueInfoProto) -> dict[str, Any]:
    from graphkit.node import type_of_info

    kind = type_of_info(info)
    if kind is None:
        return {"name": info.name, "dtype": info.type.WhichOneof("value") or "unknown", "shape": None}
    shape = list(kind.shape) if kind.shape is not None else None
    return {"name": info.name, "dtype": _dtype(kind.dtype), "shape": shape}


def _dtype(number: int) -> str:
    from onnx import TensorProto

    known = number in TensorProto.DataType.values()
    return TensorProto.DataType.Name(number).lower() if known else f"type {number}"


def _weights(model: Model, nodes: list[NodeProto]) -> dict[str, Any]:
    """Tensors and bytes in all, by element type, and by the operator that reads them first."""
    users: dict[str, str] = {}
    for node in nodes:
        for name in node.input:
            users.setdefault(name, _op(node))
    totals: Counter[str] = Counter()
    dtypes: dict[str, Counter[str]] = {}
    kinds: dict[str, Counter[str]] = {}
    for weight in model.weights():
        kind = users.get(weight.name, "Constant") if weight.name else "Constant"
        groups = (dtypes.setdefault(_dtype(weight.data_type), Counter()), kinds.setdefault(kind, Counter()))
        for counter in (totals, *groups):
            counter["tensors"] += 1
            counter["bytes"] += weight.nbytes
    return {
        "tensors": totals["tensors"],
        "bytes": totals["bytes"],
        "by_dtype": _by_bytes(dtypes),
        "by_operator": _by_bytes(kinds),
    }


def _by_bytes(groups: dict[str, Counter[str]]) -> dict[str, dict[str, int]]:
    ordered = sorted(groups.items(), key=lambda item: -item[1]["bytes"])
    return {name: {"tensors": group["tensors"], "bytes": group["bytes"]} for name, group in ordered}

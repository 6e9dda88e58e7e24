"""Operators that ONNX itself defines by others whose bodies hold subgraphs; see `bodies` for the plain ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import onnx
from onnx import FunctionProto, GraphProto, NodeProto, TypeProto

from graphkit import _body
from graphkit.graph import Graph
from graphkit.node import Node, normal_domain, type_proto
from graphkit.passes._constant_if import renamed
from graphkit.passes._emit import Emit
from graphkit.rewrite import Outcome, Refusal, Rule, rule

_NAME = "schema-body"
_LEAST = 18  # the bodies are written for reductions that read their axes from an input


@rule("LinearAttention", "SpaceToDepth", "ai.onnx.preview::FlexAttention", name=_NAME)
def schema_body(graph: Graph, node: Node) -> Outcome:
    """An operator that MNN lacks, written as the function that ONNX's schema gives for it and these types."""
    if node.op == "SpaceToDepth" and node.attr("mode", "DCR") == "DCR":
        return None
    types = [graph.type(value) if value else None for value in node.inputs]
    if any(type_ is None or type_.rank is None for value, type_ in zip(node.inputs, types, strict=True) if value):
        return Refusal(_NAME, node.label, "the type of an input is unknown")
    function = _function(graph, node)
    if function is None:
        return Refusal(_NAME, node.label, f"ONNX has no body for it in opset {graph.opset(node.domain)}")
    emit = Emit(graph, node)
    outputs = _write(emit, node, function)
    return emit.rewrite(outputs, f"{node.op_type} as ONNX's own function body")


def _function(graph: Graph, node: Node) -> FunctionProto | None:
    """The body for this node, None when there is none or it needs newer operators than the model has."""
    version = graph.opset(node.domain)
    schema: Any = onnx.defs.get_schema(node.op_type, version, node.domain)  # its stub lacks these two names
    if not schema.has_context_dependent_function:
        return None
    types = []
    for value in node.inputs:
        type_ = graph.type(value) if value else None
        types.append((type_proto(type_) if type_ is not None else TypeProto()).SerializeToString())
    data = schema.get_context_dependent_function(_body.write_node(node).SerializeToString(), types)
    function = FunctionProto.FromString(data)
    needed = {normal_domain(item.domain): item.version for item in function.opset_import}
    known = all(graph.opset(domain) >= least for domain, least in {"": _LEAST, **needed}.items())
    return function if data and known else None


def _write(emit: Emit, node: Node, function: FunctionProto) -> dict[str, str]:
    """Add the nodes of the body; returns what stands for which output of the node."""
    names = {inner: node.input(index) for index, inner in enumerate(function.input)}
    for value in _defined(function.node):
        if value not in names:
            names[value] = emit.graph.new_name(f"{emit.near.label}/{value}")
    for inner in function.node:
        proto = renamed(inner, names)
        proto.name = emit.graph.new_name(f"{emit.near.label}/{inner.op_type}")
        emit.nodes.append(proto)
    return {old: names[inner] for old, inner in zip(node.outputs, function.output, strict=False) if old}


def _defined(nodes: Iterable[NodeProto]) -> Iterator[str]:
    """Every value that nodes and the graphs inside them make or take in."""
    for node in nodes:
        yield from (value for value in node.output if value)
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from _inside(graph)


def _inside(graph: GraphProto) -> Iterator[str]:
    yield from (info.name for info in graph.input)
    yield from (tensor.name for tensor in graph.initializer)
    yield from _defined(graph.node)


RULES: tuple[Rule, ...] = (schema_body,)

"""ONNX's own function bodies of operators, from the schemas of the installed onnx package.

A body is taken when MNN lacks the operator, no rule of its own comes first, and each operator of the body, subgraphs
included, is one that MNN runs right by the table of its operators or that another rule lowers. Method: ONNX IR,
Functions; ONNX Operators for the bodies themselves.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Any

import onnx
from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto, TypeProto
from onnx.defs import OpSchema

from graphkit import _body, knowledge
from graphkit.graph import Graph
from graphkit.node import Node, normal_domain, type_proto
from graphkit.passes._constant_if import renamed
from graphkit.rewrite import Outcome, Refusal, Rewrite, Rule, rule

_NAME = "function-body"

_UNSAID = 18  # the operator set of bodies that name none: their reductions read axes from an input
# Functions of ONNX that MNN has no operator for; the random ones are left out.
_LACKING = (
    "AffineGrid", "CausalConvWithState", "CenterCropPad", "GroupNormalization", "LinearAttention", "Mish",
    "RMSNormalization", "RotaryEmbedding", "Shrink", "SwiGLU", "Swish", "ThresholdedRelu", "SpaceToDepth",
    "ai.onnx.preview::FlexAttention",
)  # fmt: skip


@functools.cache
def _lowered() -> frozenset[str]:
    """Operators that rules take."""
    # The list of families holds this module: it can be read only once all are there.
    from graphkit.passes.lowering import FAMILIES

    return frozenset(op for family in FAMILIES for item in family.RULES for op in item.ops)


def runs_right(op: str) -> bool:
    """True for an operator that MNN computes right (in some form, at least), by itself or through another rule."""
    row = knowledge.table().operators.get(op)
    return (row is not None and row.verdict in ("right", "conditional")) or op in _lowered()


def body(graph: Graph, node: Node) -> Rewrite | Refusal | None:
    """The function body of a node in its place; None when ONNX defines none."""
    try:
        schema = onnx.defs.get_schema(node.op_type, graph.opset(node.domain), node.domain)
    except onnx.defs.SchemaError:
        return None
    function = _function(graph, node, schema)
    if not isinstance(function, FunctionProto):
        return Refusal(_NAME, node.label, function) if function else None
    reason = _objection(graph, function)
    if reason:
        return Refusal(_NAME, node.label, reason)
    return _instantiated(graph, node, schema, function)


def _function(graph: Graph, node: Node, schema: Any) -> FunctionProto | str:
    """The body for this operator set; "" when there is none, a reason when types it depends on are unknown.

    `schema` is an OpSchema; onnx's type stubs do not have its functions.
    """
    version = graph.opset()
    if schema.has_function:
        versions = [v for v in schema.function_opset_versions if v <= version]
        if versions:
            return FunctionProto.FromString(schema.get_function_with_opset_version(max(versions)))
    if not schema.has_context_dependent_function:
        return ""
    types = []
    for value in node.inputs:
        found = graph.type(value) if value else None
        if value and (found is None or not found.dtype or found.rank is None):
            return f"the type of '{value}' is unknown, and the body depends on it"
        types.append((type_proto(found) if found else TypeProto()).SerializeToString())
    made = _made_for(schema, _body.write_node(node).SerializeToString(), types, version)
    return FunctionProto.FromString(made) if made else "ONNX gives no body for these inputs in this operator set"


def _made_for(schema: Any, node: bytes, types: list[bytes], version: int) -> bytes:
    """The body that ONNX builds for these inputs, for the latest operator set up to the model's."""
    if schema.domain:  # its versions count the domain's own sets
        return bytes(schema.get_context_dependent_function(node, types))
    versions = [v for v in schema.context_dependent_function_opset_versions if v <= version]
    return (
        bytes(schema.get_context_dependent_function_with_opset_version(max(versions), node, types)) if versions else b""
    )


def _objection(graph: Graph, function: FunctionProto) -> str:
    """Why a body cannot stand in this model and be right in MNN; "" when it can."""
    opsets = {normal_domain(item.domain): item.version for item in function.opset_import}
    for item in _all_nodes(function.node):
        domain = normal_domain(item.domain)
        op = f"{domain}::{item.op_type}" if domain else item.op_type
        if op != "Constant" and not runs_right(op):
            return f"its body has {op}, which MNN does not run right"
        version = graph.opset(domain)
        own = opsets.get(domain, version if domain else _UNSAID)
        if not _same_form(*(onnx.defs.get_schema(item.op_type, v, domain) for v in (own, version))):
            return f"its body is of operator set {own}, and {op} is another one in {version}"
    return ""


def _same_form(old: OpSchema, new: OpSchema) -> bool:
    """True when a node of an older version is one of a newer version too: nothing is gone, and nothing new needed."""
    names = [[value.name for value in schema.inputs] for schema in (old, new)]
    added = new.inputs[len(old.inputs) :]
    fresh = [new.attributes[name] for name in new.attributes if name not in old.attributes]
    return (
        names[1][: len(names[0])] == names[0]
        and all(value.option != OpSchema.FormalParameterOption.Single for value in added)
        and set(old.attributes) <= set(new.attributes)
        and not any(attribute.required for attribute in fresh)
    )


def _instantiated(graph: Graph, node: Node, schema: OpSchema, function: FunctionProto) -> Rewrite:
    """The body with the node's values and attributes in it, under new names."""
    given = {attribute.name: attribute for attribute in node.proto.attribute}
    for default in (*function.attribute_proto, *_defaults(schema)):
        given.setdefault(default.name, default)
    names = {inner: node.input(index) for index, inner in enumerate(function.input)}
    for value in _defined(function.node):
        if value not in names:
            names[value] = graph.new_name(f"{node.label}/{value}")
    nodes = []
    for item in function.node:
        made = renamed(item, names)
        made.name = graph.new_name(f"{node.label}/{item.op_type}")
        attributes = list(_attributes(made, given))
        del made.attribute[:]
        made.attribute.extend(attributes)
        nodes.append(made)
    outputs = {old: names[inner] for old, inner in zip(node.outputs, function.output, strict=False) if old}
    return Rewrite(f"{node.op} by ONNX's own function body", outputs, tuple(nodes))


def _defaults(schema: OpSchema) -> Iterator[AttributeProto]:
    for attribute in schema.attributes.values():
        if attribute.default_value.name:
            yield attribute.default_value


def _attributes(item: NodeProto, given: dict[str, AttributeProto]) -> Iterator[AttributeProto]:
    """A body node's attributes; one that refers to an attribute that is not given is left out."""
    for attribute in item.attribute:
        if not attribute.ref_attr_name:
            yield attribute
        elif attribute.ref_attr_name in given:
            copy = AttributeProto()
            copy.CopyFrom(given[attribute.ref_attr_name])
            copy.name = attribute.name
            yield copy


def _graphs(node: NodeProto) -> Iterator[GraphProto]:
    for attribute in node.attribute:
        yield from (attribute.g, *attribute.graphs)


def _all_nodes(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """Nodes, and those of all graphs inside them."""
    for node in nodes:
        yield node
        for graph in _graphs(node):
            yield from _all_nodes(graph.node)


def _defined(nodes: Iterable[NodeProto]) -> Iterator[str]:
    """Every value that nodes and the graphs inside them make or take in."""
    for node in _all_nodes(nodes):
        yield from (value for value in node.output if value)
        for graph in _graphs(node):
            yield from (info.name for info in graph.input)
            yield from (tensor.name for tensor in graph.initializer)


@rule(*_LACKING, name=_NAME)
def by_body(graph: Graph, node: Node) -> Outcome:
    """What MNN lacks and ONNX defines as a function of other operators."""
    if node.op == "SpaceToDepth" and node.attr("mode", "DCR") == "DCR":
        return None  # the one mode that MNN has
    if node.op == "AffineGrid" and node.attr("align_corners", 0):
        return None  # the body divides by size − 1, which may be 0
    return body(graph, node)


RULES: tuple[Rule, ...] = (by_body,)

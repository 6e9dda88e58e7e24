"""ONNX's own function bodies of operators, from the schemas of the installed onnx package.

A body is taken when MNN lacks the operator, no rule of its own comes first, and each operator of the body is one that
MNN runs right or that another rule lowers. Method: ONNX IR, Functions; ONNX Operators for the bodies themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import onnx
from onnx import AttributeProto, FunctionProto, NodeProto, TypeProto
from onnx.defs import OpSchema

from graphkit.graph import Graph
from graphkit.node import Node, type_proto
from graphkit.rewrite import Outcome, Refusal, Rewrite, Rule, rule

_NAME = "function-body"

# Operators that MNN 3.6.1 was measured to run right in the forms that bodies have, and those that rules lower.
OPS = frozenset({
    "Abs", "Add", "And", "Cast", "CastLike", "Ceil", "Clip", "Concat", "Constant", "ConstantOfShape", "Conv", "Cos",
    "Div", "Elu", "Equal", "Erf", "Exp", "Expand", "Flatten", "Floor", "Gather", "GatherElements", "GatherND",
    "Greater", "GreaterOrEqual", "HardSigmoid", "HardSwish", "Identity", "InstanceNormalization",
    "LayerNormalization", "LeakyRelu", "Less", "LessOrEqual", "Log", "LogSoftmax", "MatMul", "Max", "Mean", "Min",
    "Mod", "Mul", "Neg", "Not", "OneHot", "Or", "Pad", "Pow", "RMSNormalization", "Range", "Reciprocal", "ReduceL2",
    "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum", "ReduceSumSquare", "Relu", "Reshape", "Round", "Shape",
    "Sigmoid", "Sign", "Sin", "Size", "Slice", "Softmax", "Softplus", "Split", "Sqrt", "Squeeze", "Sub", "Sum",
    "Swish", "Tanh", "Tile", "Transpose", "Trilu", "Unsqueeze", "Where", "Xor",
})  # fmt: skip

# Functions of ONNX that MNN has no operator for; the random ones are left out, and those that hold subgraphs.
_LACKING = (
    "AffineGrid", "CausalConvWithState", "CenterCropPad", "GroupNormalization", "LinearAttention", "Mish",
    "RMSNormalization", "RotaryEmbedding", "Shrink", "SwiGLU", "Swish", "ThresholdedRelu",
)  # fmt: skip


def runs_right(op_type: str) -> bool:
    """True for an operator of ONNX's own domain that MNN computes right, by itself or through another rule."""
    return op_type in OPS


def body(graph: Graph, node: Node) -> Rewrite | Refusal | None:
    """The function body of a node in its place; None when ONNX defines none."""
    version = graph.opset()
    try:
        schema = onnx.defs.get_schema(node.op_type, version, node.domain)
    except onnx.defs.SchemaError:
        return None
    function = _function(graph, node, schema, version)
    if not isinstance(function, FunctionProto):
        return Refusal(_NAME, node.label, function) if function else None
    reason = _objection(function, version)
    if reason:
        return Refusal(_NAME, node.label, reason)
    return _instantiated(graph, node, schema, function)


def _function(graph: Graph, node: Node, schema: Any, version: int) -> FunctionProto | str:
    """The body for this operator set; "" when there is none, a reason when types it depends on are unknown.

    `schema` is an OpSchema; onnx's type stubs do not have its functions.
    """
    if schema.has_function:
        versions = [v for v in schema.function_opset_versions if v <= version]
        if versions:
            return _parsed(schema.get_function_with_opset_version(max(versions)))
    versions = [v for v in schema.context_dependent_function_opset_versions if v <= version]
    if not schema.has_context_dependent_function or not versions:
        return ""
    types = []
    for value in node.inputs:
        found = graph.type(value) if value else None
        if value and (found is None or not found.dtype):
            return f"the type of '{value}' is unknown, and the body depends on it"
        types.append((type_proto(found) if found else TypeProto()).SerializeToString())
    data = node.proto.SerializeToString()
    made = schema.get_context_dependent_function_with_opset_version(max(versions), data, types)
    return _parsed(made) if made else "ONNX gives no body for these inputs"


def _parsed(data: bytes) -> FunctionProto:
    function = FunctionProto()
    function.ParseFromString(data)
    return function


def _objection(function: FunctionProto, version: int) -> str:
    """Why a body cannot stand in a model of this operator set and be right in MNN; "" when it can."""
    own = max((item.version for item in function.opset_import if not item.domain), default=version)
    for item in function.node:
        if item.domain or not runs_right(item.op_type):
            return f"its body has {item.op_type}, which MNN does not run right"
        if any(attribute.HasField("g") for attribute in item.attribute):
            return f"its body has a subgraph in {item.op_type}"
        if not _same_form(*(onnx.defs.get_schema(item.op_type, v, "") for v in (own, version))):
            return f"its body is of operator set {own}, and {item.op_type} is another one in {version}"
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
    names[""] = ""
    nodes = []
    for item in function.node:
        for value in item.output:
            if value:
                names[value] = graph.new_name(f"{node.label}/{value}")
        made = onnx.helper.make_node(
            item.op_type,
            [names[value] for value in item.input],
            [names[value] for value in item.output],
            name=graph.new_name(f"{node.label}/{item.op_type}"),
        )
        made.attribute.extend(_attributes(item, given))
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


@rule(*_LACKING, name=_NAME)
def by_body(graph: Graph, node: Node) -> Outcome:
    """What MNN lacks and ONNX defines as a function of other operators."""
    return body(graph, node)


RULES: tuple[Rule, ...] = (by_body,)

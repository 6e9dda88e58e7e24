"""Casts, conditions and broadcasts brought into their shortest form."""

from __future__ import annotations

from onnx import TensorProto

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.passes._canonical_attributes import with_attributes
from graphkit.passes._cleanup_noops import pass_on, same_shape
from graphkit.rewrite import Builder, Outcome, Refusal, rule

BROADCASTING = frozenset(
    name
    for group in (
        "Add Sub Mul Div Pow Mod Max Min And Or Xor Where",
        "Equal Greater Less GreaterOrEqual LessOrEqual",
    )
    for name in group.split()
)
_INTEGERS: dict[int, tuple[bool, int]] = {  # signed, bits
    TensorProto.INT8: (True, 8),
    TensorProto.INT16: (True, 16),
    TensorProto.INT32: (True, 32),
    TensorProto.INT64: (True, 64),
    TensorProto.UINT8: (False, 8),
    TensorProto.UINT16: (False, 16),
    TensorProto.UINT32: (False, 32),
    TensorProto.UINT64: (False, 64),
    TensorProto.BOOL: (False, 1),
}
_FLOATS: dict[int, tuple[int, int]] = {  # bits of precision, bits of exponent
    TensorProto.FLOAT16: (11, 5),
    TensorProto.BFLOAT16: (8, 8),
    TensorProto.FLOAT: (24, 8),
    TensorProto.DOUBLE: (53, 11),
}


def lossless(source: int, target: int) -> bool:
    """True when every value of one element type is a value of the other."""
    if source in _FLOATS:
        return target in _FLOATS and all(a <= b for a, b in zip(_FLOATS[source], _FLOATS[target], strict=True))
    if source not in _INTEGERS:
        return False
    signed, bits = _INTEGERS[source]
    if target in _FLOATS:
        return bits - signed <= _FLOATS[target][0] and (target != TensorProto.FLOAT16 or bits <= 11)
    if target not in _INTEGERS or target == TensorProto.BOOL:
        return source == target
    wide, room = _INTEGERS[target]
    return bits - signed <= room - wide and (wide or not signed)


@rule("CastLike")
def cast_like(graph: Graph, node: Node) -> Outcome:
    """CastLike to a known type is a Cast, which MNN has."""
    dtype = graph.dtype(node.inputs[1])
    if not dtype:
        return Refusal("cast-like", node.label, f"the type of '{node.inputs[1]}' is not known")
    build = Builder(graph, node)
    extra = {key: value for key, value in node.attrs.items() if key in ("saturate", "round_mode")}
    out = build.op("Cast", node.inputs[0], to=dtype, **extra)
    return build.rewrite({node.outputs[0]: out}, "write CastLike as Cast")


@rule("Cast")
def double_cast(graph: Graph, node: Node) -> Outcome:
    """Of two casts in a row the first goes when it loses nothing."""
    first = graph.producer(node.inputs[0])
    if first is None or first.op != "Cast":
        return None
    source, between, target = graph.dtype(first.inputs[0]), first.attr("to"), node.attr("to")
    if not source or not lossless(source, between) or target == TensorProto.STRING:
        return None  # a text says how the number was held: "0.1" in float32 has more digits in float64
    if source == target:
        return pass_on(node, first.inputs[0], "remove Cast there and back")
    return with_attributes(node, "drop a Cast that loses nothing", inputs=[first.inputs[0]])


@rule("Not")
def double_not(graph: Graph, node: Node) -> Outcome:
    """Not(Not(x)) is x, and Not of a comparison the opposite one, except for floats, where NaN is neither."""
    inner = graph.producer(node.inputs[0])
    if inner is None or inner.domain:
        return None
    if inner.op_type == "Not":
        return pass_on(node, inner.inputs[0], "remove double Not")
    opposite = {"Greater": "LessOrEqual", "Less": "GreaterOrEqual"}
    opposite.update({b: a for a, b in (("Greater", "LessOrEqual"), ("Less", "GreaterOrEqual"))})
    if inner.op_type not in opposite or graph.opset() < 12 or graph.sole_consumer(inner.outputs[0]) is None:
        return None
    if graph.dtype(inner.inputs[0]) not in _INTEGERS:
        return Refusal("double-not", node.label, "its comparison is of floats, and a NaN is neither")
    build = Builder(graph, node)
    out = build.op(opposite[inner.op_type], *inner.inputs)
    return build.rewrite({node.outputs[0]: out}, f"write Not({inner.op_type}) as {opposite[inner.op_type]}")


@rule("Where")
def constant_condition(graph: Graph, node: Node) -> Outcome:
    """Where with a constant condition that is the same everywhere is one of its operands."""
    condition = graph.constant(node.inputs[0])
    if condition is None or not condition.size or condition.any() != condition.all():
        return None
    chosen = node.inputs[1 if condition.all() else 2]
    if not same_shape(graph, chosen, node.outputs[0]):
        return Refusal("constant-condition", node.label, "the result may be larger than the chosen operand")
    return pass_on(node, chosen, "remove Where with a constant condition")


@rule("Sum")
def sum_of_two(graph: Graph, node: Node) -> Outcome:
    """Sum of two is Add."""
    if len(node.inputs) != 2 or graph.opset() < 8:
        return None
    build = Builder(graph, node)
    return build.rewrite({node.outputs[0]: build.op("Add", *node.inputs)}, "write Sum of two as Add")


@rule("Expand")
def broadcast_anyway(graph: Graph, node: Node) -> Outcome:
    """Expand goes when all who use it broadcast it anyway, to an operand that has the expanded shape."""
    out = node.outputs[0]
    users = graph.consumers(out)
    if not users or graph.is_output(out):
        return None
    for user in users:
        others = [value for value in user.inputs if value != out]
        if user.op not in BROADCASTING or not any(same_shape(graph, out, value) for value in others):
            return None
    return pass_on(node, node.inputs[0], "remove Expand before a broadcast")


VALUE_RULES = (
    cast_like,
    double_cast,
    double_not,
    constant_condition,
    sum_of_two,
    broadcast_anyway,
)

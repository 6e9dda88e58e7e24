"""Elementwise arithmetic that MNN lacks or computes wrong; each from ONNX Operators."""

from __future__ import annotations

from onnx import TensorProto

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.passes._emit import Emit
from graphkit.passes.lowering._numbers import FLOATS, INTEGERS, np_dtype
from graphkit.rewrite import Outcome, Refusal, rule

_MAGIC, _EXACT = 12582912.0, 4194304.0  # 1.5 · 2²³, and the numbers below which adding it rounds to an integer


@rule("Round", name="round-to-even")
def round_to_even(graph: Graph, node: Node) -> Outcome:
    """Round takes halves to the even neighbour; MNN takes them away from zero."""
    x, dtype = node.inputs[0], graph.dtype(node.inputs[0])
    if dtype not in FLOATS:
        return Refusal("round-to-even", node.label, f"the element type of '{x}' is unknown")
    emit = Emit(graph, node)
    if dtype == TensorProto.DOUBLE:
        y = _round_by_floor(emit, x)
    elif dtype == TensorProto.FLOAT:
        small = emit.op("Greater", emit.number(_EXACT), emit.op("Abs", x))
        y = emit.op("Where", small, _round_by_magic(emit, x), x)
    else:
        y = emit.cast(_round_by_magic(emit, emit.cast(x, TensorProto.FLOAT)), dtype)
    return emit.rewrite({node.outputs[0]: y}, "Round with halves to even")


def _round_by_magic(emit: Emit, x: str) -> str:
    """(x + 1.5 · 2²³) − 1.5 · 2²³: the addition itself rounds a float32 to even."""
    return emit.op("Sub", emit.op("Add", x, emit.number(_MAGIC)), emit.number(_MAGIC))


def _round_by_floor(emit: Emit, x: str) -> str:
    """⌊x⌋, plus 1 when the rest is over ½, or is ½ and ⌊x⌋ odd: for doubles, which MNN has as float32."""
    floor = emit.op("Floor", x)
    rest = emit.op("Sub", x, floor)
    half = emit.number(0.5, TensorProto.DOUBLE)
    even = emit.op("Mul", emit.op("Floor", emit.op("Mul", floor, half)), emit.number(2, TensorProto.DOUBLE))
    up = emit.op("And", emit.op("Equal", rest, half), emit.op("Greater", floor, even))
    up = emit.op("Or", emit.op("Greater", rest, half), up)
    return emit.op("Add", floor, emit.cast(up, TensorProto.DOUBLE))


@rule("Mod", name="mod-of-floats")
def mod(graph: Graph, node: Node) -> Outcome:
    """Mod of floats has the sign of the dividend with fmod, else of the divisor; MNN has them the other way round."""
    a, b = node.inputs
    if graph.dtype(a) not in FLOATS or (node.attr("fmod", 0) and _is_magnitude(graph, a)):
        return None
    emit = Emit(graph, node)
    dtype = graph.dtype(a)
    zero = emit.number(0, dtype)
    size = emit.op("Abs", b)
    # Max keeps NaN, where MNN's Abs and Sign make 0 of it.
    y = emit.op("Mod", emit.op("Max", a, emit.op("Neg", a)), size, fmod=1)
    y = emit.op("Where", emit.op("Greater", zero, a), emit.op("Neg", y), y)
    if not graph.is_constant(b):
        # For an infinite divisor the remainder is the dividend, where MNN computes 0 · ∞; for NaN it is NaN.
        finite = emit.op("Greater", emit.number(1, dtype), emit.op("Sub", b, b))
        y = emit.op("Where", finite, y, emit.op("Where", emit.op("Greater", size, zero), a, b))
    if not node.attr("fmod", 0):
        crossed = emit.op("Greater", zero, emit.op("Mul", y, b))
        y = emit.op("Where", crossed, emit.op("Add", y, b), y)
    return emit.rewrite({node.outputs[0]: y}, "Mod of floats by that of magnitudes")


def _is_magnitude(graph: Graph, value: str) -> bool:
    """True for Max(x, −x), and for constants that are such."""
    array = graph.constant(value)
    if array is not None:
        return not bool((array < 0).any())
    maker = graph.producer(value)
    negative = graph.producer(maker.inputs[-1]) if maker is not None and maker.op == "Max" else None
    return negative is not None and negative.op == "Neg" and maker is not None and negative.inputs[0] == maker.inputs[0]


@rule("Pow", name="pow-of-one-type")
def pow_of_one_type(graph: Graph, node: Node) -> Outcome:
    """Pow with a base and an exponent of two element types: MNN wants one."""
    base, exponent = graph.dtype(node.inputs[0]), graph.dtype(node.inputs[1])
    mixed = (base in FLOATS) != (exponent in FLOATS) and {base, exponent} <= FLOATS | INTEGERS
    if not mixed and not (base in FLOATS and exponent in FLOATS and base != exponent):
        return None
    if base == TensorProto.INT64:
        return Refusal("pow-of-one-type", node.label, "its powers are int64, which have more digits than float holds")
    emit = Emit(graph, node)
    a, b = node.inputs
    if base in FLOATS:
        y = emit.op("Pow", a, emit.cast(b, base))
    else:
        y = emit.cast(emit.op("Pow", emit.cast(a, exponent), b), base)
    return emit.rewrite({node.outputs[0]: y}, "Pow of one element type")


_BINARY = {"Sum": "Add", "Mean": "Add", "Max": "Max", "Min": "Min"}


@rule("Sum", "Mean", "Max", "Min", name="variadic-in-pairs")
def variadic(graph: Graph, node: Node) -> Outcome:
    """Sum, Max and Min of three and more in pairs: MNN takes the first shape for all; its Mean fails always."""
    count = len(node.inputs)
    if node.op != "Mean" and (count == 2 or (count > 2 and _same_shapes(graph, node))):
        return None
    dtype = graph.dtype(node.inputs[0])
    if node.op == "Mean" and dtype not in FLOATS:
        return Refusal("variadic-in-pairs", node.label, f"the element type of '{node.inputs[0]}' is unknown")
    emit = Emit(graph, node)
    y = node.inputs[0]
    for value in node.inputs[1:]:
        y = emit.op(_BINARY[node.op], y, value)
    if node.op == "Mean" and count > 1:
        y = emit.op("Div", y, emit.number(count, dtype))
    if count == 1:
        y = emit.op("Identity", y)
    return emit.rewrite({node.outputs[0]: y}, f"{node.op} in pairs")


def _same_shapes(graph: Graph, node: Node) -> bool:
    shapes = {graph.shape(value) for value in node.inputs}
    return len(shapes) == 1 and all(shape is not None and None not in shape for shape in shapes)


@rule("Clip", name="clip-of-integers")
def clip(graph: Graph, node: Node) -> Outcome:
    """Clip without bounds is nothing, where MNN clips at float32's ends; with min over max it is max everywhere."""
    low, high = (_bound(graph, node, name, index) for index, name in ((1, "min"), (2, "max")))
    emit, x = Emit(graph, node), node.inputs[0]
    if low is None and high is None:
        return emit.rewrite({node.outputs[0]: emit.op("Identity", x)}, "a Clip without bounds")
    if not (isinstance(low, float) and isinstance(high, float) and low > high):
        return None
    dtype = graph.dtype(x)
    if dtype not in FLOATS | INTEGERS:
        return Refusal("clip-of-integers", node.label, f"the element type of '{x}' is unknown")
    top = emit.const(np_dtype(dtype).type(high), "max")
    y = emit.op("Min", emit.op("Max", x, top), top)
    return emit.rewrite({node.outputs[0]: y}, "a Clip whose lower bound is over its upper one")


def _bound(graph: Graph, node: Node, name: str, index: int) -> float | str | None:
    """A bound: its value, its name when it is computed, None when there is none."""
    value = node.input(index)
    if value:
        number = graph.scalar(value)
        return number if number is not None else value
    attribute = node.attr(name)
    return float(attribute) if attribute is not None else None


RULES = (round_to_even, mod, pow_of_one_type, variadic, clip)

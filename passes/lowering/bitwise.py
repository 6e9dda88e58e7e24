"""Bitwise operators and shifts, which MNN 3.6 lacks or has for int32 only, in integer arithmetic.

Two's complement: ¬a = −1 − a, a ∨ b = a + (b − a ∧ b), a ⊕ b = (a − a ∧ b) + (b − a ∧ b). The conjunction is taken
digit by digit of 16 bits, all bits of a digit at once along a new last axis; nothing overflows 32 bits on the way.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.passes._emit import Emit
from graphkit.passes.lowering._numbers import INTEGERS, SIGNED, UNSIGNED, bits, np_dtype, wrapped
from graphkit.rewrite import Outcome, Refusal, rule

_DIGIT = 16  # bits
_RADIX = 1 << _DIGIT
_WIDE = (TensorProto.INT32, TensorProto.INT64)
_NAME = "bitwise-by-arithmetic"


def _width(dtype: int) -> int:
    """The type that an integer type is computed in: int32, or int64 for what does not fit."""
    fits = bits(dtype) < 32 or dtype == TensorProto.INT32
    return TensorProto.INT32 if fits else TensorProto.INT64


@rule("BitwiseAnd", "BitwiseOr", "BitwiseXor", name=_NAME)
def bitwise(graph: Graph, node: Node) -> Outcome:
    """BitwiseAnd, BitwiseOr and BitwiseXor are not there in MNN."""
    dtype = graph.dtype(node.inputs[0])
    if dtype not in INTEGERS or any(graph.rank(x) is None for x in node.inputs):
        return Refusal(_NAME, node.label, "an element type or a rank is unknown")
    emit, wide = Emit(graph, node), _width(dtype)
    a, b = (x if dtype == wide else emit.cast(x, wide) for x in node.inputs)
    both = _low_bits(graph, emit, node, a, b, wide) or _conjunction(emit, a, b, wide, bits(dtype), dtype in SIGNED)
    y = both
    if node.op == "BitwiseOr":
        y = emit.op("Add", a, emit.op("Sub", b, both))
    elif node.op == "BitwiseXor":
        y = emit.op("Add", emit.op("Sub", a, both), emit.op("Sub", b, both))
    y = y if dtype == wide else emit.cast(y, dtype)
    return emit.rewrite({node.outputs[0]: y}, f"{node.op} in arithmetic")


def _low_bits(graph: Graph, emit: Emit, node: Node, a: str, b: str, wide: int) -> str | None:
    """a ∧ (2ⁿ − 1) is a mod 2ⁿ."""
    for value, mask in ((a, node.inputs[1]), (b, node.inputs[0])):
        array = graph.constant(mask)
        if array is not None and array.size == 1:
            modulus = int(array.reshape(-1)[0]) + 1
            if 0 < modulus < 2**31 and modulus & (modulus - 1) == 0:
                return emit.op("Mod", value, emit.const(np.full(array.shape, modulus, np_dtype(wide))))
    return None


def _conjunction(emit: Emit, a: str, b: str, wide: int, size: int, signed: bool) -> str:
    """a ∧ b of numbers of `size` bits."""
    count = -(-size // _DIGIT)
    digits = [
        _digit_conjunction(emit, x, y, wide, min(size, _DIGIT), signed and place == count - 1)
        for place, (x, y) in enumerate(zip(_digits(emit, a, wide, count), _digits(emit, b, wide, count), strict=True))
    ]
    total = digits.pop()
    while digits:
        total = emit.op("Add", emit.op("Mul", total, emit.number(_RADIX, wide)), digits.pop())
    return total


def _digits(emit: Emit, x: str, wide: int, count: int) -> list[str]:
    """Digits of a number, the lowest first; the highest one keeps the sign."""
    digits = []
    radix = emit.number(_RADIX, wide)
    for _ in range(count - 1):
        digits.append(emit.op("Mod", x, radix))
        x = emit.op("Div", emit.op("Sub", x, digits[-1]), radix)
    return [*digits, x]


def _digit_conjunction(emit: Emit, a: str, b: str, wide: int, size: int, signed: bool) -> str:
    """a ∧ b of digits: each bit is (a mod 2ᵏ⁺¹) ≥ 2ᵏ, products of bits are summed with their weights."""
    steps = np.left_shift(1, np.arange(size, dtype=np.int64))
    weights = steps.copy()
    if signed:
        weights[-1] = -weights[-1]
    moduli, thresholds = (emit.const(v.astype(np_dtype(wide)), "bits") for v in (2 * steps, steps))
    found = []
    for x in (a, b):
        rest = emit.op("Mod", emit.unsqueeze(x, -1), moduli)
        found.append(emit.op("GreaterOrEqual", rest, thresholds))
    both = emit.cast(emit.op("And", *found), wide)
    return emit.reduce("ReduceSum", emit.op("Mul", both, emit.const(weights.astype(np_dtype(wide)))), [-1], False)


@rule("BitwiseNot", name="bitwise-not")
def bitwise_not(graph: Graph, node: Node) -> Outcome:
    """BitwiseNot is not there in MNN: −1 − a, or the largest number less a for unsigned types."""
    dtype = graph.dtype(node.inputs[0])
    if dtype not in INTEGERS or dtype == TensorProto.UINT64:
        return Refusal("bitwise-not", node.label, "MNN has no numbers for this element type")
    emit, wide = Emit(graph, node), _width(dtype)
    top = (1 << bits(dtype)) - 1 if dtype in UNSIGNED else -1
    x = node.inputs[0] if dtype == wide else emit.cast(node.inputs[0], wide)
    y = emit.op("Sub", emit.number(top, wide), x)
    y = y if dtype == wide else emit.cast(y, dtype)
    return emit.rewrite({node.outputs[0]: y}, "BitwiseNot in arithmetic")


@rule("BitShift", name="bit-shift")
def shift(graph: Graph, node: Node) -> Outcome:
    """Shifts as products and quotients with powers of two; MNN shifts int32 only, and by the amount modulo 32."""
    dtype, amount = graph.dtype(node.inputs[0]), graph.constant(node.inputs[1])
    if dtype not in INTEGERS or bits(dtype) == 64:
        return None if dtype in INTEGERS else Refusal("bit-shift", node.label, "the element type is unknown")
    size, wide = bits(dtype), dtype
    if size == 32 and amount is not None and (amount >= 0).all() and (amount < size).all():
        return None
    if size == 32 and (graph.opset() < 28 or _is_guarded(graph, node.inputs[1])):
        return None  # below opset 28 shifts beyond the width are not defined
    if size < 32:
        wide = TensorProto.INT32 if graph.opset() >= 28 else TensorProto.UINT32
    emit = Emit(graph, node)
    a, b = (x if dtype == wide else emit.cast(x, wide) for x in node.inputs)
    y = _shifted(emit, a, b, wide, size, str(node.attr("direction")))
    if dtype != wide:
        y = wrapped(emit, y if wide == TensorProto.INT32 else emit.cast(y, TensorProto.INT32), dtype)
    return emit.rewrite({node.outputs[0]: y}, "BitShift within the width of its type")


def _is_guarded(graph: Graph, value: str) -> bool:
    """True for an amount that was brought into the width."""
    maker = graph.producer(value)
    return maker is not None and maker.op == "Where"


def _shifted(emit: Emit, a: str, b: str, wide: int, size: int, direction: str) -> str:
    """a shifted by b: beyond the width 0 is left, or the sign when it goes right."""
    inside = emit.op("Greater", emit.number(size, wide), b)
    if wide not in UNSIGNED:
        inside = emit.op("And", inside, emit.op("Greater", b, emit.number(-1, wide)))
    if direction == "RIGHT" and (size < 32 or wide not in UNSIGNED):
        # Shifting by all but one bit leaves the sign only, as shifting further does; narrow numbers leave 0 in 31.
        step = emit.op("Where", inside, b, emit.number(31, wide))
        return emit.op("BitShift", a, step, direction="RIGHT")
    step = emit.op("Where", inside, b, emit.number(0, wide))
    moved = emit.op("BitShift", a, step, direction=direction)
    return emit.op("Where", inside, moved, emit.number(0, wide))


@rule("BitCast", name="bit-cast")
def bit_cast(graph: Graph, node: Node) -> Outcome:
    """BitCast between integers of one width is a Cast, which keeps the low bits (ONNX Operators, Cast)."""
    source, target = graph.dtype(node.inputs[0]), int(node.attr("to", 0))
    if not {source, target} <= INTEGERS | {TensorProto.BOOL} or TensorProto.BOOL == target != source:
        return Refusal("bit-cast", node.label, "MNN keeps no bits of floats")
    if source in (TensorProto.UINT32, TensorProto.UINT64):
        return Refusal(
            "bit-cast", node.label, "MNN holds unsigned integers of 32 and 64 bits in int32, without their upper half"
        )
    emit = Emit(graph, node)
    return emit.rewrite({node.outputs[0]: emit.cast(node.inputs[0], target)}, "BitCast of integers as Cast")


RULES = (bitwise, bitwise_not, shift, bit_cast)

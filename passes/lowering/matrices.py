"""Det, EyeLike and CumProd: constants, and products of gathered elements."""

from __future__ import annotations

from itertools import permutations

import numpy as np
from onnx import TensorProto

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.passes._emit import Emit
from graphkit.passes.lowering._numbers import FLOATS, INTEGERS, np_dtype, static
from graphkit.rewrite import Outcome, Refusal, rule

_LARGEST_DET = 5  # rows; the formula has n! terms
_LONGEST = 1 << 16  # elements along the axis of a CumProd


@rule("Det", name="det-by-leibniz")
def det(graph: Graph, node: Node) -> Outcome:
    """Det by Leibniz' formula: MNN forgets the sign when its elimination swaps rows."""
    x, dtype = node.inputs[0], graph.dtype(node.inputs[0])
    shape = graph.shape(x)
    size = shape[-1] if shape else None
    if dtype not in FLOATS or shape is None or not isinstance(size, int) or size > _LARGEST_DET:
        reason = f"MNN loses signs, and the formula is for known sizes up to {_LARGEST_DET}"
        return Refusal("det-by-leibniz", node.label, reason)
    emit = Emit(graph, node)
    if size == 1:
        return emit.rewrite({node.outputs[0]: emit.squeeze(x, len(shape) - 2, len(shape) - 1)}, "Det of one element")
    flat = emit.op("Reshape", x, emit.ints(*[0] * (len(shape) - 2), size * size))
    orders = list(permutations(range(size)))
    y = emit.const(np.array([_sign(order) for order in orders], np_dtype(dtype)), "signs")
    for row in range(size):
        picks = emit.ints(*(row * size + order[row] for order in orders))
        y = emit.op("Mul", emit.op("Gather", flat, picks, axis=len(shape) - 2), y)
    y = emit.reduce("ReduceSum", y, [-1], keepdims=False)
    return emit.rewrite({node.outputs[0]: y}, "Det by Leibniz' formula")


def _sign(order: tuple[int, ...]) -> int:
    """1 for an even permutation, −1 for an odd one."""
    inversions = sum(a > b for i, a in enumerate(order) for b in order[i + 1 :])
    return -1 if inversions % 2 else 1


@rule("EyeLike", name="eye-like")
def eye_like(graph: Graph, node: Node) -> Outcome:
    """EyeLike of a known shape is a constant; MNN gives the type of its input whatever `dtype` says."""
    x, sizes = node.inputs[0], static(graph.shape(node.inputs[0]))
    dtype = int(node.attr("dtype", graph.dtype(x)))
    if not dtype:
        return Refusal("eye-like", node.label, f"the element type of '{x}' is unknown")
    emit, k = Emit(graph, node), int(node.attr("k", 0))
    if sizes is not None:
        eye = emit.const(np.eye(*sizes, k=k, dtype=np_dtype(dtype)), "eye")
        return emit.rewrite({node.outputs[0]: emit.op("Identity", eye)}, "EyeLike of a known shape")
    if graph.dtype(x) == TensorProto.FLOAT and dtype == TensorProto.FLOAT:
        return None
    y = emit.op("EyeLike", emit.cast(x, TensorProto.FLOAT), k=k)
    y = emit.cast(y, dtype) if dtype != TensorProto.FLOAT else y
    return emit.rewrite({node.outputs[0]: y}, "EyeLike in float32")


@rule("CumProd", name="cumulative-product")
def cumprod(graph: Graph, node: Node) -> Outcome:
    """CumProd is not there in MNN: log₂ n steps, each multiplies by the values 2ᵏ before (Hillis and Steele 1986)."""
    x, dtype, axis = node.inputs[0], graph.dtype(node.inputs[0]), graph.scalar(node.input(1))
    sizes = static(graph.shape(x))
    if axis is None or sizes is None or dtype not in FLOATS | INTEGERS:
        return Refusal("cumulative-product", node.label, "its axis is not constant or its shape not known")
    along = int(axis) % len(sizes)
    if sizes[along] > _LONGEST or 0 in sizes:
        return Refusal("cumulative-product", node.label, f"{sizes[along]} elements along its axis")
    emit, reverse = Emit(graph, node), bool(node.attr("reverse", 0))
    y = x
    if node.attr("exclusive", 0):
        y = _shifted(emit, y, sizes, along, 1, reverse, dtype)
    step = 1
    while step < sizes[along]:
        y = emit.op("Mul", y, _shifted(emit, y, sizes, along, step, reverse, dtype))
        step *= 2
    y = emit.op("Identity", y) if y == x else y
    return emit.rewrite({node.outputs[0]: y}, "CumProd in doubling steps")


def _shifted(emit: Emit, x: str, sizes: list[int], axis: int, step: int, reverse: bool, dtype: int) -> str:
    """The values `step` places before (after, in reverse) along an axis; ones come in."""
    size = sizes[axis]
    ones = emit.const(np.ones([step if dim == axis else n for dim, n in enumerate(sizes)], np_dtype(dtype)), "ones")
    if step >= size:
        return ones
    kept = emit.slice(x, axis, step) if reverse else emit.slice(x, axis, 0, size - step)
    return emit.op("Concat", *((kept, ones) if reverse else (ones, kept)), axis=axis)


RULES = (det, eye_like, cumprod)

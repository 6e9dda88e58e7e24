"""ArgMax, ArgMin, OneHot and Hardmax where MNN lacks them or picks other elements; each from ONNX Operators."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.passes._emit import Emit
from graphkit.passes.lowering._numbers import FLOATS, INTEGERS, axis_of, np_dtype
from graphkit.rewrite import Outcome, Refusal, rule

_LAST, _INT = "last-index", "argmax-of-integers"


def _countable(emit: Emit, x: str, dtype: int) -> tuple[str, int]:
    """A value in a signed type that MNN computes with."""
    if dtype in FLOATS or dtype in (TensorProto.INT32, TensorProto.INT64):
        return x, dtype
    target = TensorProto.INT64 if dtype in (TensorProto.UINT32, TensorProto.UINT64) else TensorProto.INT32
    return emit.cast(x, target), target


@rule("ArgMax", "ArgMin", name=_LAST)
def last_index(graph: Graph, node: Node) -> Outcome:
    """select_last_index: the largest index where x reaches its extreme; MNN takes the first one."""
    if not node.attr("select_last_index", 0):
        return None
    x, dtype, place = node.inputs[0], graph.dtype(node.inputs[0]), axis_of(graph, node, node.inputs[0], 0)
    if place is None or dtype not in FLOATS | INTEGERS:
        return Refusal(_LAST, node.label, f"the rank or the element type of '{x}' is unknown")
    (axis, rank), emit = place, Emit(graph, node)
    x, _ = _countable(emit, x, dtype)
    largest = node.op == "ArgMax"
    extreme = emit.reduce("ReduceMax" if largest else "ReduceMin", x, [axis])
    there = emit.op("GreaterOrEqual", *((x, extreme) if largest else (extreme, x)))
    positions = _positions(emit, node.inputs[0], axis, rank)
    found = emit.op("Where", there, positions, emit.number(-1, TensorProto.INT64))
    y = emit.reduce("ReduceMax", found, [axis], bool(node.attr("keepdims", 1)))
    return emit.rewrite({node.outputs[0]: y}, f"{node.op} of the last index by comparisons")


def _positions(emit: Emit, x: str, axis: int, rank: int) -> str:
    """0, 1, … along one axis, of size 1 along the others."""
    size = (emit.graph.shape(x) or ())[axis]
    if isinstance(size, int):
        shape = [size if dim == axis else 1 for dim in range(rank)]
        return emit.const(np.arange(size, dtype=np.int64).reshape(shape), "positions")
    zero, one = emit.number(0, TensorProto.INT64), emit.number(1, TensorProto.INT64)
    numbers = emit.op("Range", zero, emit.squeeze(emit.dim(x, axis), 0), one)
    return emit.unsqueeze(numbers, *(dim for dim in range(rank) if dim != axis)) if rank > 1 else numbers


@rule("ArgMax", "ArgMin", name=_INT)
def of_integers(graph: Graph, node: Node) -> Outcome:
    """ArgMax and ArgMin of integers by TopK: MNN compares their bits as if they were floats."""
    x, dtype = node.inputs[0], graph.dtype(node.inputs[0])
    if dtype not in INTEGERS or node.attr("select_last_index", 0):
        return None
    emit, axis = Emit(graph, node), int(node.attr("axis", 0))
    if graph.opset() < 11:
        y = emit.op(node.op, emit.cast(x, TensorProto.FLOAT), **node.attrs)
        return emit.rewrite({node.outputs[0]: y}, f"{node.op} of integers as floats")
    x, kind = _countable(emit, x, dtype)
    if node.op == "ArgMin":
        x = emit.op("Sub", emit.number(-1, kind), x)
    emit.op("TopK", x, emit.ints(1), outputs=2, axis=axis)
    y = emit.nodes[-1].output[1]
    y = y if node.attr("keepdims", 1) else emit.squeeze(y, axis)
    return emit.rewrite({node.outputs[0]: y}, f"{node.op} of integers by TopK")


@rule("OneHot", name="one-hot")
def one_hot(graph: Graph, node: Node) -> Outcome:
    """OneHot with indices from the end, or floats for indices and depth: MNN knows none of them, and may hang."""
    indices, depth, values = node.inputs
    kinds = graph.dtype(indices), graph.dtype(depth)
    if not all(kind in FLOATS | INTEGERS for kind in kinds):
        return Refusal("one-hot", node.label, "the element types of indices and depth are unknown")
    whole = (TensorProto.INT32, TensorProto.INT64)
    if all(kind in whole for kind in kinds) and _not_negative(graph, indices):
        return None
    emit = Emit(graph, node)
    if not graph.is_constant(depth):
        y = _one_hot_by_equal(emit, node, graph.rank(indices), graph.rank(depth))
        if y is None:
            return Refusal("one-hot", node.label, f"the rank of '{indices}' is unknown")
        return emit.rewrite({node.outputs[0]: y}, "OneHot of a computed depth by Equal")
    indices, depth = (emit.cast(x, TensorProto.INT64) for x in (indices, depth))
    depth = emit.op("Reshape", depth, emit.ints(1)) if graph.rank(node.inputs[1]) != 1 else depth
    size = emit.squeeze(depth, 0)
    negative = emit.op("Greater", emit.number(0, TensorProto.INT64), indices)
    from_end = emit.op("Add", indices, size)
    outside = emit.op("Greater", emit.number(0, TensorProto.INT64), from_end)  # what is past the other end is off
    indices = emit.op("Where", negative, emit.op("Where", outside, size, from_end), indices)
    y = emit.op("OneHot", indices, size, values, axis=int(node.attr("axis", -1)))
    return emit.rewrite({node.outputs[0]: y}, "OneHot of indices from the front")


def _one_hot_by_equal(emit: Emit, node: Node, rank: int | None, depth_rank: int | None) -> str | None:
    """Where(index = 0, 1, … or index + depth = 0, 1, …, on, off)."""
    if rank is None:
        return None
    axis = int(node.attr("axis", -1)) % (rank + 1)
    indices, depth = (emit.cast(x, TensorProto.INT64) for x in node.inputs[:2])
    size = depth if depth_rank == 0 else emit.op("Reshape", depth, emit.const(np.zeros(0, np.int64), "scalar"))
    zero, one = emit.number(0, TensorProto.INT64), emit.number(1, TensorProto.INT64)
    places = emit.op("Range", zero, size, one)
    if rank > axis:
        places = emit.unsqueeze(places, *range(1, rank - axis + 1))
    indices = emit.unsqueeze(indices, axis)
    from_end = emit.op("Equal", emit.op("Add", indices, size), places)
    here = emit.op("Or", emit.op("Equal", indices, places), from_end)
    off, on = (emit.op("Gather", node.inputs[2], emit.number(k, TensorProto.INT64)) for k in (0, 1))
    return emit.op("Where", here, on, off)


def _not_negative(graph: Graph, value: str) -> bool:
    """True for indices that count from the front, or were made to."""
    array, maker = graph.constant(value), graph.producer(value)
    if array is not None:
        return bool((array >= 0).all())
    while maker is not None and maker.op in ("Cast", "Squeeze", "Unsqueeze", "Reshape", "Identity"):
        maker = graph.producer(maker.inputs[0])
    return maker is not None and maker.op in ("ArgMax", "ArgMin", "TopK", "NonZero", "Where")


@rule("Hardmax", name="hardmax")
def hardmax(graph: Graph, node: Node) -> Outcome:
    """Hardmax is not there in MNN: OneHot of ArgMax, over one axis, or over all from `axis` on below opset 13."""
    x, dtype = node.inputs[0], graph.dtype(node.inputs[0])
    flat = graph.opset() < 13
    place = axis_of(graph, node, x, 1 if flat else -1)
    if place is None or dtype not in FLOATS:
        return Refusal("hardmax", node.label, f"the rank or the element type of '{x}' is unknown")
    (axis, rank), emit = place, Emit(graph, node)
    flat = rank == 1 or (flat and axis != rank - 1)  # OneHot takes no scalar
    rows, along = (emit.op("Flatten", x, axis=axis), 1) if flat else (x, axis)
    size = None if flat and rank > 1 else (graph.shape(x) or ())[axis]
    depth = emit.number(size, TensorProto.INT64) if isinstance(size, int) else emit.squeeze(emit.dim(rows, along), 0)
    first = emit.op("ArgMax", rows, axis=along, keepdims=0)
    values = emit.const(np.array([0, 1], np_dtype(dtype)), "off_on")
    y = emit.op("OneHot", first, depth, values, axis=along)
    y = emit.op("Reshape", y, emit.op("Shape", x)) if flat else y
    return emit.rewrite({node.outputs[0]: y}, "Hardmax by OneHot of ArgMax")


RULES = (last_index, of_integers, one_hot, hardmax)

"""Element types as MNN has them, and small pieces of arithmetic that several families of lowerings share."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.passes._emit import Emit

FLOATS = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16})
SIGNED = frozenset({TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64})
UNSIGNED = frozenset({TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64})
INTEGERS = SIGNED | UNSIGNED
NARROW = frozenset({TensorProto.INT8, TensorProto.INT16, TensorProto.UINT8, TensorProto.UINT16})


def np_dtype(dtype: int) -> np.dtype:
    """numpy's type for an ONNX element type."""
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(dtype))


def bits(dtype: int) -> int:
    """Width of an integer type."""
    return 8 * np_dtype(dtype).itemsize


def lowest(dtype: int) -> float:
    """The identity of Max: −∞, the smallest integer, or False."""
    if dtype in FLOATS:
        return -np.inf
    return 0 if dtype == TensorProto.BOOL else int(np.iinfo(np_dtype(dtype)).min)


def highest(dtype: int) -> float:
    """The identity of Min: ∞, the largest integer, or True."""
    if dtype in FLOATS:
        return np.inf
    return 1 if dtype == TensorProto.BOOL else int(np.iinfo(np_dtype(dtype)).max)


def static(shape: tuple[int | str | None, ...] | None) -> list[int] | None:
    """The sizes of a shape when all are known."""
    if shape is None:
        return None
    sizes = [dim for dim in shape if isinstance(dim, int)]
    return sizes if len(sizes) == len(shape) else None


def axis_of(graph: Graph, node: Node, value: str, default: int, name: str = "axis") -> tuple[int, int] | None:
    """An axis attribute counted from the front, and the rank of the value; None when the rank is unknown."""
    rank = graph.rank(value)
    if rank is None:
        return None
    axis = int(node.attr(name, default))
    return (axis + rank if axis < 0 else axis), rank


def is_zero(emit: Emit, x: str, dtype: int) -> str:
    """x = 0 of floats, for −0 too, false for NaN: MNN's Equal compares bits, and ONNX's has floats from opset 11 on."""
    zero = emit.number(0, dtype)
    if emit.opset >= 12:
        return emit.op("And", emit.op("GreaterOrEqual", x, zero), emit.op("GreaterOrEqual", zero, x))
    tiny = float(np.finfo(np_dtype(dtype)).smallest_subnormal)
    above, below = (emit.number(sign * tiny, dtype) for sign in (-1, 1))
    return emit.op("And", emit.op("Greater", x, above), emit.op("Greater", below, x))


def wrapped(emit: Emit, x: str, dtype: int) -> str:
    """An int32 value cast to a narrow integer type; the high bits go (ONNX Operators, Cast).

    MNN keeps 16 bits in 32, so that the cast alone would not do it.
    """
    if dtype in (TensorProto.INT16, TensorProto.UINT16):
        half = 32768 if dtype == TensorProto.INT16 else 0
        x = emit.op("Add", x, emit.number(half, TensorProto.INT32)) if half else x
        x = emit.op("Mod", x, emit.number(65536, TensorProto.INT32))
        x = emit.op("Sub", x, emit.number(half, TensorProto.INT32)) if half else x
    return emit.cast(x, dtype)

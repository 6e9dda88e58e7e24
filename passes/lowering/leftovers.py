"""Operators of no family: EyeLike, Det and Range where MNN 3.6 gets the type or the numbers wrong."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.passes._emit import Emit
from graphkit.rewrite import Outcome, Refusal, Rule, rule

_MNN_FLOATS = (TensorProto.FLOAT16, TensorProto.DOUBLE)
_LARGEST_EYE = 1 << 20  # elements of an identity matrix that is written as a constant
_LARGEST_DET = 4  # rows; minors are shared, so 4 rows take 40 products


@rule("EyeLike", name="eye-like")
def eye_like(graph: Graph, node: Node) -> Outcome:
    """EyeLike gives int32 whatever type is asked for: a constant, or equal numbers of row and column."""
    x, out = node.inputs[0], node.outputs[0]
    dtype, shape, k = node.attr("dtype") or graph.dtype(x), graph.shape(x), node.attr("k", 0)
    if not dtype:
        return Refusal("eye-like", node.label, f"the element type of '{x}' is unknown")
    emit = Emit(graph, node)
    rows, columns = shape if shape is not None and len(shape) == 2 else (None, None)
    if isinstance(rows, int) and isinstance(columns, int) and rows * columns <= _LARGEST_EYE:
        kind = onnx.helper.tensor_dtype_to_np_dtype(dtype)
        return emit.rewrite({out: emit.const(np.eye(rows, columns, k).astype(kind))}, "EyeLike as a constant")
    if graph.opset() < 11:
        return Refusal("eye-like", node.label, "its shape is not known, and Range is in ONNX from opset 11 only")
    number = emit.unsqueeze(emit.op("Add", _counting(emit, x, 0), emit.const(np.array(k, np.int64))), 1)
    same = emit.op("Equal", number, emit.unsqueeze(_counting(emit, x, 1), 0))
    return emit.rewrite({out: emit.cast(same, dtype)}, "EyeLike as Range, Equal and Cast")


def _counting(emit: Emit, x: str, axis: int) -> str:
    """0, 1, … up to the size of an axis."""
    zero, one = (emit.const(np.array(value, np.int64)) for value in (0, 1))
    return emit.op("Range", zero, emit.squeeze(emit.dim(x, axis), 0), one)


@rule("Det", name="det")
def det(graph: Graph, node: Node) -> Outcome:
    """Det loses its sign where a pivot is zero: small ones by minors along the rows (Laplace)."""
    x = node.inputs[0]
    shape = graph.shape(x)
    size = shape[-1] if shape is not None and len(shape) > 1 else None
    if shape is None or not isinstance(size, int) or not 0 < size <= _LARGEST_DET:
        return Refusal("det", node.label, f"its matrices are larger than {_LARGEST_DET} rows, or of unknown size")
    emit, rank = Emit(graph, node), len(shape)
    rows = emit.split(x, rank - 2, [1] * size) if size > 1 else [x]
    cells = [emit.split(row, rank - 1, [1] * size) if size > 1 else [row] for row in rows]
    minors: dict[tuple[int, ...], str] = {(column,): cells[-1][column] for column in range(size)}
    value = _minor(emit, cells, tuple(range(size)), minors)
    return emit.rewrite({node.outputs[0]: emit.squeeze(value, rank - 2, rank - 1)}, "Det by minors")


def _minor(emit: Emit, cells: list[list[str]], columns: tuple[int, ...], minors: dict[tuple[int, ...], str]) -> str:
    """Determinant of the last rows, as many as there are columns."""
    if columns not in minors:
        total = ""
        for place, column in enumerate(columns):
            rest = _minor(emit, cells, columns[:place] + columns[place + 1 :], minors)
            term = emit.op("Mul", cells[-len(columns)][column], rest)
            total = emit.op("Sub" if place % 2 else "Add", total, term) if total else term
        minors[columns] = total
    return minors[columns]


@rule("Range", name="range-of-floats")
def range_of_floats(graph: Graph, node: Node) -> Outcome:
    """Range of half or double precision, whose result cannot be read from MNN: counted in float32."""
    dtype = graph.dtype(node.inputs[0])
    if dtype not in _MNN_FLOATS:
        return None
    emit = Emit(graph, node)
    bounds = [emit.cast(value, TensorProto.FLOAT) for value in node.inputs]
    return emit.rewrite({node.outputs[0]: emit.cast(emit.op("Range", *bounds), dtype)}, "Range in float32")


RULES: tuple[Rule, ...] = (eye_like, det, range_of_floats)

"""What rules ask of a graph again and again: scalars, constant operands, axes, uses outside a match.

All are pure and answer None where something is not proven; a scalar that could enlarge the other operand's
rank is not a scalar, an axis that needs an unknown rank is not an axis.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto

from graphkit.graph import Graph
from graphkit.node import Node

FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)
# Relative, for constants as exporters write them: a few digits in float, rounding in half precision.
_TOLERANCE: Mapping[int, float] = {TensorProto.FLOAT16: 1e-3, TensorProto.BFLOAT16: 8e-3}
_MAX_STEPS = 4


def tolerance(dtype: int) -> float:
    """Relative tolerance within which a constant of this ONNX element type counts as the one it should be."""
    return _TOLERANCE.get(dtype, 1e-5)


def close(value: float, wanted: float, dtype: int = TensorProto.FLOAT) -> bool:
    """True when a constant equals the wanted number as far as its element type can tell."""
    return abs(value - wanted) <= tolerance(dtype) * abs(wanted)


def np_dtype(graph: Graph, value: str) -> np.dtype | None:
    """numpy dtype of a floating-point value, None when it is unknown or another type."""
    dtype = graph.dtype(value)
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(dtype)) if dtype in FLOATS else None


def scalar(graph: Graph, value: str) -> float | None:
    """Number that a constant of one element holds, also behind Cast, Identity and Sqrt of such a constant."""
    root, steps = value, 0
    for _ in range(_MAX_STEPS):
        found = graph.scalar(root)
        if found is not None:
            return found**0.5**steps if found >= 0 or not steps else None
        node = graph.producer(root)
        if node is None or node.domain or node.op_type not in ("Cast", "CastLike", "Identity", "Sqrt"):
            return None
        if node.op_type.startswith("Cast") and not _keeps_numbers(graph, node):
            return None
        steps += node.op_type == "Sqrt"
        root = node.inputs[0]
    return None


def _keeps_numbers(graph: Graph, cast: Node) -> bool:
    """True for a Cast to floating point, which keeps a number but for rounding."""
    return (cast.attr("to") or graph.dtype(cast.outputs[0])) in FLOATS


def scalar_beside(graph: Graph, value: str, other: str) -> float | None:
    """A scalar that does not change the shape of `other` when it is combined with it, else None."""
    rank = graph.rank(value)
    if rank is None and graph.producer(value) is not None:
        array = graph.constant(value)
        rank = None if array is None else array.ndim
    if rank and (graph.rank(other) is None or rank > (graph.rank(other) or 0)):
        return None
    return scalar(graph, value)


def with_scalar(graph: Graph, node: Node) -> tuple[str, float, int] | None:
    """For a two-input node: (the other operand, the scalar, the scalar's position), on either side."""
    if len(node.inputs) != 2:
        return None
    for index in (1, 0):
        other = node.inputs[1 - index]
        number = scalar_beside(graph, node.inputs[index], other)
        if number is not None:
            return other, number, index
    return None


def with_constant(graph: Graph, node: Node) -> tuple[str, str] | None:
    """For a commutative node: (variable operand, constant one), None unless exactly one is constant."""
    if len(node.inputs) != 2:
        return None
    left, right = node.inputs
    if graph.is_constant(left) == graph.is_constant(right):
        return None
    return (right, left) if graph.is_constant(left) else (left, right)


def is_op(node: Node | None, *op_types: str) -> bool:
    """True for a node of ONNX's own domain and one of these operators."""
    return node is not None and not node.domain and node.op_type in op_types


def made_by(graph: Graph, value: str, *op_types: str) -> Node | None:
    """The node of this graph that makes the value, when it is one of these operators."""
    node = graph.producer(value)
    return node if is_op(node, *op_types) else None


def next_op(graph: Graph, value: str, *op_types: str) -> Node | None:
    """The only node that uses the value, when it is one of these operators and the value is not an output."""
    node = graph.sole_consumer(value)
    if node is None or node.graph is not graph or value not in node.inputs or not is_op(node, *op_types):
        return None
    return node


def axes_of(graph: Graph, node: Node, rank: int | None) -> tuple[int, ...] | None:
    """Axes of a reduction as negative numbers, ascending, from its attribute or its constant second input.

    None when they are not constant, are all axes by default, or need a rank that is unknown.
    """
    axes: Sequence[int] | None = node.attr("axes")
    if axes is None and node.input(1):
        array = graph.constant(node.input(1))
        axes = None if array is None else [int(axis) for axis in array.reshape(-1)]
    if not axes or (rank is None and max(axes) >= 0):
        return None
    return tuple(sorted(axis if axis < 0 else axis - (rank or 0) for axis in axes))


def used_outside(graph: Graph, nodes: Iterable[Node], results: Iterable[str]) -> str | None:
    """A value made inside `nodes`, not one of `results`, that something else uses too; None without one."""
    inside, allowed = set(nodes), set(results)
    for node in inside:
        for value in node.outputs:
            if not value or value in allowed:
                continue
            if graph.is_output(value) or any(user not in inside for user in graph.consumers(value)):
                return value
    return None


def spelling(graph: Graph, nodes: Sequence[Node], x: str, *, rank_0: bool = False) -> tuple[str, ...]:
    """Nodes as text, to compare with a form that is known to be right: `("Pow(x,#)", "Mul(0,#)")`.

    `x` is the input, a number the result of the node at that position, # a constant (of rank 0, if asked).
    """
    names, written = {x: "x"}, []
    for index, node in enumerate(nodes):
        operands = [names.get(value) or _constant_sign(graph, value, rank_0) for value in node.inputs]
        written.append(f"{node.op_type}({','.join(operands)})")
        names[node.outputs[0]] = str(index)
    return tuple(written)


def _constant_sign(graph: Graph, value: str, rank_0: bool) -> str:
    if not graph.is_constant(value):
        return "?"
    array = graph.constant(value) if rank_0 else None
    return "?" if array is not None and array.ndim else "#"


def all_finite(*arrays: np.ndarray) -> bool:
    """True when no array holds NaN or infinity."""
    return all(bool(np.isfinite(array.astype(np.float64)).all()) for array in arrays)

"""Reductions: those that MNN takes over all elements whatever the axes say, and the edges of the others.

Method: ONNX Operators, Reduce*. MNN 3.6 reads the axes of ReduceL1, ReduceL2, ReduceLogSum, ReduceLogSumExp and
ReduceSumSquare from an attribute only and never keeps the reduced dims; ReduceSum, ReduceMean, ReduceMax, ReduceMin
and ReduceProd are right unless the axes are empty.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.passes._emit import Emit
from graphkit.passes.lowering._numbers import FLOATS, INTEGERS, highest, lowest, np_dtype, static
from graphkit.rewrite import Outcome, Refusal, rule

_COMPOSITE = ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare")
_PLAIN = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd")
_NAME = "reduce-for-mnn"


@dataclass(frozen=True)
class _Reduction:
    """What a node reduces: `axes` None means all; `nothing` that it hands the elements on, one by one."""

    x: str
    axes: tuple[int, ...] | None
    keepdims: bool
    nothing: bool


def _reduction(graph: Graph, node: Node) -> _Reduction | str:
    """The reduction of a node, or why it is unknown."""
    axes = node.attr("axes")
    given = node.input(1)
    if given:
        array = graph.constant(given)
        if array is None:
            return f"its axes '{given}' are not constant"
        axes = array.reshape(-1).tolist()
    nothing = not axes and bool(node.attr("noop_with_empty_axes", 0))
    rank = graph.rank(node.inputs[0])
    if axes and rank:
        axes = sorted(int(axis) % rank for axis in axes)
    return _Reduction(node.inputs[0], tuple(axes) if axes else None, bool(node.attr("keepdims", 1)), nothing)


def _reduce(emit: Emit, kind: str, x: str, axes: tuple[int, ...] | None, keepdims: bool) -> str:
    if axes is None:
        return emit.op(kind, x, keepdims=int(keepdims))
    return emit.reduce(kind, x, axes, keepdims)


@rule(*_COMPOSITE, name=_NAME)
def composite(graph: Graph, node: Node) -> Outcome:
    """L1, L2, LogSum, LogSumExp and SumSquare by ReduceSum and ReduceMax: MNN loses their axes and dims."""
    found = _reduction(graph, node)
    dtype = graph.dtype(node.inputs[0])
    if isinstance(found, str):
        return Refusal(_NAME, node.label, found)
    if dtype not in FLOATS | INTEGERS:
        return Refusal(_NAME, node.label, f"the element type of '{node.inputs[0]}' is unknown")
    emit = Emit(graph, node)
    in_floats = dtype in INTEGERS and node.op in ("ReduceL2", "ReduceLogSum", "ReduceLogSumExp")
    x = emit.cast(found.x, TensorProto.FLOAT) if in_floats else found.x
    y = _parts(emit, node.op, _Reduction(x, found.axes, found.keepdims, found.nothing), dtype)
    y = emit.cast(y, dtype) if in_floats else y
    return emit.rewrite({node.outputs[0]: y}, f"{node.op} by plain reductions")


def _parts(emit: Emit, kind: str, given: _Reduction, dtype: int) -> str:
    """One of the composite reductions of a value."""
    if kind == "ReduceLogSumExp":
        return given.x if given.nothing else _log_sum_exp(emit, given, dtype)
    before = {"ReduceL1": "Abs", "ReduceL2": "Mul", "ReduceSumSquare": "Mul"}.get(kind)
    x = given.x
    if before is not None:
        x = emit.op(before, *([x] * (2 if before == "Mul" else 1)))
    if not given.nothing:
        x = _reduce(emit, "ReduceSum", x, given.axes, given.keepdims)
    after = {"ReduceL2": "Sqrt", "ReduceLogSum": "Log"}.get(kind)
    return emit.op(after, x) if after is not None else x


def _log_sum_exp(emit: Emit, given: _Reduction, dtype: int) -> str:
    """log Σ exp x as m + log Σ exp(x − m) with the maximum m; an infinite m is not taken off, ∞ − ∞ is no number."""
    m = _reduce(emit, "ReduceMax", given.x, given.axes, True)
    kind = dtype if dtype in FLOATS else TensorProto.FLOAT
    # m − m is 0, or no number when m is infinite; a bound would draw probes to the ends of the type.
    is_finite = emit.op("Greater", emit.number(1, kind), emit.op("Sub", m, m))
    finite = emit.op("Where", is_finite, m, emit.number(0, kind))
    total = _reduce(emit, "ReduceSum", emit.op("Exp", emit.op("Sub", given.x, finite)), given.axes, True)
    y = emit.op("Add", emit.op("Log", total), m)
    if given.keepdims:
        return y
    # Dims of size 1 are left: any reduction over them drops them.
    return _reduce(emit, "ReduceMax", y, given.axes, False) if given.axes is None else emit.squeeze(y, *given.axes)


@rule(*_PLAIN, name="reduce-empty-axes")
def empty_axes(graph: Graph, node: Node) -> Outcome:
    """Empty axes: MNN reduces over all of them but keeps the shape, and does not know noop_with_empty_axes."""
    found = _reduction(graph, node)
    if isinstance(found, str):
        return Refusal("reduce-empty-axes", node.label, f"{found}, and MNN reads constant axes only")
    emit = Emit(graph, node)
    if found.nothing:
        return emit.rewrite({node.outputs[0]: emit.op("Identity", found.x)}, "a reduction over no axis")
    if found.axes is not None or not (node.input(1) or node.attr("axes") is not None):
        return None
    y = emit.op(node.op, found.x, keepdims=int(found.keepdims))
    return emit.rewrite({node.outputs[0]: y}, "a reduction over all axes, without empty axes")


def _identity(kind: str, dtype: int) -> float | None:
    """What a reduction of no elements is; None when ONNX leaves it open."""
    if kind in ("ReduceLogSum", "ReduceLogSumExp", "ReduceMean"):
        value = np.nan if kind == "ReduceMean" else -np.inf
        return value if dtype in FLOATS else None
    table = {"ReduceMax": lowest(dtype), "ReduceMin": highest(dtype), "ReduceProd": 1.0}
    return table.get(kind, 0.0)


@rule(*_COMPOSITE, *_PLAIN, name="reduce-empty-set")
def empty_set(graph: Graph, node: Node) -> Outcome:
    """A reduction over an axis of size 0 is a constant; MNN crashes on most of them."""
    sizes, found = static(graph.shape(node.inputs[0])), _reduction(graph, node)
    if sizes is None or 0 not in sizes or isinstance(found, str) or found.nothing:
        return None
    rank = len(sizes)
    axes = {axis % rank for axis in found.axes} if found.axes is not None else set(range(rank))
    dtype = graph.dtype(node.inputs[0])
    value = _identity(node.op, dtype) if dtype else None
    kept = [1 if axis in axes else size for axis, size in enumerate(sizes) if axis not in axes or found.keepdims]
    if value is None or 0 in kept:
        return None
    emit = Emit(graph, node)
    y = emit.op("Identity", emit.const(np.full(kept, value, np_dtype(dtype)), "empty"))
    return emit.rewrite({node.outputs[0]: y}, "a reduction of no elements")


RULES = (empty_set, composite, empty_axes)

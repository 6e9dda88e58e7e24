"""Slice and Split: bounds outside of the axis, and parts that are not equal.

MNN 3.6.1 does not clamp starts that lie before an axis, steps backwards on one axis only (and crashes where a batch
of two or more has rank 4 or higher), and cuts `num_outputs` parts by division. Semantics: ONNX Operators, Slice 10
and Split 18.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import TensorProto

from graphkit.graph import Dim, Graph
from graphkit.node import Node
from graphkit.passes._emit import Emit
from graphkit.passes.lowering._tools import refuse
from graphkit.rewrite import Outcome, rule


@rule("Slice", name="slice-bounds")
def slice_bounds(graph: Graph, node: Node) -> Outcome:
    """Starts before the axis, which MNN does not clamp; steps backwards, which it does on one axis of rank 3."""
    if len(node.inputs) < 3:
        return None
    found, shape = [graph.constant(node.input(i)) for i in (1, 2)], graph.shape(node.inputs[0])
    if shape is None or found[0] is None or found[1] is None:
        return None
    starts, ends = (array.reshape(-1).astype(np.int64).tolist() for array in found if array is not None)
    axes = _constant(graph, node.input(3), range(len(starts)))
    steps = _constant(graph, node.input(4), [1] * len(starts))
    if axes is None or steps is None:
        return None
    sizes = [shape[axis % len(shape)] for axis in axes]
    inside = [_inside(start, size) for start, size in zip(starts, sizes, strict=True)]
    backwards = min(steps, default=1) < 0 and (len(axes) > 1 or (len(shape) > 3 and shape[0] != 1))
    if inside == starts and not backwards:
        return None
    build, value = Emit(graph, node), node.inputs[0]
    if backwards:
        for axis, start, end, step in zip(axes, inside, ends, steps, strict=True):
            if step < 0 and len(shape) > 3:
                places = _places(build, value, shape, axis % len(shape), (start, end, step))
                if places is None:
                    return refuse("slice-bounds", node, "steps backwards over a size that is not known, below opset 11")
                value = build.op("Gather", value, places, axis=axis % len(shape))
            else:
                value = _slice(build, value, [axis], [start], [end], [step])
    else:
        value = _slice(build, value, axes, inside, ends, steps)
    return build.rewrite({node.outputs[0]: value}, "Slice in the form that MNN runs")


def _places(build: Emit, x: str, shape: Sequence[Dim], axis: int, bounds: tuple[int, int, int]) -> str | None:
    """The places that a Slice takes from an axis: as a constant, or cut from a Range."""
    size, (start, end, step) = shape[axis], bounds
    if isinstance(size, int):
        return build.const(np.arange(size, dtype=np.int64)[start : end if end >= -size else None : step], "places")
    if build.opset < 11:
        return None
    zero, one = build.number(0, TensorProto.INT64), build.number(1, TensorProto.INT64)
    count = build.squeeze(build.dim(x, axis), 0)
    return _slice(build, build.op("Range", zero, count, one), [0], [start], [end], [step])


def _slice(build: Emit, x: str, axes: list[int], starts: list[int], ends: list[int], steps: list[int]) -> str:
    inputs = [build.ints(*starts), build.ints(*ends), build.ints(*axes)]
    return build.op("Slice", x, *inputs, *([build.ints(*steps)] if any(step != 1 for step in steps) else []))


def _constant(graph: Graph, value: str, default: range | list[int]) -> list[int] | None:
    """An optional vector; None when it is computed."""
    if not value:
        return list(default)
    array = graph.constant(value)
    return None if array is None else [int(item) for item in array.reshape(-1)]


def _inside(start: int, size: object) -> int:
    """A start before the axis is its first element."""
    return 0 if isinstance(size, int) and start < -size else start


@rule("Split", name="split-parts")
def split_parts(graph: Graph, node: Node) -> Outcome:
    """`num_outputs` of an axis that it does not divide: the sizes written out (the last part is smaller)."""
    count, shape = node.attr("num_outputs"), graph.shape(node.inputs[0])
    if count is None or node.input(1) or shape is None:
        return None
    axis = node.attr("axis", 0) % len(shape)
    size = shape[axis]
    if not isinstance(size, int) or size % count == 0:
        return None
    each = -(-size // count)
    sizes = [max(min(each, size - each * index), 0) for index in range(count)]
    build = Emit(graph, node)
    parts = build.split(node.inputs[0], axis, sizes)
    used = [(old, new) for old, new in zip(node.outputs, parts, strict=True) if old]
    return build.rewrite(dict(used), "Split with its sizes written out")


RULES = (slice_bounds, split_parts)

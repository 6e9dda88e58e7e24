"""Softmax and its kind, which below opset 13 work on a matrix: the axes before `axis` by those from it on."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.passes._emit import Emit
from graphkit.rewrite import Outcome, Rule, rule

_PER_AXIS = 13  # from this opset on they work along one axis


@rule("LogSoftmax", name="log-softmax")
def log_softmax(graph: Graph, node: Node) -> Outcome:
    """Below opset 13 MNN takes one axis of LogSoftmax where the standard takes all behind it, too."""
    rank, build = graph.rank(node.inputs[0]), Emit(graph, node)
    if build.opset >= _PER_AXIS:
        return None
    if rank is None:
        return log_softmax.refuse(node, "the rank is unknown")
    axis = int(node.attr("axis", 1)) % rank if rank else 0
    if axis == rank - 1:
        return None
    x = node.inputs[0]
    flat = build.op("LogSoftmax", build.op("Flatten", x, axis=axis), axis=1)
    y = build.op("Reshape", flat, build.op("Shape", x))
    return build.rewrite({node.outputs[0]: y}, "LogSoftmax of a matrix")


@rule("Hardmax", name="hardmax")
def hardmax(graph: Graph, node: Node) -> Outcome:
    """MNN lacks it: 1 where the index is the first of the largest."""
    x, shape, build = node.inputs[0], graph.shape(node.inputs[0]), Emit(graph, node)
    dtype = graph.dtype(x)
    if shape is None or not dtype:
        return hardmax.refuse(node, "the rank or the element type is unknown")
    rank = len(shape)
    axis = int(node.attr("axis", -1 if build.opset >= _PER_AXIS else 1)) % max(rank, 1)
    if build.opset >= _PER_AXIS or axis == rank - 1:
        y = _one_hot(build, x, axis, rank, shape[axis], dtype)
    else:
        size = shape[axis:]
        count = int(np.prod([int(dim) for dim in size if isinstance(dim, int)])) if _known(size) else None
        flat = _one_hot(build, build.op("Flatten", x, axis=axis), 1, 2, count, dtype)
        y = build.op("Reshape", flat, build.op("Shape", x))
    return build.rewrite({node.outputs[0]: y}, "Hardmax by ArgMax")


def _known(dims: tuple[int | str | None, ...]) -> bool:
    return all(isinstance(dim, int) for dim in dims)


def _one_hot(build: Emit, x: str, axis: int, rank: int, size: int | str | None, dtype: int) -> str:
    best = build.op("ArgMax", x, axis=axis, keepdims=1)
    shape = [-1 if i == axis else 1 for i in range(rank)]
    if isinstance(size, int):
        index = build.const(np.arange(size, dtype=np.int64).reshape(shape), "index")
    else:
        zero, one = build.number(0, TensorProto.INT64), build.number(1, TensorProto.INT64)
        count = build.squeeze(build.dim(x, axis), 0)
        index = build.op("Reshape", build.op("Range", zero, count, one), build.ints(*shape))
    return build.cast(build.op("Equal", index, best), dtype)


RULES: tuple[Rule, ...] = (log_softmax, hardmax)

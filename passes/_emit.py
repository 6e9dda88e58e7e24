"""A `Builder` that knows how the model's operator set spells what lowerings need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.rewrite import Builder

_END = 2**31 - 1  # MNN computes shapes in 32 bits


class Emit(Builder):
    """Adds operators in the spelling of the model's operator set (`opset` 9 and later).

    Values are names; axes and sizes are Python integers. `dtype` is the element type of the numbers that are written
    beside computed values.
    """

    def __init__(self, graph: Graph, near: Node) -> None:
        super().__init__(graph, near)
        self.opset = graph.opset()

    def number(self, value: float, dtype: int = TensorProto.FLOAT) -> str:
        """A scalar constant of an ONNX element type."""
        return self.const(np.array(value, onnx.helper.tensor_dtype_to_np_dtype(dtype)), "number")

    def unsqueeze(self, x: str, *axes: int) -> str:
        """Add dims of size 1 (axes of the result)."""
        if self.opset < 13:
            return self.op("Unsqueeze", x, axes=list(axes))
        return self.op("Unsqueeze", x, self.ints(*axes))

    def squeeze(self, x: str, *axes: int) -> str:
        """Remove dims of size 1."""
        if self.opset < 13:
            return self.op("Squeeze", x, axes=list(axes))
        return self.op("Squeeze", x, self.ints(*axes))

    def reduce(self, kind: str, x: str, axes: Sequence[int], keepdims: bool = True) -> str:
        """ReduceSum, ReduceMean, ReduceMax, … over some axes."""
        from_input = 13 if kind == "ReduceSum" else 18
        if self.opset < from_input:
            return self.op(kind, x, axes=list(axes), keepdims=int(keepdims))
        return self.op(kind, x, self.ints(*axes), keepdims=int(keepdims))

    def softmax(self, x: str, axis: int = -1, rank: int | None = None) -> str:
        """Softmax over one axis; below opset 13 it must be the last one of a value of this rank."""
        if self.opset < 13 and axis != -1 and (rank is None or axis != rank - 1):
            raise ValueError("below opset 13 Softmax is over the last axis only")
        return self.op("Softmax", x, axis=axis if self.opset >= 13 or rank is None else rank - 1)

    def slice(self, x: str, axis: int, start: int, end: int | None = None, step: int = 1) -> str:
        """A part of one axis; no `end` means to the end of the axis."""
        if self.opset < 10:
            return self.op("Slice", x, axes=[axis], starts=[start], ends=[_END if end is None else end])
        bounds = [self.ints(start), self.ints(_END if end is None else end), self.ints(axis)]
        return self.op("Slice", x, *bounds, *([self.ints(step)] if step != 1 else []))

    def split(self, x: str, axis: int, sizes: Sequence[int]) -> list[str]:
        """Cut an axis into parts of these sizes."""
        attrs: dict[str, Any] = {"axis": axis}
        inputs = [x]
        if self.opset < 13:
            attrs["split"] = list(sizes)
        else:
            inputs.append(self.ints(*sizes))
        first = self.op("Split", *inputs, outputs=len(sizes), **attrs)
        return [first, *self.nodes[-1].output[1:]]

    def cast(self, x: str, dtype: int) -> str:
        """Change the element type."""
        return self.op("Cast", x, to=dtype)

    def dim(self, x: str, axis: int) -> str:
        """Size of one axis, not negative, as an int64 tensor of shape [1]."""
        if self.opset >= 15:
            return self.op("Shape", x, start=axis, end=axis + 1)
        return self.slice(self.op("Shape", x), 0, axis, axis + 1)

    def clip(self, x: str, low: str, high: str) -> str:
        """Between two scalars, which are constants' names; spelled by Max and Min below opset 11."""
        if self.opset < 11:
            return self.op("Min", self.op("Max", x, low), high)
        return self.op("Clip", x, low, high)

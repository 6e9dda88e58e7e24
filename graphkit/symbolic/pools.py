"""Sizes of pools with ceil_mode, where ONNX's inference below opset 22 is one too large."""

from __future__ import annotations

from graphkit.node import Dim, Node
from graphkit.symbolic.state import State

POOLS = ("AveragePool", "LpPool", "MaxPool")


def trim_pooled(node: Node, source: State, out: State) -> State:
    """The output of a pool, without windows that start in the padding behind the data.

    Such windows are dropped by onnxruntime and, since opset 22, by the specification (ONNX Operators, MaxPool).
    """
    if not node.attr("ceil_mode", 0) or source.shape is None or out.shape is None or len(out.shape) < 3:
        return out
    count = len(out.shape) - 2
    strides = node.attr("strides", [1] * count)
    pads = node.attr("pads", [0] * (2 * count))
    spatial = [
        _trim(size, dim, stride, pad)
        for size, dim, stride, pad in zip(source.shape[2:], out.shape[2:], strides, pads, strict=False)
    ]
    return State(out.dtype, (*out.shape[:2], *spatial), out.items) if len(spatial) == count else out


def _trim(size: Dim, out: Dim, stride: int, pad: int) -> Dim:
    if not isinstance(size, int) or not isinstance(out, int):
        return out
    return out - 1 if (out - 1) * stride >= size + pad else out

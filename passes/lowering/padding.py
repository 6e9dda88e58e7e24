"""Pad and CenterCropPad: forms that MNN refuses or computes wrong.

MNN 3.6.1 has no wrap mode and no axes input, does not crop where an amount is negative, and knows no fill value
below opset 11. Semantics: ONNX Operators, Pad and CenterCropPad.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.passes._emit import Emit
from graphkit.passes.lowering._tools import add, refuse, unknown
from graphkit.rewrite import Outcome, rule


@dataclass(frozen=True)
class _Amounts:
    """What a Pad adds (or, negative, takes away) at both ends of all axes."""

    begins: tuple[int, ...]
    ends: tuple[int, ...]

    @property
    def crops(self) -> bool:
        """True when some end is cut."""
        return min(self.begins + self.ends, default=0) < 0


def _amounts(graph: Graph, node: Node, rank: int) -> _Amounts | None:
    """The amounts, None when they are not constants."""
    pads = node.attr("pads", node.attr("paddings")) if graph.opset() < 11 else graph.constant(node.input(1))
    if pads is None:
        return None
    pads = [int(value) for value in np.asarray(pads).reshape(-1)]
    axes = list(range(rank))
    if node.input(3):
        known = graph.constant(node.input(3))
        if known is None:
            return None
        axes = [int(axis) % rank for axis in known.reshape(-1)]
    begins, ends = [0] * rank, [0] * rank
    for position, axis in enumerate(axes):
        begins[axis], ends[axis] = pads[position], pads[position + len(axes)]
    return _Amounts(tuple(begins), tuple(ends))


@rule("Pad", name="pad")
def pad(graph: Graph, node: Node) -> Outcome:
    """Wrap mode, negative amounts, amounts for some axes, and a fill value given as an attribute."""
    x, mode = node.inputs[0], node.attr("mode", "constant")
    rank, fill = graph.rank(x), float(node.attr("value", 0.0))
    old_fill = graph.opset() < 11 and mode == "constant" and fill != 0
    if rank is None:
        return unknown("pad", node, x, "rank")
    amounts = _amounts(graph, node, rank)
    if amounts is None:
        return refuse("pad", node, "its pads are computed") if mode == "wrap" or node.input(3) else None
    if not (mode == "wrap" or amounts.crops or node.input(3) or old_fill):
        return None
    build = Emit(graph, node)
    if mode == "constant":
        if old_fill and amounts.crops:
            return refuse("pad", node, "it cuts and fills at once, below opset 11")
        filled = _filled(build, x, amounts, fill) if old_fill else ""
        if filled is None:
            return refuse("pad", node, "the padded dims must be known to fill them with a number other than 0")
        value = filled or _padded(build, node, _cropped(build, x, amounts), amounts, mode)
    elif amounts.crops or mode == "wrap":
        shape = _sizes_of_changed(graph, x, amounts)
        if mode != "wrap" and shape is None:
            return refuse("pad", node, f"mode '{mode}' with such amounts needs static sizes")
        value = _gathered(build, x, amounts, mode, shape) if shape is not None else _wrapped(build, x, amounts)
    else:
        value = _padded(build, node, x, amounts, mode)
    value = value if value != x else build.op("Identity", x)
    return build.rewrite({node.outputs[0]: value}, f"Pad ({mode}) in the form that MNN runs")


def _cropped(build: Emit, x: str, amounts: _Amounts) -> str:
    """What negative amounts leave."""
    for axis, (begin, end) in enumerate(zip(amounts.begins, amounts.ends, strict=True)):
        if begin < 0 or end < 0:
            x = build.slice(x, axis, max(-begin, 0), min(end, 0) or None)
    return x


def _padded(build: Emit, node: Node, x: str, amounts: _Amounts, mode: str) -> str:
    """Pad by the positive amounts, all axes named."""
    pads = [max(amount, 0) for amount in (*amounts.begins, *amounts.ends)]
    if not any(pads):
        return x
    if build.opset < 11:
        return build.op("Pad", x, pads=pads, mode=mode)
    fill = [node.input(2)] if node.input(2) else []
    return build.op("Pad", x, build.ints(*pads), *fill, mode=mode)


def _filled(build: Emit, x: str, amounts: _Amounts, fill: float) -> str | None:
    """Pad with zeros, then add a mask that is the fill value there; None when padded dims are not known."""
    shape, dtype = build.graph.shape(x) or (), build.graph.dtype(x)
    widths = [(max(begin, 0), max(end, 0)) for begin, end in zip(amounts.begins, amounts.ends, strict=True)]
    broadcasts = build.opset >= 7
    sizes = [1 if broadcasts and not any(width) else dim for dim, width in zip(shape, widths, strict=True)]
    known = [size for size in sizes if isinstance(size, int)]
    if len(known) != len(sizes) or dtype == 0:
        return None
    numbers = np.zeros(known, onnx.helper.tensor_dtype_to_np_dtype(dtype))
    mask = np.pad(numbers, widths, constant_values=fill)
    value = build.op("Pad", x, pads=[low for low, _ in widths] + [high for _, high in widths])
    return add(build, value, build.const(mask, "fill"))


def _sizes_of_changed(graph: Graph, x: str, amounts: _Amounts) -> tuple[int, ...] | None:
    """The shape, with 1 for axes that stay as they are; None when a size that counts is not known."""
    changed = [begin != 0 or end != 0 for begin, end in zip(amounts.begins, amounts.ends, strict=True)]
    sizes = [dim if change else 1 for dim, change in zip(graph.shape(x) or (), changed, strict=True)]
    known = [size for size in sizes if isinstance(size, int) and size > 0]
    return tuple(known) if len(known) == len(sizes) else None


def _wrapped(build: Emit, x: str, amounts: _Amounts) -> str:
    """Wrap mode of sizes that are not known: axis by axis a Gather at (place - begin) modulo size."""
    zero, one = build.number(0, TensorProto.INT64), build.number(1, TensorProto.INT64)
    x = _cropped(build, x, amounts)
    for axis, (begin, end) in enumerate(zip(amounts.begins, amounts.ends, strict=True)):
        begin, end = max(begin, 0), max(end, 0)
        if (begin, end) == (0, 0):
            continue
        size = build.dim(x, axis)
        count = build.squeeze(build.op("Add", size, build.ints(begin + end)), 0)
        ahead = build.op("Mul", build.op("Sub", size, build.ints(1)), build.ints(begin))  # -begin, but not negative
        places = build.op("Add", build.op("Range", zero, count, one), ahead)
        turns = build.op("Mul", build.op("Div", places, size), size)
        x = build.op("Gather", x, build.op("Sub", places, turns), axis=axis)
    return x


def _gathered(build: Emit, x: str, amounts: _Amounts, mode: str, shape: tuple[int, ...]) -> str:
    """The padded value picked from x axis by axis (negative amounts cut first)."""
    for axis, (begin, end) in enumerate(zip(amounts.begins, amounts.ends, strict=True)):
        if (begin, end) != (0, 0):
            places = np.arange(max(-begin, 0), shape[axis] - max(-end, 0), dtype=np.int64)
            x = build.op("Gather", x, build.const(_extended(places, max(begin, 0), max(end, 0), mode)), axis=axis)
    return x


def _extended(places: npt.NDArray[np.int64], begin: int, end: int, mode: str) -> npt.NDArray[np.int64]:
    kind: Literal["wrap", "edge", "reflect"] = "wrap" if mode == "wrap" else "edge" if mode == "edge" else "reflect"
    return np.pad(places, (begin, end), mode=kind)


@rule("CenterCropPad", name="center-crop-pad")
def center_crop_pad(graph: Graph, node: Node) -> Outcome:
    """CenterCropPad, which MNN does not have, as Slice and Pad (from the middle, the odd one at the end)."""
    x, wanted, shape = node.inputs[0], graph.constant(node.inputs[1]), graph.shape(node.inputs[0])
    if wanted is None or shape is None:
        return refuse("center-crop-pad", node, "its target shape is computed, or the rank is not known")
    rank = len(shape)
    axes = [axis % rank for axis in node.attr("axes", list(range(rank)))]
    begins, ends = [0] * rank, [0] * rank
    for axis, size in zip(axes, wanted.reshape(-1).tolist(), strict=True):
        now = shape[axis]
        if not isinstance(now, int):
            return refuse("center-crop-pad", node, f"the size of axis {axis} is not known")
        begins[axis] = -((now - size) // 2) if now > size else (size - now) // 2
        ends[axis] = size - now - begins[axis]
    build, amounts = Emit(graph, node), _Amounts(tuple(begins), tuple(ends))
    value = _cropped(build, x, amounts)
    pads = [max(amount, 0) for amount in (*begins, *ends)]
    value = build.op("Pad", value, build.ints(*pads)) if any(pads) else value
    value = value if value != x else build.op("Identity", x)
    return build.rewrite({node.outputs[0]: value}, "Slice and Pad in place of CenterCropPad")


RULES = (pad, center_crop_pad)

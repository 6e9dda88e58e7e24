"""Resize and Upsample of sizes, scales or regions that are computed: the positions are computed too.

Called by the rule of `resampling` where the static form is not possible and MNN's own Resize is wrong, or where the
scales are an input of the model and may change any axis. Semantics: ONNX Operators, Resize 10–19.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx
from onnx import TensorProto

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.passes._emit import Emit
from graphkit.passes.lowering._tools import refuse, reshape
from graphkit.rewrite import Outcome

_RULE = "resize"
_KNOWN = ("half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners", "tf_crop_and_resize",
          "half_pixel_symmetric")  # fmt: skip
_INT, _FLOAT = TensorProto.INT64, TensorProto.FLOAT


@dataclass(frozen=True)
class _Axis:
    """One axis: values (float32, shape [1]) of its size, last place, result and scale; its part of the region."""

    size: str
    last: str
    result: str
    scale: str
    start: str
    end: str


def resize_computed(graph: Graph, node: Node, rank: int) -> Outcome:
    """Every axis by Gather at computed places."""
    old = node.op == "Upsample" or graph.opset() < 11
    transformation = "asymmetric" if old else node.attr("coordinate_transformation_mode", "half_pixel")
    mode, dtype = node.attr("mode", "nearest"), graph.dtype(node.inputs[0])
    if transformation not in _KNOWN or node.attr("antialias", 0) or graph.opset() < 9:
        return refuse(_RULE, node, "its sizes or scales are computed, and its modes need them")
    if transformation == "half_pixel_symmetric" and mode == "nearest":
        return refuse(_RULE, node, "its scales are computed: a position may fall on a whole number")
    if node.attr("keep_aspect_ratio_policy", "stretch") != "stretch" or (mode != "nearest" and dtype != _FLOAT):
        return refuse(_RULE, node, "its sizes or scales are computed, and so would be its policy or rounding")
    build, axes = Emit(graph, node), [axis % rank for axis in node.attr("axes", list(range(rank)))]
    value, outside = node.inputs[0], {}
    for place, axis in enumerate(axes):
        scales = graph.constant(node.input(1 if old else 2))
        if scales is not None and scales.size and scales.reshape(-1)[place] == 1 and transformation[:2] != "tf":
            continue
        line = _line(build, node, axis, place, len(axes), old, transformation)
        at = _positions(build, line, transformation)
        if transformation == "tf_crop_and_resize":
            half = build.op("Mul", line.last, build.number(0.5))
            beyond = build.op("Greater", build.op("Abs", build.op("Sub", at, half)), half)
            outside[axis] = reshape(build, beyond, -1, *([1] * (rank - 1 - axis)))
        if mode == "nearest":
            rounded = _rounded(build, at, line, "simple" if old else node.attr("nearest_mode", "round_prefer_floor"))
            value = build.op("Gather", value, _place(build, rounded, line), axis=axis)
        else:
            value = _mixed(build, node, value, axis, rank, line, at)
    for mask in outside.values():
        fill = build.number(node.attr("extrapolation_value", 0.0), dtype)
        value = build.op("Where", mask, fill, value)
    value = value if value != node.inputs[0] else build.op("Identity", value)
    return build.rewrite({node.outputs[0]: value}, f"{node.op_type} ({mode}) at computed places")


def _line(build: Emit, node: Node, axis: int, place: int, count: int, old: bool, transformation: str) -> _Axis:
    one = build.number(1.0)
    size = build.cast(build.dim(node.inputs[0], axis), _FLOAT)
    if old or node.input(2):
        scale = build.slice(node.inputs[1 if old else 2], 0, place, place + 1)
        result = build.op("Floor", build.op("Mul", size, scale))
    else:
        result = build.cast(build.slice(node.inputs[3], 0, place, place + 1), _FLOAT)
        scale = build.op("Div", result, size)
    start = end = ""
    if transformation == "tf_crop_and_resize":
        start = build.slice(node.inputs[1], 0, place, place + 1)
        end = build.slice(node.inputs[1], 0, place + count, place + count + 1)
    return _Axis(size, build.op("Sub", size, one), result, scale, start, end)


def _positions(build: Emit, line: _Axis, transformation: str) -> str:
    """Where each result lies on the axis (float32 vector)."""
    one, half = build.number(1.0), build.number(0.5)
    x = build.cast(_steps(build, line.result), _FLOAT)
    if transformation == "asymmetric":
        return build.op("Div", x, line.scale)
    several = build.op("Min", build.op("Sub", line.result, one), one)  # 0 for a single result
    gaps = build.op("Max", build.op("Sub", line.result, one), one)
    if transformation == "align_corners":
        return build.op("Div", build.op("Mul", x, line.last), gaps)
    if transformation == "tf_crop_and_resize":
        width = build.op("Mul", build.op("Sub", line.end, line.start), line.last)
        first = build.op("Mul", line.start, line.last)
        middle = build.op("Mul", build.op("Mul", width, half), build.op("Sub", one, several))
        return build.op("Add", build.op("Add", first, middle), build.op("Div", build.op("Mul", x, width), gaps))
    at = build.op("Sub", build.op("Div", build.op("Add", x, half), line.scale), half)
    if transformation == "half_pixel_symmetric":
        share = build.op("Div", line.result, build.op("Mul", line.scale, line.size))
        offset = build.op("Mul", build.op("Mul", line.size, half), build.op("Sub", one, share))
        at = build.op("Add", at, offset)
    return build.op("Mul", at, several) if transformation == "pytorch_half_pixel" else at


def _steps(build: Emit, result: str) -> str:
    """0, 1, … result − 1; below opset 11, which has no Range, as the places of as many ones."""
    count = build.cast(result, _INT)
    if build.opset >= 11:
        return build.op("Range", build.number(0, _INT), build.squeeze(count, 0), build.number(1, _INT))
    one = onnx.helper.make_tensor("value", _FLOAT, [1], [1.0])
    return build.squeeze(build.op("NonZero", build.op("ConstantOfShape", count, value=one)), 0)


def _rounded(build: Emit, at: str, line: _Axis, kind: str) -> str:
    """The nearest place; `simple` is what Resize did at opset 10: up where it shrinks."""
    if kind == "simple":
        shrinks = build.op("Greater", build.number(1.0), line.scale)
        return build.op("Where", shrinks, build.op("Ceil", at), build.op("Floor", at))
    half = build.number(0.5)
    if kind == "round_prefer_floor":
        return build.op("Ceil", build.op("Sub", at, half))
    if kind == "round_prefer_ceil":
        return build.op("Floor", build.op("Add", at, half))
    return build.op("Floor" if kind == "floor" else "Ceil", at)


def _place(build: Emit, at: str, line: _Axis) -> str:
    """Places held inside the axis."""
    return build.cast(build.op("Min", build.op("Max", at, build.number(0.0)), line.last), _INT)


def _mixed(build: Emit, node: Node, x: str, axis: int, rank: int, line: _Axis, at: str) -> str:
    """The neighbours of every position, weighted."""
    base = build.op("Floor", at)
    part = build.op("Sub", at, base)
    reach = 1 if node.attr("mode") != "cubic" else 2
    places = [build.op("Add", base, build.number(float(step))) for step in range(1 - reach, reach + 1)]
    weights = _linear(build, part) if reach == 1 else _cubic(build, part, node.attr("cubic_coeff_a", -0.75))
    if node.attr("exclude_outside", 0):
        weights = _inside(build, places, weights, line)
    total = ""
    for place, weight in zip(places, weights, strict=True):
        taken = build.op("Gather", x, _place(build, place, line), axis=axis)
        taken = build.op("Mul", taken, reshape(build, weight, -1, *([1] * (rank - 1 - axis))))
        total = build.op("Add", total, taken) if total else taken
    return total


def _linear(build: Emit, part: str) -> list[str]:
    return [build.op("Sub", build.number(1.0), part), part]


def _cubic(build: Emit, part: str, a: float) -> list[str]:
    """Weights of the four neighbours (Keys)."""
    one = build.number(1.0)
    rest = build.op("Sub", one, part)
    near = [_polynomial(build, value, (a + 2, -(a + 3), 0.0, 1.0)) for value in (part, rest)]
    far = [_polynomial(build, build.op("Add", value, one), (a, -5 * a, 8 * a, -4 * a)) for value in (part, rest)]
    return [far[0], near[0], near[1], far[1]]


def _polynomial(build: Emit, x: str, factors: tuple[float, ...]) -> str:
    value = build.number(factors[0])
    for factor in factors[1:]:
        value = build.op("Add", build.op("Mul", value, x), build.number(factor))
    return value


def _inside(build: Emit, places: list[str], weights: list[str], line: _Axis) -> list[str]:
    """Weights of neighbours inside only, of sum 1."""
    held = []
    for place, weight in zip(places, weights, strict=True):
        clamped = build.op("Min", build.op("Max", place, build.number(0.0)), line.last)
        held.append(build.op("Mul", weight, build.cast(build.op("Equal", clamped, place), _FLOAT)))
    total = held[0]
    for weight in held[1:]:
        total = build.op("Add", total, weight)
    return [build.op("Div", weight, total) for weight in held]

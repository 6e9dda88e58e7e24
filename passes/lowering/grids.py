"""GridSample and AffineGrid: modes and roundings that MNN does not have.

MNN 3.6.1 samples linearly with zeros and border right; it knows no reflection, rounds halves away from zero where
ONNX rounds to even, and takes cubic for something else. Semantics: ONNX Operators, GridSample 16–22 and AffineGrid 20;
the order of rounding, reflecting and clamping is onnxruntime's.
"""

from __future__ import annotations

import math

import numpy as np
from onnx import TensorProto

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.passes._emit import Emit
from graphkit.passes.lowering._tools import elements, refuse, reshape, static_shape
from graphkit.rewrite import Outcome, rule

_EVEN = 12582912.0  # 1.5 * 2^23: adding it rounds a float32 to a whole number, halves to even
_A = -0.75
_NEAR = 1e-2  # pixels off a centre that a nearest neighbour does not care about


@rule("GridSample", name="grid-sample")
def grid_sample(graph: Graph, node: Node) -> Outcome:
    """Reflection and nearest by moving the grid; cubic by Gather."""
    mode, padding = node.attr("mode", "linear"), node.attr("padding_mode", "zeros")
    shape, grid = graph.shape(node.inputs[0]), graph.shape(node.inputs[1])
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    if (mode == "linear" and padding != "reflection") or _is_moved(graph, node, mode):
        return None
    space = [size for size in (shape or ())[2:] if isinstance(size, int)]
    if shape is None or len(space) != len(shape) - 2 or graph.dtype(node.inputs[1]) != TensorProto.FLOAT:
        return refuse("grid-sample", node, "it needs static spatial sizes and a float32 grid")
    aligned, build = bool(node.attr("align_corners", 0)), Emit(graph, node)
    sizes = np.array(space[::-1], np.float32)  # the grid names x first
    at = _pixels(build, node.inputs[1], sizes, aligned)
    if mode == "cubic":
        points = [size for size in (grid or ())[1:3] if isinstance(size, int)]
        if len(points) != 2 or not isinstance(shape[1], int) or len(shape) != 4 or graph.dtype(node.inputs[0]) != 1:
            return refuse("grid-sample", node, "cubic needs static sizes but for the batch, two dims and float32")
        value = _cubic(build, node.inputs[0], at, (shape[1], *space), (points[0], points[1]), padding, aligned)
        return build.rewrite({node.outputs[0]: value}, "GridSample (cubic) by Gather")
    if mode == "nearest":
        big = build.number(_EVEN)
        at = build.op("Sub", build.op("Add", at, big), big)
    at = _reflected(build, at, sizes, aligned) if padding == "reflection" else at
    moved = build.op("Add", build.op("Mul", at, build.const(2 / sizes, "scale")), build.const(1 / sizes - 1, "shift"))
    padding = "border" if padding == "reflection" else padding
    value = build.op("GridSample", node.inputs[0], moved, mode=node.attr("mode"), padding_mode=padding,
                     align_corners=0)  # fmt: skip
    return build.rewrite({node.outputs[0]: value}, "GridSample of a grid that is rounded and reflected before")


def _is_moved(graph: Graph, node: Node, mode: str) -> bool:
    """True for a nearest GridSample that this rule made: its grid was rounded, or is a constant of pixel centres."""
    points, shape = graph.constant(node.inputs[1]), static_shape(graph, node.inputs[0])
    if points is not None and shape is not None and mode == "nearest" and not node.attr("align_corners", 0):
        places = ((points.astype(np.float64) + 1) * shape[:1:-1] - 1) / 2
        whole = bool((np.abs(places - np.round(places)) < _NEAR).all())
        return whole and node.attr("padding_mode", "zeros") != "reflection"
    maker: Node | None = graph.producer(node.inputs[1])
    for _ in range(12):
        if maker is None or mode != "nearest":
            return False
        if maker.op == "Sub" and graph.scalar(maker.inputs[1]) == _EVEN:
            return True
        maker = next((p for v in maker.inputs if (p := graph.producer(v))), None)
    return False


def _pixels(build: Emit, grid: str, sizes: np.ndarray, aligned: bool) -> str:
    """Grid values in [-1, 1] as positions in pixels."""
    if aligned:
        half = build.const((sizes - 1) / 2, "half")
        return build.op("Mul", build.op("Add", grid, build.number(1.0)), half)
    scaled = build.op("Mul", build.op("Add", grid, build.number(1.0)), build.const(sizes, "sizes"))
    return build.op("Mul", build.op("Sub", scaled, build.number(1.0)), build.number(0.5))


def _reflected(build: Emit, at: str, sizes: np.ndarray, aligned: bool) -> str:
    """Positions reflected at the borders until they lie inside."""
    low = np.zeros_like(sizes) if aligned else np.full_like(sizes, -0.5)
    span = sizes - 1 if aligned else sizes
    wide = build.const(np.where(span == 0, 1, 2 * span).astype(np.float32), "period")
    away = build.op("Abs", build.op("Sub", at, build.const(low, "low")))
    turns = build.op("Floor", build.op("Div", away, wide))
    rest = build.op("Sub", away, build.op("Mul", turns, wide))
    folded = build.op("Abs", build.op("Sub", rest, build.const(span, "span")))
    return build.op("Sub", build.const((low + span).astype(np.float32), "high"), folded)


def _cubic(
    build: Emit, x: str, at: str, shape: tuple[int, ...], grid: tuple[int, int], padding: str, aligned: bool
) -> str:
    """All 16 neighbours by one Gather of pixels, mixed by one MatMul; `shape` is that of x without the batch."""
    channels, height, width = shape
    points, sizes = grid[0] * grid[1], np.array([width, height], np.float32)
    if padding == "reflection":
        at = _reflected(build, at, sizes, aligned)
    base = build.op("Floor", at)
    steps = build.const(np.arange(-1, 3, dtype=np.float32)[:, None], "steps")
    places = build.op("Add", build.unsqueeze(base, 3), steps)  # [N, h, w, 4, 2]
    weights = _weights(build, build.op("Sub", at, base))
    last = build.const(sizes - 1, "last")
    inner = build.op("Min", build.op("Max", places, build.number(0.0)), last)
    if padding == "zeros":
        inside = build.cast(build.op("Equal", inner, places), TensorProto.FLOAT)
        weights = build.op("Mul", weights, inside)
    if padding == "reflection":
        inner = _reflected(build, places, sizes, aligned)
    column, row = build.split(build.cast(inner, TensorProto.INT64), 4, [1, 1])
    row = build.op("Mul", row, build.number(width, TensorProto.INT64))
    flat = build.op("Add", row, reshape(build, column, -1, *grid, 1, 4))
    flat = reshape(build, build.op("Add", flat, _starts(build, x, height * width)), -1, points, 16)
    of_column, of_row = build.split(weights, 4, [1, 1])
    mixed = build.op("Mul", of_row, reshape(build, of_column, -1, *grid, 1, 4))
    rows = reshape(build, build.op("Transpose", x, perm=[0, 2, 3, 1]), -1, channels)
    value = build.op("MatMul", reshape(build, mixed, -1, points, 1, 16), build.op("Gather", rows, flat))
    value = build.op("Transpose", reshape(build, value, -1, points, channels), perm=[0, 2, 1])
    return reshape(build, value, -1, channels, *grid)


def _starts(build: Emit, x: str, pixels: int) -> str:
    """The number of the first pixel of each image of the batch, [N, 1, 1, 1, 1]."""
    batch = (build.graph.shape(x) or (None,))[0]
    if isinstance(batch, int):
        return build.const((np.arange(batch, dtype=np.int64) * pixels).reshape(batch, 1, 1, 1, 1), "starts")
    zero, one = build.number(0, TensorProto.INT64), build.number(1, TensorProto.INT64)
    images = build.op("Range", zero, build.squeeze(build.dim(x, 0), 0), one)
    return reshape(build, build.op("Mul", images, build.number(pixels, TensorProto.INT64)), -1, 1, 1, 1, 1)


def _weights(build: Emit, part: str) -> str:
    """Cubic weights of the four neighbours in each dim, [N, h, w, 4, 2] (Keys, a = -0.75)."""
    one = build.number(1.0)
    rest = build.op("Sub", one, part)
    outer = [build.op("Add", value, one) for value in (part, rest)]
    far = [_far(build, value) for value in outer]
    near = [_near(build, value) for value in (part, rest)]
    stacked = [build.unsqueeze(value, 3) for value in (far[0], near[0], near[1], far[1])]
    return build.op("Concat", *stacked, axis=3)


def _far(build: Emit, d: str) -> str:
    value = build.op("Mul", d, build.number(_A))
    for term in (-5 * _A, 8 * _A):
        value = build.op("Mul", build.op("Add", value, build.number(term)), d)
    return build.op("Sub", value, build.number(4 * _A))


def _near(build: Emit, d: str) -> str:
    value = build.op("Sub", build.op("Mul", d, build.number(_A + 2)), build.number(_A + 3))
    return build.op("Add", build.op("Mul", build.op("Mul", value, d), d), build.number(1.0))


@rule("AffineGrid", name="affine-grid")
def affine_grid(graph: Graph, node: Node) -> Outcome:
    """AffineGrid, which MNN does not have: the constant grid times theta."""
    known, result = elements(graph, node.inputs[1]), graph.shape(node.outputs[0])
    sizes = [size for size in (known[2:] if known is not None else (result or ())[1:-1]) if isinstance(size, int)]
    if len(sizes) != (graph.rank(node.outputs[0]) or len(known or ())) - 2:
        return refuse("affine-grid", node, "its size is computed")
    dtype = graph.dtype(node.inputs[0])
    aligned, build = bool(node.attr("align_corners", 0)), Emit(graph, node)
    if aligned and 1 in sizes:
        return refuse("affine-grid", node, "where the corners of a single point lie is not defined")
    lines = [_line(size, aligned) for size in sizes]
    mesh = np.stack([*reversed(np.meshgrid(*lines, indexing="ij")), np.ones(sizes)], -1).astype(np.float32)
    points = build.const(mesh.reshape(math.prod(sizes), -1), "points")
    theta = build.cast(node.inputs[0], TensorProto.FLOAT) if dtype != TensorProto.FLOAT else node.inputs[0]
    value = build.op("MatMul", points, build.op("Transpose", theta, perm=[0, 2, 1]))
    value = build.cast(value, dtype) if dtype != TensorProto.FLOAT else value
    value = reshape(build, value, -1, *sizes, len(sizes))
    return build.rewrite({node.outputs[0]: value}, "MatMul with the grid's points in place of AffineGrid")


def _line(size: int, aligned: bool) -> np.ndarray:
    """Positions of the points along one dim, in [-1, 1]."""
    if aligned:
        return np.linspace(-1, 1, size)
    return (2 * np.arange(size) + 1) / size - 1


RULES = (grid_sample, affine_grid)

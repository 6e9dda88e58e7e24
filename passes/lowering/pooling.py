"""Pools that MNN computes wrong: dilations, uneven pads, windows that start in the padding, norms, positions.

MNN ignores dilations, divides by the wrong count where uneven pads are counted, keeps windows that lie in the
padding only (ceil_mode), pads small integers with noise and gives no usable positions. A window is separable: it
is folded axis by axis out of strided slices. Semantics: ONNX Operators, MaxPool, AveragePool, LpPool, MaxUnpool.
"""

from __future__ import annotations

import math

import numpy as np
from onnx import TensorProto

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.passes._emit import Emit
from graphkit.passes.lowering._tools import concat, refuse, reshape, sizes_of, static_shape
from graphkit.passes.lowering._windows import Window, counts, fold, geometry, lowest
from graphkit.rewrite import Outcome, Rewrite, rule

_SMALL = (TensorProto.INT8, TensorProto.UINT8)
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16)


@rule("MaxPool", name="max-pool")
def max_pool(graph: Graph, node: Node) -> Outcome:
    """Dilations, windows that start in the padding, uneven pads in 3-D: slices; small integers by way of float."""
    if len(node.outputs) > 1 and graph.is_used(node.outputs[1]):
        return None
    windows = geometry(graph, node)
    if isinstance(windows, str):
        return refuse("max-pool", node, windows)
    small, padded = graph.dtype(node.inputs[0]) in _SMALL, any(w.begin or w.end for w in windows)
    uneven = len(windows) == 3 and any(w.begin != w.end for w in windows)
    build = Emit(graph, node)
    if not (small and padded) and not uneven and not any(window.dilation > 1 or window.late for window in windows):
        return _max_pool_of_floats(build, node) if small else None
    value = build.cast(node.inputs[0], TensorProto.FLOAT) if small else node.inputs[0]
    value = fold(build, value, windows, "Max", lowest(TensorProto.FLOAT if small else graph.dtype(value)))
    value = build.cast(value, graph.dtype(node.inputs[0])) if small else value
    return build.rewrite({node.outputs[0]: value}, "MaxPool out of slices")


def _max_pool_of_floats(build: Emit, node: Node) -> Rewrite:
    """int8 in MNN has no negative maximum, and uint8 over 127 is less than 127."""
    x, dtype = node.inputs[0], build.graph.dtype(node.inputs[0]) or 0
    value = build.op("MaxPool", build.cast(x, TensorProto.FLOAT), **node.attrs)
    return build.rewrite({node.outputs[0]: build.cast(value, dtype)}, "MaxPool of small integers in float")


@rule("AveragePool", name="average-pool")
def average_pool(graph: Graph, node: Node) -> Outcome:
    """Dilations, uneven pads that count, pads in 3-D, windows that start in the padding: sums of slices over counts."""
    windows = geometry(graph, node)
    if isinstance(windows, str):
        return refuse("average-pool", node, windows)
    counted = bool(node.attr("count_include_pad", 0))
    uneven = counted and any(window.begin != window.end for window in windows)
    uneven = uneven or (len(windows) == 3 and any(window.begin or window.end for window in windows))
    if not uneven and not any(window.dilation > 1 or window.late for window in windows):
        return None
    divisor = counts(windows, counted)
    if divisor is None:
        return refuse("average-pool", node, "the sizes that its windows are counted by are not known")
    build, dtype = Emit(graph, node), graph.dtype(node.inputs[0])
    value = build.cast(node.inputs[0], TensorProto.FLOAT) if dtype != TensorProto.FLOAT else node.inputs[0]
    value = fold(build, value, windows, "Add", 0.0)
    value = build.op("Div", value, build.const(divisor, "counts"))
    value = build.cast(value, dtype) if dtype != TensorProto.FLOAT else value
    return build.rewrite({node.outputs[0]: value}, "AveragePool out of slices")


@rule("MaxPool", "AveragePool", name="pool-3d-batch")
def pool_3d_batch(graph: Graph, node: Node) -> Outcome:
    """Three spatial dims of a batch that is not 1, which MNN mixes up: batch and channels as one dim."""
    x, shape = node.inputs[0], graph.shape(node.inputs[0])
    if shape is None or len(shape) != 5 or shape[0] == 1:
        return None
    if len(node.outputs) > 1 and graph.is_used(node.outputs[1]):
        return None
    build = Emit(graph, node)
    one = concat(build, build.ints(1, -1), sizes_of(build, x, 2, 5))
    value = build.op(node.op_type, build.op("Reshape", x, one), **node.attrs)
    results = static_shape(graph, node.outputs[0])
    if results is not None:
        back = build.ints(*results)
    else:
        value_shape = build.op("Shape", value)
        back = concat(build, sizes_of(build, x, 0, 2), build.slice(value_shape, 0, 2, 5))
    value = build.op("Reshape", value, back)
    return build.rewrite({node.outputs[0]: value}, f"3-D {node.op_type} with the batch among the channels")


@rule("LpPool", name="lp-pool")
def lp_pool(graph: Graph, node: Node) -> Outcome:
    """Norms over windows with pads or dilations or not in two dims, wrong or missing: sums of powers."""
    windows, p = geometry(graph, node), int(node.attr("p", 2))
    if isinstance(windows, str):
        return refuse("lp-pool", node, windows)
    plain = not any(w.dilation > 1 or w.late or w.begin or w.end or w.ceil for w in windows)
    if plain and len(windows) == 2 and node.attr("auto_pad", "NOTSET") == "NOTSET":
        return None
    build = Emit(graph, node)
    value = fold(build, _power(build, node.inputs[0], p), windows, "Add", 0.0)
    return build.rewrite({node.outputs[0]: _root(build, value, p)}, "LpPool as a sum of powers")


@rule("GlobalLpPool", name="global-lp-pool")
def global_lp_pool(graph: Graph, node: Node) -> Outcome:
    """Three or more spatial dims, where MNN reduces two only: a sum of powers."""
    rank, p = graph.rank(node.inputs[0]), int(node.attr("p", 2))
    if rank is None:
        return refuse("global-lp-pool", node, f"the rank of '{node.inputs[0]}' is not known")
    if rank <= 4:
        return None
    build = Emit(graph, node)
    value = build.reduce("ReduceSum", _power(build, node.inputs[0], p), list(range(2, rank)))
    return build.rewrite({node.outputs[0]: _root(build, value, p)}, "GlobalLpPool as a sum of powers")


@rule("GlobalMaxPool", "GlobalAveragePool", name="global-pool-3d")
def global_pool_3d(graph: Graph, node: Node) -> Outcome:
    """Three spatial dims of a batch that is not 1, which MNN mixes up: ReduceMax or ReduceMean."""
    shape = graph.shape(node.inputs[0])
    if shape is None or len(shape) < 5 or shape[0] == 1:
        return None
    build = Emit(graph, node)
    kind = "ReduceMax" if node.op == "GlobalMaxPool" else "ReduceMean"
    value = build.reduce(kind, node.inputs[0], list(range(2, len(shape))))
    return build.rewrite({node.outputs[0]: value}, f"{kind} in place of {node.op}")


def _power(build: Emit, x: str, p: int) -> str:
    if p == 2:
        return build.op("Mul", x, x)
    base = value = build.op("Abs", x)
    for _ in range(p - 1):
        value = build.op("Mul", value, base)
    return value


def _root(build: Emit, x: str, p: int) -> str:
    if p == 1:
        return x
    return build.op("Sqrt", x) if p == 2 else build.op("Pow", x, build.number(1 / p, build.graph.dtype(x) or 1))


@rule("MaxPool", name="max-pool-positions")
def max_pool_positions(graph: Graph, node: Node) -> Outcome:
    """The second output of MaxPool, which MNN fills wrong: ArgMax over a Gather of all windows."""
    if len(node.outputs) < 2 or not graph.is_used(node.outputs[1]):
        return None
    shape, windows = static_shape(graph, node.inputs[0]), geometry(graph, node)
    if shape is None or isinstance(windows, str):
        return refuse("max-pool-positions", node, "positions of the greatest elements need static shapes")
    build, dtype = Emit(graph, node), graph.dtype(node.inputs[0])
    space, outer = shape[2:], shape[:2]
    places, inside = _table(windows, space)
    results, taps = places.shape
    value = reshape(build, node.inputs[0], *outer, math.prod(space))
    value = build.cast(value, TensorProto.FLOAT) if dtype in _SMALL else value
    low = build.number(lowest(dtype), 1 if dtype in _SMALL else dtype)
    value = reshape(build, build.op("Gather", value, build.const(places.reshape(-1)), axis=2), *outer, results, taps)
    value = value if inside.all() else build.op("Where", build.const(inside, "inside"), value, low)
    best = build.op("ArgMax", value, axis=-1, keepdims=0)
    first = build.op("Add", best, build.const(np.arange(results, dtype=np.int64) * taps, "windows"))
    named = _names(places, space, bool(node.attr("storage_order", 0)))
    at = build.op("Gather", build.const(named.reshape(-1), "names"), first)
    planes = np.arange(math.prod(outer), dtype=np.int64).reshape(*outer, 1) * math.prod(space)
    at = reshape(build, build.op("Add", at, build.const(planes, "planes")), *outer, *(w.results or 0 for w in windows))
    value = reshape(build, build.reduce("ReduceMax", value, [-1], keepdims=False), *outer,
                    *(w.results or 0 for w in windows))  # fmt: skip
    value = build.cast(value, dtype) if dtype in _SMALL else value
    return build.rewrite({node.outputs[0]: value, node.outputs[1]: at}, "MaxPool with positions by ArgMax")


def _table(windows: list[Window], space: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """For every result the flat places of its window, and which of them lie inside; [results, taps]."""
    per_axis = [
        np.arange(w.results or 0)[:, None] * w.stride + np.arange(w.size) * w.dilation - w.begin for w in windows
    ]
    count = len(windows)
    places = np.zeros([1] * (2 * count), np.int64)
    inside = np.ones([1] * (2 * count), bool)
    for axis, at in enumerate(per_axis):
        form = [1] * (2 * count)
        form[axis], form[count + axis] = at.shape
        inside = inside & ((at >= 0) & (at < space[axis])).reshape(form)
        places = places * space[axis] + np.clip(at, 0, space[axis] - 1).reshape(form)
    results = math.prod(at.shape[0] for at in per_axis)
    return places.reshape(results, -1), np.ascontiguousarray(inside).reshape(results, -1)


def _names(places: np.ndarray, space: tuple[int, ...], by_columns: bool) -> np.ndarray:
    """What the positions are called: flat indices, with `storage_order` the first axis running fastest."""
    if not by_columns:
        return places
    return np.ravel_multi_index(np.unravel_index(places, space), space, order="F").astype(np.int64)


@rule("MaxUnpool", name="max-unpool")
def max_unpool(graph: Graph, node: Node) -> Outcome:
    """MaxUnpool by positions, which MNN does for one layout only: ScatterND into zeros, more zeros at the end."""
    shape = static_shape(graph, node.inputs[0])
    asked = graph.constant(node.input(2)) if node.input(2) else None
    if shape is None or (node.input(2) and asked is None):
        return refuse("max-unpool", node, "it needs static shapes")
    inner = _unpooled(node, shape)
    result = inner if asked is None else tuple(asked.tolist())
    ends = [size - filled for size, filled in zip(result, inner, strict=True)]
    if min(ends) < 0:
        return refuse("max-unpool", node, "output_shape is smaller than what the windows cover")
    build, dtype = Emit(graph, node), graph.dtype(node.inputs[0])
    zeros = build.cast(build.const(np.zeros(math.prod(inner), np.float32), "zeros"), dtype)
    value = build.op("ScatterND", zeros, reshape(build, node.inputs[1], -1, 1), reshape(build, node.inputs[0], -1))
    value = reshape(build, value, *inner)
    if any(ends):
        value = _padded(build, value, ends)
    return build.rewrite({node.outputs[0]: value}, "ScatterND in place of MaxUnpool")


def _unpooled(node: Node, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that the positions count in: that of the pool's input if its windows cover it exactly."""
    kernel = node.attr("kernel_shape")
    rank = len(kernel)
    strides, pads = node.attr("strides") or [1] * rank, node.attr("pads") or [0] * (2 * rank)
    sizes = ((shape[2 + i] - 1) * strides[i] - pads[i] - pads[i + rank] + kernel[i] for i in range(rank))
    return (*shape[:2], *sizes)


def _padded(build: Emit, value: str, ends: list[int]) -> str:
    pads = [0] * len(ends) + ends
    return build.op("Pad", value, pads=pads) if build.opset < 11 else build.op("Pad", value, build.ints(*pads))


RULES = (max_pool, average_pool, pool_3d_batch, lp_pool, global_lp_pool, global_pool_3d, max_pool_positions, max_unpool)

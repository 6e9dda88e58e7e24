"""Gather and Scatter of all kinds: signs of indices, depths and reductions that MNN does not know.

MNN reads the indices of GatherElements, GatherND and ScatterElements as they are (a negative one leaves the
tensor), reads ScatterND as full depth or depth 1 only, and overwrites where a reduction is asked for.
Semantics: ONNX Operators, GatherElements, GatherND, ScatterElements, ScatterND.
"""

from __future__ import annotations

import math

import numpy as np

from graphkit._signs import nonnegative
from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.passes._emit import Emit
from graphkit.passes.lowering._tools import (
    concat,
    refuse,
    reshape,
    sizes_of,
    static_shape,
    transpose,
    unknown,
    wrap,
    wrapped_constant,
)
from graphkit.rewrite import Outcome, rule

_LARGEST = 1 << 26  # elements of an inner value of a scatter with reduction
_REDUCERS = {"add": ("ReduceSum", "Add"), "mul": ("ReduceProd", "Mul"), "max": ("ReduceMax", "Max"),
             "min": ("ReduceMin", "Min")}  # fmt: skip


def _wrapped(build: Emit, indices: str, x: str, first: int, last: int) -> str:
    """Indices into dims `first` to `last` of x, none of them negative."""
    known, shape = build.graph.constant(indices), build.graph.shape(x)
    dims = shape[first:last] if shape is not None else ()
    if known is not None and all(isinstance(dim, int) for dim in dims):
        return build.const(wrapped_constant(known, [int(dim) for dim in dims if isinstance(dim, int)]), "indices")
    return wrap(build, indices, sizes_of(build, x, first, last))


@rule("GatherElements", "ScatterElements", "Scatter", name="element-indices")
def element_indices(graph: Graph, node: Node) -> Outcome:
    """Negative indices, which leave the tensor, and attributes before `axis`: MNN takes the first one for it."""
    x, indices = node.inputs[:2]
    rank, inside = graph.rank(x), nonnegative(graph, indices)
    if (inside and list(node.attrs) in ([], ["axis"])) or node.attr("reduction", "none") != "none":
        return None
    if rank is None:
        return unknown("element-indices", node, x, "rank")
    axis = node.attr("axis", 0) % rank
    build = Emit(graph, node)
    inputs = [x, indices if inside else _wrapped(build, indices, x, axis, axis + 1), *node.inputs[2:]]
    value = build.op(node.op_type, *inputs, axis=axis)
    return build.rewrite({node.outputs[0]: value}, f"{node.op_type} with indices that are not negative")


@rule("GatherND", name="gathernd-indices")
def gathernd_indices(graph: Graph, node: Node) -> Outcome:
    """Negative indices: MNN reads outside of the tensor."""
    x, indices = node.inputs[:2]
    shape, rank = graph.shape(indices), graph.rank(x)
    if node.attr("batch_dims", 0) or nonnegative(graph, indices):
        return None
    if rank is None or not shape or not isinstance(shape[-1], int):
        return refuse("gathernd-indices", node, "the depth of its indices is not known")
    build = Emit(graph, node)
    value = build.op("GatherND", x, _wrapped(build, indices, x, 0, shape[-1]))
    return build.rewrite({node.outputs[0]: value}, "GatherND with indices that are not negative")


@rule("GatherND", name="gathernd-batches")
def gathernd_batches(graph: Graph, node: Node) -> Outcome:
    """Batch dims, which MNN reads wrong at full depth: rows of a matrix, numbered over all batches."""
    x, indices = node.inputs[:2]
    batch, shape, at = node.attr("batch_dims", 0), static_shape(graph, x), static_shape(graph, indices)
    if batch == 0:
        return None
    if shape is None or at is None:
        return refuse("gathernd-batches", node, "batch_dims need static shapes")
    build, depth = Emit(graph, node), at[-1]
    inner = shape[batch : batch + depth]
    strides = np.array([math.prod(inner[i + 1 :]) for i in range(depth)], np.int64)
    starts = np.arange(math.prod(shape[:batch]), dtype=np.int64) * math.prod(inner)
    starts = starts.reshape(*shape[:batch], *([1] * (len(at) - 1 - batch)))
    indices = build.cast(_wrapped(build, indices, x, batch, batch + depth), 7)
    rows = build.reduce("ReduceSum", build.op("Mul", indices, build.const(strides, "strides")), [-1], keepdims=False)
    rows = build.op("Add", rows, build.const(starts, "starts"))
    value = build.op("Gather", reshape(build, x, -1, *shape[batch + depth :]), rows)
    return build.rewrite({node.outputs[0]: value}, "Gather of rows in place of GatherND with batches")


@rule("ScatterND", name="scatternd")
def scatternd(graph: Graph, node: Node) -> Outcome:
    """Depths that MNN writes wrong, and reductions, which it ignores: slices of a matrix of rows (depth 1)."""
    x, indices, updates = node.inputs
    rank, shape, reduction = graph.rank(x), graph.shape(indices), node.attr("reduction", "none")
    if rank is None or not shape or not isinstance(shape[-1], int):
        return refuse("scatternd", node, "the depth of its indices is not known")
    depth = shape[-1]
    if reduction == "none" and depth in (1, rank) and len(shape) == 2 and nonnegative(graph, indices):
        return None
    if depth == 0:
        return refuse("scatternd", node, "its indices have depth 0")
    build = Emit(graph, node)
    rows = _row_numbers(build, _wrapped(build, indices, x, 0, depth), x, depth)
    matrix = _as_rows(build, x, depth, rank)
    if reduction == "none":
        if len(shape) != 2:
            rows = reshape(build, rows, -1, 1)
            rest = [] if depth == rank else [sizes_of(build, x, depth, rank)]
            updates = build.op("Reshape", updates, concat(build, build.ints(-1), *rest))
        value = build.op("ScatterND", matrix, rows, updates)
    else:
        if (size := _cost(graph, node, depth)) is None or size > _LARGEST:
            return refuse("scatternd", node, f"reduction '{reduction}' needs static shapes that are not too large")
        value = _reduced_rows(build, matrix, rows, updates, reduction, (graph, node, depth))
    value = value if depth == 1 else build.op("Reshape", value, sizes_of(build, x, 0, rank))
    return build.rewrite({node.outputs[0]: value}, "ScatterND by rows")


def _row_numbers(build: Emit, indices: str, x: str, depth: int) -> str:
    """Indices of some depth → the numbers of the rows they name, depth 1."""
    if depth == 1:
        return indices
    shape = build.graph.shape(x)
    known = build.constants.get(indices, build.graph.constant(indices))
    dims = [dim for dim in (shape or ())[:depth] if isinstance(dim, int)]
    if len(dims) == depth:
        strides = np.array([math.prod(dims[i + 1 :]) for i in range(depth)], np.int64)
        if known is not None:
            return build.const((known * strides).sum(-1, keepdims=True), "rows")
        factors = build.const(strides, "strides")
    else:
        products = [build.op("ReduceProd", sizes_of(build, x, i, depth), keepdims=1) for i in range(1, depth)]
        factors = concat(build, *products, build.ints(1))
    return build.reduce("ReduceSum", build.op("Mul", indices, factors), [-1])


def _as_rows(build: Emit, x: str, depth: int, rank: int) -> str:
    """A value with its first `depth` dims as one."""
    if depth == 1:
        return x
    rest = [] if depth == rank else [sizes_of(build, x, depth, rank)]
    return build.op("Reshape", x, concat(build, build.ints(-1), *rest))


def _cost(graph: Graph, node: Node, depth: int) -> int | None:
    """Elements of rows × updates × row size."""
    shape, indices = static_shape(graph, node.inputs[0]), static_shape(graph, node.inputs[1])
    if shape is None or indices is None or 0 in (*shape, *indices):
        return None
    return math.prod(shape) * math.prod(indices[:-1])


def _reduced_rows(
    build: Emit, matrix: str, rows: str, updates: str, reduction: str, at: tuple[Graph, Node, int]
) -> str:
    """Every row with all the updates that name it: a mask of rows × updates picks them."""
    graph, node, depth = at
    shape, indices = static_shape(graph, node.inputs[0]) or (), static_shape(graph, node.inputs[1]) or ()
    count, width, amount = math.prod(shape[:depth]), math.prod(shape[depth:]), math.prod(indices[:-1])
    mask = build.op("Equal", build.const(np.arange(count, dtype=np.int64)[:, None], "rows"),
                    reshape(build, build.cast(rows, 7), 1, amount))  # fmt: skip
    old = reshape(build, matrix, count, 1, width)
    picked = _picked(build, reshape(build, mask, count, amount, 1), reshape(build, updates, 1, amount, width), old,
                     reduction, graph.dtype(node.inputs[0]))  # fmt: skip
    reducer, joiner = _REDUCERS[reduction]
    value = build.op(joiner, reshape(build, matrix, count, width), build.reduce(reducer, picked, [1], keepdims=False))
    return reshape(build, value, count, *shape[depth:]) if depth < len(shape) or depth == 1 else value


def _picked(build: Emit, mask: str, updates: str, old: str, reduction: str, dtype: int) -> str:
    """Updates where the mask is true, elsewhere what changes nothing."""
    neutral = old if reduction in ("max", "min") else build.number(0 if reduction == "add" else 1, dtype)
    return build.op("Where", mask, updates, neutral)


@rule("ScatterElements", name="scatter-elements-reduction")
def scatter_elements_reduction(graph: Graph, node: Node) -> Outcome:
    """Reductions, which MNN ignores: a mask of targets × updates along the axis, and a Reduce."""
    x, indices, updates = node.inputs
    reduction = node.attr("reduction", "none")
    shape, small = static_shape(graph, x), static_shape(graph, indices)
    if reduction == "none":
        return None
    if shape is None or small is None or 0 in (*shape, *small):
        return refuse("scatter-elements-reduction", node, f"reduction '{reduction}' needs static shapes")
    axis = node.attr("axis", 0) % len(shape)
    if math.prod(small) * shape[axis] > _LARGEST:
        return refuse("scatter-elements-reduction", node, f"reduction '{reduction}' would need too much memory")
    build = Emit(graph, node)
    indices = indices if nonnegative(graph, indices) else _wrapped(build, indices, x, axis, axis + 1)
    perm = [*(i for i in range(len(shape)) if i != axis), axis]
    block = x
    for other in perm[:-1]:
        block = block if small[other] == shape[other] else build.slice(block, other, 0, small[other])
    old, (reducer, joiner) = transpose(build, block, perm), _REDUCERS[reduction]
    wanted = build.unsqueeze(transpose(build, build.cast(indices, 7), perm), len(shape) - 1)
    targets = build.const(np.arange(shape[axis], dtype=np.int64)[:, None], "targets")
    given = build.unsqueeze(transpose(build, updates, perm), len(shape) - 1)
    picked = _picked(build, build.op("Equal", targets, wanted), given, build.unsqueeze(old, len(shape)), reduction,
                     graph.dtype(x))  # fmt: skip
    value = build.op(joiner, old, build.reduce(reducer, picked, [-1], keepdims=False))
    value = transpose(build, value, [perm.index(i) for i in range(len(shape))])
    value = _put_back(build, x, value, shape, small, axis)
    return build.rewrite({node.outputs[0]: value}, f"ScatterElements with reduction '{reduction}' by a mask")


def _put_back(build: Emit, x: str, block: str, shape: tuple[int, ...], small: tuple[int, ...], axis: int) -> str:
    """x with its first corner (small in all dims but `axis`) replaced by a block."""
    for dim in reversed(range(len(shape))):
        if dim == axis or small[dim] == shape[dim]:
            continue
        rest = build.slice(x, dim, small[dim])
        for before in range(dim):
            if before != axis and small[before] != shape[before]:
                rest = build.slice(rest, before, 0, small[before])
        block = build.op("Concat", block, rest, axis=dim)
    return block


RULES = (element_indices, gathernd_indices, gathernd_batches, scatternd, scatter_elements_reduction)

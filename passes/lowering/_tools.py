"""What several lowerings of indexing and sampling need: static shapes, signs of indices, small expressions."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from graphkit.graph import Dim, Graph
from graphkit.node import Node
from graphkit.passes._emit import Emit
from graphkit.rewrite import Refusal

_DEEPEST = 12  # nodes looked through for the elements of a vector of sizes


def static_shape(graph: Graph, value: str) -> tuple[int, ...] | None:
    """The shape when every dim is a known number."""
    shape = graph.shape(value)
    if shape is None or not all(isinstance(dim, int) for dim in shape):
        return None
    return tuple(int(dim) for dim in shape if isinstance(dim, int))


def refuse(rule: str, node: Node, reason: str) -> Refusal:
    """A refusal by a rule that is known by its name."""
    return Refusal(rule, node.label, reason)


def unknown(rule: str, node: Node, value: str, what: str = "shape") -> Refusal:
    """The refusal for a value of which too little is known."""
    return Refusal(rule, node.label, f"the {what} of '{value}' is not known")


def wrap(build: Emit, indices: str, sizes: str) -> str:
    """Indices with the size of their axis added to the negative ones."""
    dtype = build.graph.dtype(indices) or TensorProto.INT64
    if dtype != TensorProto.INT64:
        sizes = build.cast(sizes, dtype)
    zero = build.number(0, dtype)
    return build.op("Where", build.op("Greater", zero, indices), build.op("Add", indices, sizes), indices)


def wrapped_constant(indices: npt.NDArray[Any], sizes: npt.ArrayLike) -> npt.NDArray[Any]:
    """The same for indices that are known."""
    return np.asarray(np.where(indices < 0, indices + np.asarray(sizes), indices), indices.dtype)


def sizes_of(build: Emit, x: str, first: int, last: int) -> str:
    """Dims `first` to `last` (exclusive) of a value as an int64 vector."""
    shape = build.graph.shape(x)
    dims = shape[first:last] if shape is not None else (None,)
    if all(isinstance(dim, int) for dim in dims):
        return build.ints(*(int(dim) for dim in dims if isinstance(dim, int)))
    if build.opset >= 15:
        return build.op("Shape", x, start=first, end=last)
    return build.slice(build.op("Shape", x), 0, first, last)


def elements(graph: Graph, value: str, depth: int = _DEEPEST) -> list[Dim] | None:
    """What is known of a vector of sizes: numbers, names of dims, None; None in all when its length is not known."""
    array, node = graph.constant(value), graph.producer(value)
    if array is not None:
        return [int(item) for item in array.reshape(-1)] if array.dtype.kind == "i" else None
    if node is None or depth == 0:
        return None
    if node.op == "Shape":
        shape = graph.shape(node.inputs[0])
        return None if shape is None else list(shape[node.attr("start", 0) : node.attr("end", len(shape))])
    if node.op in ("Cast", "Unsqueeze", "Squeeze", "Identity"):
        return elements(graph, node.inputs[0], depth - 1)
    if node.op == "Concat":
        parts = [elements(graph, item, depth - 1) for item in node.inputs]
        return None if any(part is None for part in parts) else [item for part in parts for item in part or ()]
    places = graph.constant(node.input(1)) if node.op == "Gather" else None
    known = elements(graph, node.inputs[0], depth - 1) if places is not None else None
    return None if places is None or known is None else [known[int(place)] for place in places.reshape(-1)]


def concat(build: Emit, *values: str, axis: int = 0) -> str:
    """Concat, or the value itself when there is only one."""
    return values[0] if len(values) == 1 else build.op("Concat", *values, axis=axis)


def reshape(build: Emit, x: str, *dims: int) -> str:
    """Reshape to a static shape; 0 keeps a dim."""
    return build.op("Reshape", x, build.ints(*dims))


def transpose(build: Emit, x: str, perm: list[int]) -> str:
    """Transpose, left out when it does nothing."""
    return x if perm == sorted(perm) else build.op("Transpose", x, perm=perm)


def pad_amounts(build: Emit, x: str, begins: list[int], ends: list[int], fill: str = "", value: float = 0.0) -> str:
    """Pad with a number (`fill` is its name, for opset 11 and later), left out when it adds nothing."""
    if not any((*begins, *ends)):
        return x
    if build.opset < 11:
        return build.op("Pad", x, pads=[*begins, *ends], value=value)
    return build.op("Pad", x, build.ints(*begins, *ends), *([fill] if fill else []))


def add(build: Emit, a: str, b: str) -> str:
    """The sum of two values of one shape; below opset 7 by Sum, for onnxruntime has no older Add."""
    return build.op("Add" if build.opset >= 7 else "Sum", a, b)

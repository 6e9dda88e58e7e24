"""What QuantizeLinear and DequantizeLinear compute, in numpy, and how their scales lie over a tensor.

Source: ONNX Operators, QuantizeLinear and DequantizeLinear (opset 10 to 24), and onnxruntime's of the same name.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.passes._quantized_params import unsound

QUANTIZE = ("QuantizeLinear", "com.microsoft::QuantizeLinear")
DEQUANTIZE = ("DequantizeLinear", "com.microsoft::DequantizeLinear")
RANGES: dict[int, tuple[int, int]] = {
    getattr(TensorProto, name): (low, high)
    for name, low, high in (
        ("INT8", -128, 127),
        ("UINT8", 0, 255),
        ("INT16", -(2**15), 2**15 - 1),
        ("UINT16", 0, 2**16 - 1),
        ("INT4", -8, 7),
        ("UINT4", 0, 15),
        ("INT2", -2, 1),
        ("UINT2", 0, 3),
    )
    if hasattr(TensorProto, name)
}
_DEPTH = 16  # nodes between a stored constant and where it is dequantized
VIEWS = ("Identity", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Gather", "Cast")


@dataclass(frozen=True)
class Layout:
    """How scales lie over a tensor: `axis` and `block` of the node; per tensor when a scale has one element."""

    axis: int
    block: int

    @classmethod
    def of(cls, node: Node) -> Layout:
        """As the attributes of the node say."""
        return cls(int(node.attr("axis", 1)), int(node.attr("block_size", 0)))

    def spread(self, values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
        """Scales or zero points in a shape that broadcasts over a tensor of this shape; None when they do not fit."""
        if values.size == 1:
            return values.reshape(())
        rank = len(shape)
        if not -rank <= self.axis < rank:
            return None
        axis = self.axis % rank
        if self.block and values.ndim == rank:
            return _blocks(values, shape, axis, self.block)
        if values.ndim != 1 or values.size != shape[axis]:
            return None
        return values.reshape([-1 if i == axis else 1 for i in range(rank)])


def _blocks(values: np.ndarray, shape: tuple[int, ...], axis: int, block: int) -> np.ndarray | None:
    needed = [-(-dim // block) if i == axis else dim for i, dim in enumerate(shape)]
    if list(values.shape) != needed:
        return None
    full = np.repeat(values, block, axis)
    return full[tuple(slice(shape[axis]) if i == axis else slice(None) for i in range(len(shape)))]


def dequantized(codes: np.ndarray, scale: np.ndarray, zero: np.ndarray | None, layout: Layout) -> np.ndarray | None:
    """(codes − zero) · scale in float32; None when the shapes do not fit. float8 codes have no zero point but 0."""
    shape = codes.shape
    factors = layout.spread(scale, shape)
    shift = layout.spread(zero, shape) if zero is not None else np.zeros((), codes.dtype)
    if factors is None or shift is None:
        return None
    if _is_integer(codes):
        steps = (codes.astype(np.int64) - shift.astype(np.int64)).astype(np.float32)
    else:
        steps = codes.astype(np.float32)
    return np.asarray(steps * factors.astype(np.float32))


def quantized(
    x: np.ndarray, scale: np.ndarray, zero: np.ndarray | None, layout: Layout, dtype: int
) -> np.ndarray | None:
    """Codes of float values: x / scale, to the nearest, ties to even, plus zero, saturated; None when it cannot be."""
    factors = layout.spread(scale, x.shape)
    shift = layout.spread(zero, x.shape) if zero is not None else np.zeros((), np.int64)
    if factors is None or shift is None or dtype not in RANGES:
        return None
    low, high = RANGES[dtype]
    with np.errstate(all="ignore"):
        steps = np.rint(x.astype(np.float32) / factors.astype(np.float32)).astype(np.float64)
    codes = np.clip(
        np.nan_to_num(steps, nan=low, posinf=2.0**40, neginf=-(2.0**40)) + shift.astype(np.int64), low, high
    )
    return np.asarray(codes.astype(np.int64).astype(onnx.helper.tensor_dtype_to_np_dtype(dtype)))


def _is_integer(codes: np.ndarray) -> bool:
    """True for integers of any width; ml_dtypes' narrow ones have no numpy kind of their own."""
    return codes.dtype.kind in "iu" or codes.dtype.name in ("int4", "uint4", "int2", "uint2")


def code_type(graph: Graph, node: Node) -> int:
    """Element type of a QuantizeLinear's codes."""
    if node.input(2):
        return graph.dtype(node.input(2))
    return int(node.attr("output_dtype", 0)) or TensorProto.UINT8


def result_type(graph: Graph, node: Node) -> int:
    """Element type of a DequantizeLinear's result."""
    return int(node.attr("output_dtype", 0)) or graph.dtype(node.inputs[1])


def constant(graph: Graph, value: str, depth: int = _DEPTH) -> np.ndarray | None:
    """The value of a constant, also behind views, casts and quantizations of constants."""
    known = graph.constant(value) if value else None
    node = graph.producer(value) if value and known is None else None
    if known is not None or node is None or not depth or node.subgraphs:
        return known
    if node.op not in VIEWS + QUANTIZE or unsound(graph, node):
        return None
    ins = [constant(graph, name, depth - 1) if name else None for name in node.inputs]
    if any(array is None and name for array, name in zip(ins, node.inputs, strict=True)):
        return None
    if node.op in QUANTIZE:
        assert ins[0] is not None
        assert ins[1] is not None
        zero = ins[2] if len(ins) > 2 else None
        return quantized(ins[0], ins[1], zero, Layout.of(node), code_type(graph, node))
    try:
        return view(node, [array for array in ins if array is not None])
    except (ValueError, IndexError):  # what stands there does not fit: the node stays, for others to judge
        return None


def view(node: Node, ins: list[np.ndarray]) -> np.ndarray | None:
    """What a node of `VIEWS` makes of constants; None for a cast whose edges are the platform's.

    Raises ValueError or IndexError when the constants do not fit.
    """
    x = ins[0]
    if node.op == "Identity":
        return x
    if node.op == "Transpose":
        return x.transpose(node.attr("perm"))
    if node.op == "Cast":
        return _cast(x, int(node.attr("to")))
    if node.op == "Gather":
        axis = int(node.attr("axis", 0))
        return x[(slice(None),) * (axis % x.ndim) + (ins[1],)]
    if node.op == "Flatten":
        axis = int(node.attr("axis", 1))
        return x.reshape(int(np.prod(x.shape[: axis if axis >= 0 else axis + x.ndim])), -1)
    return _reshaped(node, x, ins)


def _cast(x: np.ndarray, to: int) -> np.ndarray | None:
    """Casts between integers, and to floats; from floats to integers the edges are the platform's."""
    target = onnx.helper.tensor_dtype_to_np_dtype(to)
    return x.astype(target) if _is_integer(x) or target.kind == "f" else None


def _reshaped(node: Node, x: np.ndarray, ins: list[np.ndarray]) -> np.ndarray:
    sizes = [int(v) for v in ins[1]] if len(ins) > 1 else list(node.attr("axes", []))
    if node.op == "Reshape":
        keep = not node.attr("allowzero", 0)
        return x.reshape([x.shape[i] if size == 0 and keep else size for i, size in enumerate(sizes)])
    if node.op == "Squeeze":
        return np.squeeze(x, tuple(sizes) if sizes else None)
    return np.expand_dims(x, tuple(sizes))


def folded(graph: Graph, node: Node) -> npt.NDArray[np.generic] | str | None:
    """The float values of a DequantizeLinear of constants; a reason when they cannot be had, None for no constants."""
    if problem := unsound(graph, node):
        return problem
    arrays = [constant(graph, value) if value else None for value in node.inputs]
    if any(array is None and name for array, name in zip(arrays, node.inputs, strict=True)):
        return None
    codes, scale = arrays[0], arrays[1]
    zero = arrays[2] if len(arrays) > 2 else None
    if codes is None or scale is None:
        return None
    result = dequantized(codes, scale, zero, Layout.of(node))
    if result is None:
        layout = f"axis {node.attr('axis', 1)}, block_size {node.attr('block_size', 0)}"
        return f"scales of shape {list(scale.shape)} do not fit codes of shape {list(codes.shape)} ({layout})"
    return result.astype(onnx.helper.tensor_dtype_to_np_dtype(result_type(graph, node) or TensorProto.FLOAT))


def same_parameters(graph: Graph, write: Node, read: Node) -> bool:
    """True when a DequantizeLinear undoes a QuantizeLinear: equal scales, zero points and layout."""
    if unsound(graph, write) or unsound(graph, read):
        return False
    if Layout.of(write) != Layout.of(read) and not _one(graph, write.inputs[1]):
        return False
    return all(_equal(graph, write.input(i), read.input(i), optional=i == 2) for i in (1, 2))


def _one(graph: Graph, value: str) -> bool:
    shape = graph.shape(value)
    return shape is not None and all(dim == 1 for dim in shape)


def _equal(graph: Graph, a: str, b: str, *, optional: bool) -> bool:
    if a == b:
        return True
    left, right = graph.constant(a) if a else None, graph.constant(b) if b else None
    if optional and not (a and b):
        present = left if a else right
        return present is not None and not np.any(present)
    if left is None or right is None or left.size != right.size:
        return False
    return left.dtype == right.dtype and bool(np.array_equal(left.reshape(-1), right.reshape(-1)))

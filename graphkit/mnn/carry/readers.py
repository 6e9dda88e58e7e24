"""How each ONNX operator keeps quantized weights: where its codes, scales and zero points are, and what they mean.

Sources: ONNX Operators (DequantizeLinear 10 to 24, MatMulInteger, ConvInteger, QLinearConv, QLinearMatMul), and
onnxruntime's ContribOperators.md (com.microsoft: MatMulNBits, GatherBlockQuantized, QGemm, MatMulIntegerToFloat,
DynamicQuantizeMatMul).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto

from graphkit.graph import Graph
from graphkit.mnn.carry.parts import Parts, signed
from graphkit.mnn.document.tree import Array
from graphkit.node import Node
from graphkit.passes import _dequantize
from graphkit.passes._dequantize import DEQUANTIZE, Layout
from graphkit.passes._quantized_params import unsound
from graphkit.passes.lowering.quantized_contrib import block_table

_MS = "com.microsoft::"
PACKED = f"{_MS}MatMulNBits"
TABLE = f"{_MS}GatherBlockQuantized"
_PACKED_BITS = (2, 4, 8)
_BITS = {"int2": 2, "uint2": 2, "int4": 4, "uint4": 4}


@dataclass(frozen=True)
class Places:
    """Inputs of an operator: the codes, their scale and their zero point (None where it has none), and their axis."""

    codes: int
    scale: int | None
    zero: int | None
    axis: int = -1


# The products of codes: what is left of their scales reaches MNN as a factor of the weights, or of what they make.
_INTEGER: Mapping[str, Places] = {
    "MatMulInteger": Places(1, None, 3),
    "ConvInteger": Places(1, None, 3, axis=0),
    "QLinearConv": Places(3, 4, 5, axis=0),
    "QLinearMatMul": Places(3, 4, 5),
    f"{_MS}QGemm": Places(3, 4, 5),
    f"{_MS}MatMulIntegerToFloat": Places(1, 3, 5),
    f"{_MS}DynamicQuantizeMatMul": Places(1, 2, 3),
}
READ = (*DEQUANTIZE, PACKED, TABLE, *_INTEGER)


def places(node: Node) -> Places:
    """Where the operator of a node, one of `READ`, has its codes."""
    if node.op in DEQUANTIZE:
        return Places(0, 1, 2)
    if node.op == PACKED:
        return Places(1, 2, 3)
    if node.op == TABLE:
        return Places(0, 2, 3)
    found = _INTEGER[node.op]
    return Places(found.codes, found.scale, found.zero, 0) if node.attr("transB", 0) else found


def read(graph: Graph, node: Node) -> Parts | str:
    """The weights of a node, one of `READ`, whose inputs are constant; a reason when they cannot be carried."""
    if problem := unsound(graph, node):
        return problem
    if node.op in DEQUANTIZE:
        return _linear(graph, node)
    if node.op == TABLE:
        return _table(graph, node)
    return _packed(graph, node) if node.op == PACKED else _integer(graph, node)


def bits_of(array: Array) -> int:
    """Bits of one stored code."""
    return _BITS.get(array.dtype.name, array.dtype.itemsize * 8)


def _constant(graph: Graph, node: Node, index: int | None) -> Array | None:
    name = node.input(index) if index is not None else ""
    return _dequantize.constant(graph, name) if name else None


def _linear(graph: Graph, node: Node) -> Parts | str:
    codes, scale, zero = (_constant(graph, node, index) for index in range(3))
    if codes is None or scale is None or (node.input(2) and zero is None):
        return "codes, scales or zero points are computed"
    layout = Layout.of(node)
    factors = layout.spread(scale, codes.shape)
    shift = None if zero is None else layout.spread(zero, codes.shape)
    if factors is None or (shift is None) != (zero is None):
        return f"scales of shape {list(scale.shape)} do not fit codes of shape {list(codes.shape)}"
    kind = onnx.helper.tensor_dtype_to_np_dtype(_dequantize.result_type(graph, node) or TensorProto.FLOAT)
    return _parts(codes, factors, shift, np.dtype(kind))


def _parts(codes: Array, scale: Array, zero: Array | None, kind: np.dtype[np.generic]) -> Parts | str:
    if codes.dtype.kind not in "iu" and codes.dtype.name not in _BITS:
        return f"codes of {codes.dtype.name} are not evenly spaced"
    found = signed(codes, scale, zero, bits_of(codes), kind)
    return found if found is not None else f"codes of {bits_of(codes)} bits; MNN has 2 to 8"


def _integer(graph: Graph, node: Node) -> Parts | str:
    """Codes less their zero points; scale 1, for the product of codes is scaled afterwards."""
    place = places(node)
    codes, zero = _constant(graph, node, place.codes), _constant(graph, node, place.zero)
    if codes is None or (place.zero is not None and node.input(place.zero) and zero is None):
        return "codes or zero points are computed"
    shift = zero
    if zero is not None and zero.ndim < 2:
        shift = Layout(place.axis, 0).spread(zero, codes.shape)
        if shift is None:
            return f"zero points of shape {list(zero.shape)} do not fit codes of shape {list(codes.shape)}"
    return _parts(codes, np.ones((), np.float32), shift, np.dtype(np.float32))


def _packed(graph: Graph, node: Node) -> Parts | str:
    """MatMulNBits: codes [N, blocks, bytes], the first in the lowest bits, as the matrix [N, K]."""
    bits, block = int(node.attr("bits", 4)), int(node.attr("block_size", 0))
    rows, columns = int(node.attr("N", 0)), int(node.attr("K", 0))
    codes, scale, zero = (_constant(graph, node, index) for index in (1, 2, 3))
    if node.input(4):
        return "its inputs are grouped by g_idx, not in blocks"
    if bits not in _PACKED_BITS or node.attr("weight_prepacked", 0):
        return f"codes of {bits} bits, or packed for one machine"
    if codes is None or scale is None or (node.input(3) and zero is None):
        return "codes, scales or zero points are computed"
    blocks = -(-columns // block) if block else 0
    if not rows * blocks or scale.size != rows * blocks or codes.size * 8 != rows * blocks * block * bits:
        return f"codes of shape {list(codes.shape)} and {scale.size} scales do not make {rows} × {columns} weights"
    middle = np.full((rows, blocks), 1 << (bits - 1), np.float32)
    points = middle if zero is None else _zero_points(zero, rows, blocks, bits)
    if points is None:
        return f"zero points of shape {list(zero.shape) if zero is not None else []} do not fit {blocks} blocks a row"
    unpacked = _unpacked(codes.reshape(rows, -1), bits)[:, :columns]
    spread = [_spread(array, block, columns) for array in (scale.reshape(rows, blocks), points)]
    found = signed(unpacked, spread[0], spread[1], bits, np.dtype(scale.dtype))
    return found if found is not None else f"codes of {bits} bits"


def _table(graph: Graph, node: Node) -> Parts | str:
    """GatherBlockQuantized: codes of 4 bits too are a byte each in MNN."""
    found = block_table(graph, node)
    if isinstance(found, str):
        return found
    codes, scale, zero = found
    spread = [_spread(array, codes.shape[1] // scale.shape[1], codes.shape[1]) for array in (scale, zero)]
    made = signed(codes, spread[0], spread[1], 8, np.dtype(scale.dtype))
    return made if made is not None else "codes that do not fit a byte"


def _spread(array: Array, block: int, columns: int) -> Array:
    """One number a block as one a column, cut to the columns there are."""
    return np.repeat(array.astype(np.float32), block, axis=1)[:, :columns]


def _zero_points(zero: Array, rows: int, blocks: int, bits: int) -> Array | None:
    """Zero points [rows, blocks]: packed as the codes are, or numbers of a float type."""
    if zero.dtype != np.uint8:
        return zero.reshape(rows, blocks).astype(np.float32) if zero.size == rows * blocks else None
    if zero.size % rows:
        return None
    unpacked = _unpacked(zero.reshape(rows, -1), bits)
    return unpacked[:, :blocks].astype(np.float32) if unpacked.shape[1] >= blocks else None


def _unpacked(data: Array, bits: int) -> Array:
    """The codes in rows of bytes, uint8, the first in the lowest bits."""
    if bits == 8:
        return data
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    found: Array = data[:, :, None] >> shifts & np.uint8((1 << bits) - 1)
    return found.reshape(data.shape[0], -1)

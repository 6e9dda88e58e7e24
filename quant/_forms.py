"""How codes lie in ONNX tensors, and the steps from there to the weight's shape.

Source: ONNX Operators, DequantizeLinear (opset 10, 13, 21).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graphkit.quant.codes import Array, Codes, code_range
from graphkit.quant.layers import Layer

BLOCKS_FROM = 21  # operator set with block_size and INT4


@dataclass(frozen=True)
class Form:
    """How codes lie in ONNX: arrays as stored, the attributes of DequantizeLinear, and the steps to the weight's shape.

    steps: shapes (Reshape) and permutations of axes (Transpose, marked by "perm") in order.
    """

    codes: Array
    scales: Array
    zeros: Array | None
    axis: int
    block: int = 0
    steps: tuple[tuple[str, tuple[int, ...]], ...] = ()


def form_of(layer: Layer, codes: Codes, opset: int) -> Form:
    """The form that this layer's codes take in a model of this operator set; see the module's text."""
    if codes.blocks == 1 and layer.axis is not None:
        zeros = None if codes.zeros is None else codes.zeros[:, 0]
        return Form(layer.restore(codes.codes), codes.scales[:, 0], zeros, layer.axis)
    inline = opset >= BLOCKS_FROM
    if inline and layer.kernel == 1 and layer.layout != "transposed-convolution":
        return _in_shape(layer, codes)
    if inline and codes.blocks > 1:
        return Form(codes.codes, codes.scales, codes.zeros, 1, codes.block_columns, _steps(layer, reshaped=False))
    cut = codes.codes.reshape(codes.rows * codes.blocks, codes.block_columns)
    zeros = None if codes.zeros is None else codes.zeros.reshape(-1)
    return Form(cut, codes.scales.reshape(-1), zeros, 0, 0, _steps(layer, reshaped=codes.blocks > 1))


def _in_shape(layer: Layer, codes: Codes) -> Form:
    """Blocks of a weight with one kernel element: they are runs along one axis of it."""
    ones = (1,) * (len(layer.shape) - 2)
    if layer.layout == "columns":
        zeros = None if codes.zeros is None else np.ascontiguousarray(codes.zeros.T)
        return Form(layer.restore(codes.codes), np.ascontiguousarray(codes.scales.T), zeros, 0, codes.block_columns)
    zeros = None if codes.zeros is None else codes.zeros.reshape(*codes.zeros.shape, *ones)
    scales = codes.scales.reshape(*codes.scales.shape, *ones)
    return Form(layer.restore(codes.codes), scales, zeros, 1, codes.block_columns)


def _steps(layer: Layer, *, reshaped: bool) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """From the matrix (cut into more rows when `reshaped`) to the weight's shape."""
    matrix = (layer.rows, layer.columns)
    if layer.layout == "columns":
        turn = ("perm", (1, 0))
        return (("shape", matrix), turn) if reshaped else (turn,)
    if layer.layout == "transposed-convolution":
        split = (layer.groups, layer.rows // layer.groups, layer.channels, layer.kernel)
        return (("shape", split), ("perm", (0, 2, 1, 3)), ("shape", layer.shape))
    return (("shape", layer.shape),) if reshaped or layer.shape != matrix else ()


def whole_zeros(codes: Codes) -> bool:
    """True when the zero points, if any, are whole numbers that the code's type can hold."""
    if codes.zeros is None:
        return True
    low, high = code_range(stored_bits(codes.bits))
    zeros = codes.zeros
    return bool(np.array_equal(zeros, np.rint(zeros)) and zeros.min() >= low and zeros.max() <= high)


def stored_bits(bits: int) -> int:
    return 4 if bits <= 4 else 8


def pack_int4(array: Array) -> Array:
    """Codes −8 … 7 as ONNX stores INT4: two in a byte, the first in the low half."""
    flat = array.reshape(-1).view(np.uint8)
    if flat.size % 2:
        flat = np.append(flat, np.uint8(0))
    return np.asarray((flat[0::2] & 0x0F) | (flat[1::2] << 4))

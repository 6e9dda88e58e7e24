"""Codes and scales as the table IDSTQuan, as MNN stores them.

A buffer of type 1: number of dims (2), rows and codes of a row (2 bytes each, or 4 when one is above 65535), number of
levels (256 as 0), the levels as int8, the codes less the lowest level, the first in the highest bits. Scales are one
number a row, or with zero points two: the value of the lowest code and the scale. Read in MNN 3.6.1's source
(tools/converter/source/common/WeightQuantAndCoding.cpp, core/ConvolutionCommon.cpp), and measured: MNN's own files
come out byte for byte.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from graphkit.mnn.document.schema import Schema
from graphkit.mnn.document.tree import Array, Table
from graphkit.quant.codes import Codes, code_range

_WIDE = 0xFFFF
_HALF_ERROR = 2.0**-11  # what rounding to float16 changes at most where it is not denormal
_PIECE = 1 << 20  # codes packed at once, a multiple of 8


def idst_table(codes: Codes, schema: Schema, *, half_scales: bool = False) -> Table:
    """The table of quantized weights whose rows lie one after another, each cut into its blocks.

    half_scales: store scales as float16 where all of them are in its range (a relative error of 2^−11). Scales that
    float16 holds exactly are always stored so.
    """
    low, _ = code_range(codes.bits)
    alpha = _alpha(codes, low)
    runs = codes.rows * codes.blocks
    asymmetric = codes.zeros is not None
    fields: dict[str, Any] = {"buffer": packed(codes.codes.reshape(runs, -1), codes.bits)}
    stored = _halves(alpha, lossy=half_scales)
    if stored is None:
        fields["alpha"] = alpha
    fields |= {
        "type": 1,
        "quantScale": np.float32(1),
        "aMaxOrBits": codes.bits,
        "aMin": low if asymmetric else 0,
        "readType": runs if asymmetric else 0,
        "shapeInt32": max(runs, codes.block_columns) > _WIDE,
    }
    if stored is not None:
        fields |= {"alphaFp16": stored, "scaleStorage": schema.enums["ScaleStorageType"].numbers["FP16"]}
    return Table(schema.tables["IDSTQuan"], schema, fields)


def packed(codes: Array, bits: int) -> Array:
    """The buffer of type 1 (int8) for codes [rows, area] of this width."""
    rows, area = codes.shape
    low, high = code_range(bits)
    head = struct.pack("<BII" if max(rows, area) > _WIDE else "<BHH", 2, rows, area)
    head += struct.pack("<B", (1 << bits) & 0xFF) + np.arange(low, high + 1, dtype=np.int8).tobytes()
    flat = codes.reshape(-1)
    buffer = np.zeros(len(head) + -(-flat.size * bits // 8), np.uint8)
    buffer[: len(head)] = np.frombuffer(head, np.uint8)
    for start in range(0, flat.size, _PIECE):
        piece = (flat[start : start + _PIECE].astype(np.int16) - low).astype(np.uint8)
        data = _bitstream(piece, bits)
        at = len(head) + start * bits // 8
        buffer[at : at + data.size] = data
    return buffer.view(np.int8)


def _bitstream(numbers: Array, bits: int) -> Array:
    """Numbers below 2^bits as bytes, the first in the highest bits, zeros at the end."""
    if bits == 8:
        return numbers
    if bits == 4:
        even = np.append(numbers, np.uint8(0)) if numbers.size % 2 else numbers
        return even[0::2] << 4 | even[1::2]
    planes = numbers[:, None] >> np.arange(bits - 1, -1, -1, dtype=np.uint8) & 1
    return np.packbits(planes.reshape(-1))


def _alpha(codes: Codes, low: int) -> Array:
    """What MNN calls alpha, float32: scales, or the value of the lowest code and the scale in turn."""
    scales = codes.scales.reshape(-1)
    if codes.zeros is None:
        return np.ascontiguousarray(scales)
    lowest = (np.float32(low) - codes.zeros.reshape(-1)) * scales
    return np.ascontiguousarray(np.stack([lowest, scales], axis=1).reshape(-1))


def _halves(alpha: Array, *, lossy: bool) -> Array | None:
    """Alpha as the bits of float16 (uint16); None when float16 does not hold it."""
    with np.errstate(over="ignore"):
        half = alpha.astype(np.float16)
    error = np.abs(half.astype(np.float32) - alpha)
    fits = error <= np.abs(alpha) * (_HALF_ERROR if lossy else 0)
    return half.view(np.uint16) if bool(fits.all()) else None

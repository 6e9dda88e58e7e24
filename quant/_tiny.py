"""Blocks of tiny weights, which MNN's rounding would make 0.

MNN's converter stores code 0 for every weight whose scale is not above 1e-6, and the rule is part of rounding "as MNN
does". It wipes out channels whose small weights meet large inputs: where a BatchNormalization over activations of
thousands was folded into a convolution, 17 of 24 channels of ppocr4_det's head go that way at 8 bits (cosine .11 to .43
of the output; all other layers, its Deconvolutions too, are right). MNN runs smaller scales without trouble: only its
converter does not make them. So such blocks are quantized times a power of two, and their scales divided by it: exact,
and the same codes as ever for all other blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from graphkit.quant import _columns
from graphkit.quant.codes import TINY_SCALE, Array, Codes, code_range

_MARGIN = np.float32(2)  # scales this far above the rule are lifted too, whatever was rounded on the way


def without_tiny_scales(matrix: Array, bits: int, block_columns: int, quantize: Callable[[Array], Codes]) -> Codes:
    """What `quantize` makes of the matrix, float32 [rows, columns], with its tiny blocks lifted for as long.

    block_columns: columns of a block, 0 for the whole row. Blocks of zeros stay as they are.
    """
    rows, columns = matrix.shape
    width = block_columns or columns
    if not width or columns % width:
        return quantize(matrix)  # which says what is wrong
    codes = quantize(matrix)
    if codes.symmetric and not ((codes.scales > 0) & (codes.scales <= _MARGIN * TINY_SCALE)).any():
        return codes  # scales tell how large the weights are
    tops = _tops(matrix, columns // width)
    limit = _MARGIN * TINY_SCALE * np.float32(code_range(bits)[1])
    tiny = (tops > 0) & (tops <= limit)
    if not tiny.any():
        return codes
    powers = np.where(tiny, -np.frexp(tops)[1], 0)
    blocks = matrix.reshape(rows, columns // width, width)
    codes = quantize(np.ldexp(blocks, powers[:, :, None]).reshape(rows, columns))
    return replace(codes, scales=np.ldexp(codes.scales, -powers))


def _tops(matrix: Array, count: int) -> Array:
    """The largest absolute weight of each block [rows, blocks]."""
    if _columns.lies_by_columns(matrix):
        return _columns.largest(matrix, count)
    blocks = matrix.reshape(len(matrix), count, -1)
    found: Array = np.maximum(blocks.max(axis=2), -blocks.min(axis=2))
    return found

"""Round to nearest: each weight to the nearest code under a scale that the largest weight of its block sets.

Equal to what MNN 3.6.1's converter stores with --weightQuantBits, bit for bit, codes and scales (tests/quant). That
includes a rule which wipes out small weights, see `quantize_matrix`; `_tiny` is the way around it.
"""

from __future__ import annotations

import numpy as np

from graphkit.quant import _columns
from graphkit.quant._rounding import block_extremes, by_pieces, cut, round_above, round_to_codes
from graphkit.quant.codes import TINY_SCALE, Array, Codes, as_matrix, blocks_of, check_bits, check_finite, code_range


def quantize_matrix(
    matrix: Array,
    bits: int,
    block_columns: int = 0,
    *,
    hessian: Array | None = None,
    name: str = "",
    asymmetric: bool = False,
    integer_zeros: bool = False,
) -> Codes:
    """Quantize float32 [rows, columns] to the nearest codes.

    bits: 2 to 8. block_columns: columns that share a scale, 0 for the whole row. hessian: not used here. name: of the
    layer, for messages. asymmetric: the codes reach from the smallest to the largest weight of a block, as MNN's do
    by default; zero points are then any numbers. integer_zeros: zero points that are codes, as ONNX needs them; 0 is
    then always in the range, and exact.

    A block whose scale is not above 1e-6 becomes code 0 throughout (MNN's rule), so an all-zero channel has scale 0;
    asymmetric, it becomes its smallest weight. Raises UsageError for other bits and blocks that do not divide a row,
    ModelError, naming the layer, for NaN and infinities.
    """
    check_bits(bits)
    if not asymmetric and not integer_zeros and matrix.ndim == 2 and _columns.lies_by_columns(matrix):
        scales = largest(matrix, blocks_of(matrix.shape[1], block_columns, name), name) / np.float32(
            code_range(bits)[1]
        )
        return Codes(_columns.round_to_codes(matrix, scales), np.ascontiguousarray(scales), None, bits)
    matrix = as_matrix(matrix, name)
    blocks = blocks_of(matrix.shape[1], block_columns, name)
    if integer_zeros:
        return _with_integer_zeros(matrix, bits, blocks, name)
    if asymmetric:
        return _asymmetric(matrix, bits, blocks, name)
    scales = largest(matrix, blocks, name) / np.float32(code_range(bits)[1])
    return Codes(round_to_codes(matrix, scales, bits), scales, None, bits)


def largest(matrix: Array, blocks: int, name: str = "") -> Array:
    """The largest absolute weight of each block, float32 [rows, blocks]. Raises ModelError for NaN and infinities."""
    if _columns.lies_by_columns(matrix):
        found = _columns.largest(matrix, blocks)
        check_finite(found, name)
        return found
    found = np.zeros((matrix.shape[0], blocks), np.float32)

    def work(start: int, stop: int) -> None:
        found[start:stop] = block_extremes(np.abs(cut(matrix[start:stop], blocks)), largest=True)

    if matrix.size:
        by_pieces(matrix, work)
    check_finite(found, name)
    return found


def extremes(matrix: Array, blocks: int, name: str = "") -> tuple[Array, Array]:
    """The smallest and the largest weight of each block, float32 [rows, blocks].

    Raises ModelError, naming the layer, for NaN and infinities.
    """
    low, high = np.zeros((2, matrix.shape[0], blocks), np.float32)

    def work(start: int, stop: int) -> None:
        piece = cut(matrix[start:stop], blocks)
        low[start:stop] = block_extremes(piece, largest=False)
        high[start:stop] = block_extremes(piece, largest=True)

    if matrix.size:
        by_pieces(matrix, work)
    check_finite(low, name)
    check_finite(high, name)
    return low, high


def _asymmetric(matrix: Array, bits: int, blocks: int, name: str) -> Codes:
    first = code_range(bits)[0]
    low, high = extremes(matrix, blocks, name)
    scales = _steps(low, high, bits, name)
    codes = round_above(matrix, low, scales, bits)
    flat = scales == 0  # one value throughout: a scale of its size and a zero point one below or above say it exactly
    scales = np.where(flat, np.abs(low), scales)
    zeros = np.where(flat, first - np.sign(low), first - low / np.where(scales > 0, scales, 1))
    return Codes(codes, scales, zeros.astype(np.float32), bits)


def _with_integer_zeros(matrix: Array, bits: int, blocks: int, name: str) -> Codes:
    first, last = code_range(bits)
    low, high = extremes(matrix, blocks, name)
    low, high = np.minimum(low, 0), np.maximum(high, 0)
    scales = _steps(low, high, bits, name)
    silent = scales <= TINY_SCALE
    zeros = np.clip(np.rint(first - low / np.where(silent, 1, scales)), first, last)
    zeros = np.where(silent, 0, zeros).astype(np.float32)
    codes = round_above(matrix, (first - zeros) * scales, scales, bits)
    codes = np.where(silent.repeat(matrix.shape[1] // blocks, axis=1), np.int8(0), codes)
    return Codes(codes, scales, zeros, bits)


def _steps(low: Array, high: Array, bits: int, name: str) -> Array:
    """Scales under which the codes reach from `low` to `high`; raises ModelError where that is beyond float32."""
    first, last = code_range(bits)
    with np.errstate(over="ignore"):
        found: Array = (high - low) / np.float32(last - first)
    check_finite(found, name)
    return found
